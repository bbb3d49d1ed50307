package supervise

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"natsfabric/fence"
	"natsfabric/kvlocation"
)

// Order is one restart that is to be run.
type Order struct {
	Worker   string
	Verdict  Verdict
	Incident string
	Attempt  string
	// Token grows with every intent to restart this worker: a restarter that keeps the highest it has seen can tell a
	// command that a frozen monitor sends late.
	Token fence.Token
	// NotAfter is the end of Policy.LaunchWindow on the store's clock: whoever begins later must not.
	NotAfter time.Time
}

// Result is what became of an order.
type Result struct {
	// Outcome is Done, Broken or Unknown. Anything else is taken as Unknown.
	Outcome Outcome
	// Detail says it in one line.
	Detail string
}

// Restarter restarts a worker. Restart is called with a context that ends after Policy.CommandLimit; it returns then, or
// soon after. It says Broken only when it is certain that the worker was not touched. It may be called by any number of
// goroutines, for a different worker each.
type Restarter interface {
	Restart(ctx context.Context, o Order) Result
}

// RestartFunc is a function as a Restarter. It decides itself whether the order's token is the newest.
type RestartFunc func(ctx context.Context, o Order) Result

// Restart calls f.
func (f RestartFunc) Restart(ctx context.Context, o Order) Result { return f(ctx, o) }

// InTime asks the store's clock before it restarts: an order whose NotAfter is over, or that comes while the store does not
// tell the time, is Broken and not given on. It is for orders that come over a network. One that waits in the socket of a
// program that is frozen, with its whole machine perhaps, would else be run when both are thawed: no newer token has come to
// tell that it is an old one, and the worker is well again.
type InTime struct {
	Keys      *kvlocation.Shared
	Restarter Restarter
}

// Restart restarts by Restarter if the order is in time.
func (r InTime) Restart(ctx context.Context, o Order) Result {
	now, bound, err := r.Keys.Now(ctx)
	switch {
	case err != nil:
		return Result{Broken, clip("refused: nobody tells whether the order comes in time: "+err.Error(), maxDetail)}
	case now.Add(bound).After(o.NotAfter):
		return Result{Broken, fmt.Sprintf("refused: it had to begin by %s, and it is %s", stamp(o.NotAfter), stamp(now))}
	}
	return r.Restarter.Restart(ctx, o)
}

// maxOutput is how much of what a command writes is kept: the end.
const maxOutput = 8 << 10

// Command restarts by a program: docker restart, systemctl restart, ssh and the like. It checks no token, so there is a
// window: a monitor that is frozen between its last look and the start of the program starts it when it is thawed. The
// program gets what it needs to close the window itself, in FABRIC_TOKEN and FABRIC_NOT_AFTER (Unix time in milliseconds, on the
// store's clock), beside FABRIC_WORKER, FABRIC_VERDICT, FABRIC_INCIDENT and FABRIC_ATTEMPT.
type Command struct {
	// Args is the program and its arguments. "{worker}" in an argument becomes the worker's ID; no shell reads it, unless one
	// is named here or at the other end of an ssh: then take FABRIC_WORKER, for whoever may write a worker's record chooses
	// the ID. For one that begins with a hyphen nothing is run.
	Args []string
	// Env is added to the monitor's own environment, as NAME=value.
	Env []string
	// UnknownExits are the exit codes that don't tell whether the worker was restarted. Default 255, ssh's own for a
	// connection that broke. Every other code but 0 is taken for a failure that has not touched the worker, and is tried again
	// at the next check: a program that can fail after it has touched it must end with one of these.
	UnknownExits []int
}

// Restart runs the program and waits for it. One that does not end in time is killed with its process group, and nobody
// knows what it did.
func (c Command) Restart(ctx context.Context, o Order) Result {
	env := append(slices.Clone(c.Env),
		"FABRIC_WORKER="+o.Worker, "FABRIC_VERDICT="+string(o.Verdict), "FABRIC_INCIDENT="+o.Incident, "FABRIC_ATTEMPT="+o.Attempt,
		"FABRIC_TOKEN="+o.Token.String(), fmt.Sprintf("FABRIC_NOT_AFTER=%d", o.NotAfter.UnixMilli()))
	out, started, err := runFor(ctx, o.Worker, c.Args, env)
	unknown := c.UnknownExits
	if unknown == nil {
		unknown = []int{255}
	}
	var exit *exec.ExitError
	last := lastLine(out)
	switch {
	case err == nil:
		return Result{Done, clip("exit status 0"+last, maxDetail)}
	case !started:
		return Result{Broken, clip(fmt.Sprintf("the command could not be started: %v", err), maxDetail)}
	case ctx.Err() != nil:
		return Result{Unknown, clip(fmt.Sprintf("the command did not end in time and was killed%s", last), maxDetail)}
	case errors.As(err, &exit) && exit.Exited() && !slices.Contains(unknown, exit.ExitCode()):
		return Result{Broken, clip(fmt.Sprintf("%v%s", err, last), maxDetail)}
	}
	return Result{Unknown, clip(fmt.Sprintf("%v%s", err, last), maxDetail)}
}

// runFor runs a program for a worker. ssh, for one, takes an ID that begins with a hyphen for an option, and there are options
// that name a program to run.
func runFor(ctx context.Context, worker string, args, env []string) (out string, started bool, err error) {
	if strings.HasPrefix(worker, "-") {
		return "", false, fmt.Errorf("nothing is run for worker %.80q: a program would take its ID for an option", worker)
	}
	return runProgram(ctx, substitute(args, worker), env)
}

// substitute puts the worker's ID into the arguments.
func substitute(args []string, worker string) []string {
	out := make([]string, len(args))
	for i, a := range args {
		out[i] = strings.ReplaceAll(a, "{worker}", worker)
	}
	return out
}

// runProgram runs a program in a process group of its own and returns the end of what it wrote.
func runProgram(ctx context.Context, args, env []string) (out string, started bool, err error) {
	if len(args) == 0 {
		return "", false, errors.New("no program is given")
	}
	if err := ctx.Err(); err != nil {
		return "", false, err
	}
	var t tail
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = &t, &t
	cmd.WaitDelay = time.Second // a grandchild may keep the pipes open
	inOwnGroup(cmd)
	if err := cmd.Start(); err != nil {
		return "", false, err
	}
	err = cmd.Wait()
	if errors.Is(err, exec.ErrWaitDelay) && cmd.ProcessState.Success() {
		err = nil // it ended well, and left somebody behind who holds its output
	}
	return t.String(), true, err
}

// lastLine is the last line of an output, with a colon before it; empty when there is none.
func lastLine(out string) string {
	out = strings.TrimSpace(out)
	if out == "" {
		return ""
	}
	return ": " + strings.ToValidUTF8(out[strings.LastIndexByte(out, '\n')+1:], "?")
}
