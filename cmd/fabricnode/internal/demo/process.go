package demo

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"
)

// process is a child process of the demo: one node.
type process struct {
	rid   string
	cmd   *exec.Cmd
	alive *os.File // the demo's end of the pipe whose closing ends the child
	log   string   // file of the child's log

	lifecycle uint64 // number of the child's run of its RID

	waited chan struct{} // closed when the child has ended
	err    error         // how; read after waited

	mu    sync.Mutex
	state string // for people
}

// startProcess starts this program again with args, and returns once it said that it serves.
func startProcess(ctx context.Context, rid, dir string, args ...string) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &process{rid: rid, log: filepath.Join(dir, rid+".log"), waited: make(chan struct{}), state: "starting"}
	logFile, err := os.Create(p.log)
	if err != nil {
		return nil, err
	}
	defer logFile.Close()
	childEnd, ourEnd, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer childEnd.Close()
	p.alive = ourEnd
	p.cmd = exec.Command(self, args...)
	p.cmd.Env = withoutSettings(os.Environ())
	p.cmd.Stderr = logFile
	p.cmd.ExtraFiles = []*os.File{childEnd} // file descriptor 3
	p.cmd.SysProcAttr = ownGroup()
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		ourEnd.Close()
		return nil, err
	}
	started := make(chan error)
	go func() {
		// The kernel ends the child when the thread that started it ends, so that thread has to stay.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			<-p.waited
		}
	}()
	if err := <-started; err != nil {
		ourEnd.Close()
		return nil, err
	}
	served := make(chan error, 1)
	go func() {
		var err error
		p.lifecycle, err = awaitServing(bufio.NewReader(out))
		served <- err
		p.err = p.cmd.Wait()
		close(p.waited)
	}()
	select {
	case err = <-served:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		p.kill()
		return nil, fmt.Errorf("node %s did not start: %w%s", rid, err, p.logTail())
	}
	p.set("ok")
	return p, nil
}

// awaitServing reads the line that a node writes when it serves, and returns the node's lifecycle.
func awaitServing(out *bufio.Reader) (lifecycle uint64, err error) {
	line, err := out.ReadBytes('\n')
	if err != nil {
		return 0, errors.New("it ended")
	}
	var ev nodeServing
	if err := json.Unmarshal(line, &ev); err != nil || ev.Event != "serving" {
		return 0, fmt.Errorf("it said %q", bytes.TrimSpace(line))
	}
	return ev.Lifecycle, nil
}

// withoutSettings keeps the demo's own settings from becoming its nodes'.
func withoutSettings(env []string) []string {
	var out []string
	for _, e := range env {
		if !strings.HasPrefix(e, "FABRIC_") {
			out = append(out, e)
		}
	}
	return out
}

func (p *process) set(state string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state = state
}

func (p *process) status() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state
}

// logTail returns the end of the child's log, for an error message.
func (p *process) logTail() string {
	text, err := os.ReadFile(p.log)
	if err != nil || len(text) == 0 {
		return ""
	}
	const tail = 2000
	return "\n" + string(bytes.TrimSpace(text[max(0, len(text)-tail):]))
}

// kill ends the child at once, frozen or not, and waits for it. It may be called any number of times.
func (p *process) kill() {
	p.cmd.Process.Kill()
	p.alive.Close()
	<-p.waited
}

// stop ends the child in order, and after a while not in order. A child that has ended is left alone.
func (p *process) stop() error {
	p.alive.Close()
	select {
	case <-p.waited:
		if p.err != nil {
			return fmt.Errorf("node %s did not end in order: %w%s", p.rid, p.err, p.logTail())
		}
		return nil
	case <-time.After(2 * nodeStopTime):
		p.kill()
		return fmt.Errorf("node %s did not end within %v of being told to", p.rid, 2*nodeStopTime)
	}
}
