package cli

import (
	"errors"
	"fmt"
	"io"
	"time"

	"natsfabric/cmd/fabricnode/internal/demo"
)

// superviseDemoFlags turn demo into that of supervision.
type superviseDemoFlags struct {
	Supervise bool     `help:"See a frozen worker restarted, once, by two monitors, in place of the rest."`
	Scale     *float64 `placeholder:"F" help:"With --supervise: multiplies the default times, 0.005 to 1. Default 1/60: a minute is a second."`
}

// runSupervise is Run of demo with --supervise.
func (f *superviseDemoFlags) runSupervise(a *app) error {
	o := demo.SuperviseOptions{Tell: a.screen.tell, Logger: a.log, Abort: a.sig.abortWith}
	if f.Scale != nil {
		if o.Scale = *f.Scale; !(o.Scale >= 0.005 && o.Scale <= 1) {
			return withCode(ExitUsage, fmt.Errorf("--scale %v is not allowed: it must be 0.005 to 1", o.Scale))
		}
	}
	res, err := demo.RunSupervise(a.sig.ctx, o)
	a.screen.end()
	if err != nil {
		return err
	}
	if err := a.print(res, func(w io.Writer) { err = res.WriteTable(w) }); err != nil {
		return err
	}
	if err == nil && !res.OK {
		err = withCode(ExitProof, errors.New("the demo's proof does not hold"))
	}
	return err
}

type demoWorkerCmd struct {
	Mesh   string        `required:""`
	Server string        `required:""`
	Worker string        `required:""`
	Every  time.Duration `required:""`
}

func (c *demoWorkerCmd) Run(a *app) error {
	return demo.RunWorker(a.sig.ctx, demo.WorkerOptions{Mesh: c.Mesh, Server: c.Server, Worker: c.Worker, Every: c.Every, Logger: a.log})
}
