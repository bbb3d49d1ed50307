package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"

	"go.uber.org/zap"

	"natsfabric/internal/wire"
	"natsfabric/supervise"
)

type superviseChildCmd struct {
	meshFlags
	Worker  string   `arg:"" help:"The worker."`
	Command []string `arg:"" passthrough:"" help:"Program and arguments of the worker's process, after --."`
}

// childEvent is what child prints with --json once it takes orders.
type childEvent struct {
	Event   string `json:"event"`
	Worker  string `json:"worker"`
	Subject string `json:"subject"`
	Process int    `json:"process"`
}

// Run runs the worker as a child process and takes the orders of monitors to restart it, at the admin subject
// restart.<worker>. An order that comes late, from a monitor that was frozen or because this program was, is refused by its
// token or its time.
func (c *superviseChildCmd) Run(a *app) error {
	if err := checkWorker(c.Worker); err != nil {
		return withCode(ExitUsage, err)
	}
	token, _ := wire.EscapeID(c.Worker)
	words := c.Command
	if len(words) > 0 && words[0] == "--" {
		words = words[1:]
	}
	if len(words) == 0 {
		return withCode(ExitUsage, fmt.Errorf("the worker's program is missing: fabricnode supervise child ... %s -- PROGRAM ARGUMENT", c.Worker))
	}
	ctx, cancel := context.WithTimeout(a.sig.ctx, setupTimeout)
	defer cancel()
	s, err := c.open(ctx, a.log)
	if err != nil {
		return err
	}
	defer s.close()
	child := supervise.NewChild(c.Worker, func() *exec.Cmd {
		cmd := exec.Command(words[0], words[1:]...)
		cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
		return cmd
	})
	defer child.Close()
	if err := child.Start(); err != nil {
		return withCode(ExitUsage, err)
	}
	subject := wire.Mesh(c.Mesh).Admin("restart." + token)
	inTime := supervise.InTime{Keys: s.keys, Restarter: child}
	stop, err := supervise.ServeOrders(s.nc, subject, supervise.RestartFunc(func(ctx context.Context, o supervise.Order) supervise.Result {
		res := inTime.Restart(ctx, o)
		a.log.Warn("an order to restart", zap.String("attempt", o.Attempt), zap.String("outcome", string(res.Outcome)), zap.String("detail", res.Detail))
		return res
	}))
	if err != nil {
		return startError(err)
	}
	defer stop()
	if err := s.nc.FlushWithContext(ctx); err != nil {
		return startError(err)
	}
	if err := a.print(childEvent{"running", c.Worker, subject, child.PID()}, func(w io.Writer) {
		fmt.Fprintf(w, "%s runs as process %d; orders to restart it are taken at %s\n", c.Worker, child.PID(), subject)
	}); err != nil {
		return err
	}
	<-a.sig.ctx.Done()
	return nil
}
