package fabrictest

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"
)

// maxOutput bounds what is kept of a child program's output: the latest bytes.
const maxOutput = 4 << 20

// killTimeout bounds the wait for a killed program to be gone.
const killTimeout = 10 * time.Second

// Process is a child program of a test.
type Process struct {
	cmd  *exec.Cmd
	name string
	done chan struct{}

	mu     sync.Mutex
	all    output        // standard output and standard error
	stdout output        // standard output alone
	grown  chan struct{} // closed when there is more output
}

// output keeps the latest bytes written to it.
type output struct{ kept []byte }

func (o *output) add(b []byte) {
	o.kept = append(o.kept, b...)
	if len(o.kept) > maxOutput {
		o.kept = append([]byte(nil), o.kept[len(o.kept)-maxOutput/2:]...)
	}
}

// StartProcess starts a program, exec.Command(name, args...) for example, in a
// process group of its own. Its output is captured; a Stdout or Stderr that
// cmd already has gets it as well. When the test ends, the program and its
// group are killed; if the test has failed, the end of its output is logged.
func StartProcess(t testing.TB, cmd *exec.Cmd) *Process {
	t.Helper()
	p := &Process{
		cmd:   cmd,
		name:  cmd.Path,
		done:  make(chan struct{}),
		grown: make(chan struct{}),
	}
	cmd.Stdout = p.capture(cmd.Stdout, &p.stdout)
	cmd.Stderr = p.capture(cmd.Stderr, nil)
	cmd.WaitDelay = killTimeout // a grandchild may keep the pipes open
	ownGroup(cmd)
	if err := cmd.Start(); err != nil {
		t.Fatalf("fabrictest: start %s: %v", p.name, err)
	}
	go func() {
		_ = cmd.Wait() // the state says how it ended
		close(p.done)
	}()
	t.Cleanup(func() {
		killGroup(cmd.Process)
		p.awaitEnd()
		if t.Failed() {
			out := p.Output()
			t.Logf("output of %s:\n%s", p.name, out[max(0, len(out)-16<<10):])
		}
	})
	return p
}

// capture returns a writer that keeps output, for only one stream as well if
// only is not nil.
func (p *Process) capture(also io.Writer, only *output) io.Writer {
	w := writerFunc(func(b []byte) (int, error) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.all.add(b)
		if only != nil {
			only.add(b)
		}
		close(p.grown)
		p.grown = make(chan struct{})
		return len(b), nil
	})
	if also == nil {
		return w
	}
	return io.MultiWriter(also, w)
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// PID is the process ID.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Output is what the program has written to standard output and standard error
// so far: the latest few MiB.
func (p *Process) Output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return string(p.all.kept)
}

// Stdout is what the program has written to standard output alone.
func (p *Process) Stdout() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return string(p.stdout.kept)
}

// WaitOutput waits until the program has written a line that contains the text,
// and returns the line. It fails the test when the program ends without it or
// a minute has passed.
func (p *Process) WaitOutput(t testing.TB, text string) string {
	t.Helper()
	line, err := p.waitLine(readyTimeout, func(line string) bool { return strings.Contains(line, text) })
	if err != nil {
		t.Fatalf("fabrictest: %s did not write %q: %v; its output:\n%s", p.name, text, err, p.Output())
	}
	return line
}

// waitLine waits for a complete line of output.
func (p *Process) waitLine(within time.Duration, accept func(string) bool) (string, error) {
	timer := time.NewTimer(within)
	defer timer.Stop()
	find := func() (line string, ok bool, grown chan struct{}) {
		p.mu.Lock()
		defer p.mu.Unlock()
		for line := range strings.Lines(string(p.all.kept)) {
			if text, complete := strings.CutSuffix(line, "\n"); complete && accept(text) {
				return text, true, nil
			}
		}
		return "", false, p.grown
	}
	for {
		line, ok, grown := find()
		if ok {
			return line, nil
		}
		select {
		case <-grown:
		case <-p.done:
			if line, ok, _ := find(); ok {
				return line, nil
			}
			return "", fmt.Errorf("it has ended: %v", p.cmd.ProcessState)
		case <-timer.C:
			return "", fmt.Errorf("not within %v", within)
		}
	}
}

// Done is closed when the program has ended and its output is complete.
func (p *Process) Done() <-chan struct{} { return p.done }

// Wait waits until the program has ended and returns how. It fails the test
// when that takes more than a minute.
func (p *Process) Wait(t testing.TB) *os.ProcessState {
	t.Helper()
	select {
	case <-p.done:
		return p.cmd.ProcessState
	case <-time.After(readyTimeout):
		t.Fatalf("fabrictest: %s has not ended within %v; its output:\n%s", p.name, readyTimeout, p.Output())
		return nil
	}
}

// Signal sends a signal, os.Interrupt for example, to the program. A program
// that has ended gets none.
func (p *Process) Signal(t testing.TB, sig os.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Fatalf("fabrictest: signal %v to %s: %v", sig, p.name, err)
	}
}

// Kill ends the program at once, as kill -9 does, and waits until it is gone.
// Its children live on until the test ends.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill()
	p.awaitEnd()
}

func (p *Process) awaitEnd() {
	select {
	case <-p.done:
	case <-time.After(2 * killTimeout):
	}
}
