package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"natsfabric/cmd/fabricnode/internal/demo"
	"natsfabric/examples/data"
)

type demoCmd struct {
	Input       string `placeholder:"FILE" help:"Access log in combined format to work through; - reads standard input. Default: the one that is part of this program."`
	Concurrency int    `default:"64" help:"Lines under way at the same time."`
	Rate        *int   `placeholder:"N" help:"Lines a second. Default 1000, or as many as send all lines in 10 s."`

	superviseDemoFlags
	webDemoFlags
}

func (c *demoCmd) Run(a *app) error {
	switch {
	case c.Supervise && c.Web:
		return withCode(ExitUsage, errors.New("--web clashes with --supervise: give one of them"))
	case c.Supervise:
		return c.runSupervise(a)
	case c.Web:
		return c.runWeb(a)
	}
	lines, err := c.lines(a)
	if err != nil {
		if a.sig.ctx.Err() != nil {
			return err
		}
		return withCode(ExitUsage, err)
	}
	rate := 0
	if c.Rate != nil {
		rate = *c.Rate
	}
	switch {
	case c.Concurrency < 1 || c.Concurrency > demo.MaxConcurrency:
		return withCode(ExitUsage, fmt.Errorf("--concurrency %d is not allowed: it must be 1 to %d", c.Concurrency, demo.MaxConcurrency))
	case c.Rate != nil && (rate < 1 || rate > demo.MaxRate):
		return withCode(ExitUsage, fmt.Errorf("--rate %d is not allowed: it must be 1 to %d", rate, demo.MaxRate))
	}
	res, err := demo.Run(a.sig.ctx, demo.Options{
		Lines: lines, Concurrency: c.Concurrency, Rate: rate, Tell: a.screen.tell, Progress: a.screen.progress,
		Logger: a.log, Abort: a.sig.abortWith,
	})
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

func (c *demoCmd) lines(a *app) ([]string, error) {
	switch c.Input {
	case "":
		return demo.ReadLines(bytes.NewReader(data.AccessLog))
	case "-":
		text, err := a.readStdin(demo.MaxInput + 1)
		if err != nil {
			return nil, fmt.Errorf("standard input: %w", err)
		}
		return demo.ReadLines(bytes.NewReader(text))
	}
	f, err := os.Open(c.Input)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	lines, err := demo.ReadLines(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.Input, err)
	}
	return lines, nil
}

type demoNodeCmd struct {
	Mesh   string `required:""`
	RID    string `name:"rid" required:""`
	Server string `required:""`
	Dir    string `required:""`
}

func (c *demoNodeCmd) Run(a *app) error {
	return demo.RunNode(a.sig.ctx, demo.NodeOptions{
		Mesh: c.Mesh, RID: c.RID, Server: c.Server, Dir: c.Dir, Out: a.stdout, Logger: a.log,
	})
}
