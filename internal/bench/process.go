package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"sync"
	"time"
)

// process is a child process, seen from its parent. Its methods are called by one goroutine.
type process struct {
	name      string
	cmd       *exec.Cmd
	in        io.WriteCloser
	responses chan response // closed when the child's output ends
	stderr    tail
}

// startProcess starts a child in the named role and waits for its operation "start", whose answer it decodes into
// result.
func startProcess(ctx context.Context, command []string, name string, start, result any) (*process, error) {
	p := &process{name: name, responses: make(chan response)}
	p.cmd = exec.Command(command[0], append(command[1:len(command):len(command)], name)...)
	p.cmd.Stderr = &p.stderr
	ownGroup(p.cmd)
	in, err := p.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	p.in = in
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("process %s: %w", name, err)
	}
	go func() {
		defer close(p.responses)
		for dec := json.NewDecoder(out); ; {
			var r response
			if dec.Decode(&r) != nil {
				return
			}
			p.responses <- r
		}
	}()
	if err := p.call(ctx, "start", start, result); err != nil {
		return nil, errors.Join(err, p.stop())
	}
	return p, nil
}

// call has the child run one operation, and decodes its answer into result if that is not nil. After an error of ctx
// the child can only be stopped.
func (p *process) call(ctx context.Context, op string, arguments, result any) error {
	a, err := json.Marshal(arguments)
	if err != nil {
		return err
	}
	if err := json.NewEncoder(p.in).Encode(request{Op: op, Args: a}); err != nil {
		return p.failed(op, err)
	}
	select {
	case <-ctx.Done():
		return p.failed(op, context.Cause(ctx))
	case r, ok := <-p.responses:
		switch {
		case !ok:
			return p.failed(op, errors.New("it ended"))
		case r.Error != "":
			return p.failed(op, errors.New(r.Error))
		case result == nil:
			return nil
		}
		return json.Unmarshal(r.Result, result)
	}
}

func (p *process) failed(op string, err error) error {
	if text := p.stderr.String(); text != "" {
		return fmt.Errorf("process %s: %s: %w; it wrote: %s", p.name, op, err, text)
	}
	return fmt.Errorf("process %s: %s: %w", p.name, op, err)
}

// stop ends the child and waits for it. One that does not end by itself is killed, with its process group.
func (p *process) stop() error {
	kill := time.AfterFunc(2*closeTimeout, func() { killGroup(p.cmd) })
	defer kill.Stop()
	p.in.Close()
	for range p.responses { // an answer that nobody waits for any more
	}
	if err := p.cmd.Wait(); err != nil {
		return p.failed("stop", err)
	}
	return nil
}

// tail keeps the end of what is written to it.
type tail struct {
	mu   sync.Mutex
	text []byte
}

// tailSize is how much of a child's standard error is kept.
const tailSize = 4 << 10

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, b...)
	if n := len(t.text) - tailSize; n > 0 {
		t.text = append(t.text[:0], t.text[n:]...)
	}
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.text)
}
