package device

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"natsfabric/fence"
)

// The labels by which Process knows a process: SelfLabels writes them.
const (
	LabelMachine = "machine" // the machine's ID, its host name and its name space of process IDs
	LabelBoot    = "boot"    // the ID of its present boot
	LabelPID     = "pid"
	LabelStart   = "pid_start" // when the process was started, in ticks since the boot: a process ID that is used again differs
)

// SelfLabels returns the labels of the calling process, for ElectionConfig.Labels. An error says that the system does not
// tell.
func SelfLabels() (map[string]string, error) { return ProcessLabels(os.Getpid()) }

// ProcessLabels returns the labels of a process of this machine.
func ProcessLabels(pid int) (map[string]string, error) {
	machine, boot, err := identity()
	if err != nil {
		return nil, err
	}
	start, _, err := processState(pid)
	if err != nil {
		return nil, err
	}
	return map[string]string{LabelMachine: machine, LabelBoot: boot, LabelPID: strconv.Itoa(pid), LabelStart: start}, nil
}

// Process fences a process of the machine that it runs on: it kills it, and sees that it is gone. A frozen process dies as
// well. It knows the process by the target's labels (SelfLabels), so a process ID that was used again is not hit. The
// process's children are not its business. It works on Linux; elsewhere all its answers are Unknown.
type Process struct {
	name  string
	grace time.Duration
}

// NewProcess returns the device. grace is how long the process may take to end by SIGTERM before SIGKILL; 0 means to kill
// at once, which is right for what is fenced because it does not answer.
func NewProcess(name string, grace time.Duration) *Process {
	return &Process{name: name, grace: grace}
}

// Name returns the device's name.
func (p *Process) Name() string { return p.name }

// Fence kills the process and waits until it is gone.
func (p *Process) Fence(ctx context.Context, t fence.Target) fence.Report {
	r, pid := p.look(t)
	if r.Answer != fence.NotFenced {
		return r
	}
	// A handle first, then the look: the handle stays with this process even if its ID is used again.
	proc, err := os.FindProcess(pid)
	if err != nil {
		return fence.Report{Detail: err.Error()}
	}
	defer proc.Release() //nolint:errcheck // nothing depends on it
	if r, _ = p.look(t); r.Answer != fence.NotFenced {
		return r
	}
	if p.grace > 0 {
		if err := proc.Signal(terminate); err != nil {
			return fence.Report{Detail: fmt.Sprintf("process %d: %v", pid, err)}
		}
		if r := p.await(ctx, t, p.grace); r.Answer == fence.Fenced {
			return r
		}
	}
	if err := proc.Kill(); err != nil {
		if r, _ = p.look(t); r.Answer == fence.Fenced {
			return r
		}
		return fence.Report{Detail: fmt.Sprintf("process %d: %v", pid, err)}
	}
	return p.await(ctx, t, fence.MaxDeviceTimeout)
}

// Check looks whether the process is gone.
func (p *Process) Check(_ context.Context, t fence.Target) fence.Report {
	r, _ := p.look(t)
	return r
}

// await looks until the process is gone, d has passed or ctx ends.
func (p *Process) await(ctx context.Context, t fence.Target, d time.Duration) fence.Report {
	timer := time.NewTimer(d)
	defer timer.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		r, _ := p.look(t)
		if r.Answer != fence.NotFenced {
			return r
		}
		select {
		case <-ctx.Done():
			return r
		case <-timer.C:
			return r
		case <-tick.C:
		}
	}
}

// look says what has become of the process.
func (p *Process) look(t fence.Target) (fence.Report, int) {
	pid, err := strconv.Atoi(t.Labels[LabelPID])
	if err != nil || pid <= 1 || t.Labels[LabelStart] == "" || t.Labels[LabelMachine] == "" {
		return fence.Report{Detail: fmt.Sprintf("the labels of node %q name no process: %v", t.Node, t.Labels)}, 0
	}
	machine, boot, err := identity()
	switch {
	case err != nil:
		return fence.Report{Detail: err.Error()}, 0
	case machine != t.Labels[LabelMachine]:
		return fence.Report{Detail: fmt.Sprintf("it ran on machine %s, this one is %s", t.Labels[LabelMachine], machine)}, 0
	case boot != t.Labels[LabelBoot]:
		return fence.Report{Answer: fence.Fenced, Detail: "the machine was started anew since"}, 0
	}
	start, alive, err := processState(pid)
	switch {
	case os.IsNotExist(err):
		return fence.Report{Answer: fence.Fenced, Detail: fmt.Sprintf("there is no process %d", pid)}, pid
	case err != nil:
		return fence.Report{Detail: err.Error()}, pid
	case start != t.Labels[LabelStart]:
		return fence.Report{Answer: fence.Fenced, Detail: fmt.Sprintf("process %d is another one, started later", pid)}, pid
	case !alive:
		return fence.Report{Answer: fence.Fenced, Detail: fmt.Sprintf("process %d has ended", pid)}, pid
	}
	return fence.Report{Answer: fence.NotFenced, Detail: fmt.Sprintf("process %d is there", pid)}, pid
}
