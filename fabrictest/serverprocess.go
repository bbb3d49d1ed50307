package fabrictest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"natsfabric/fabrictest/internal/serverproc"
)

// statusTimeout bounds the wait for a word from a server process, which may be
// frozen.
const statusTimeout = 5 * time.Second

// serverProcess is a server in a process of its own, see package serverproc.
type serverProcess struct {
	*Process
	requests io.Writer
	asked    int
}

func startServerProcess(t testing.TB, spec serverproc.Spec, ahead time.Duration) (*serverProcess, error) {
	t.Helper()
	text, err := json.Marshal(spec)
	if err != nil {
		return nil, err
	}
	var flags []string
	if ahead != 0 {
		flags = clockFlags(t)
	}
	cmd := exec.Command(BuildBinary(t, "natsfabric/fabrictest/internal/serverproc/nats-testserver", flags...))
	cmd.Env = append(os.Environ(),
		serverproc.SpecVariable+"="+string(text),
		fmt.Sprintf("%s=%d", clockVariable, ahead))
	requests, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	p := &serverProcess{Process: StartProcess(t, cmd), requests: requests}
	line, err := p.waitLine(readyTimeout, func(line string) bool {
		return line == "ready" || strings.HasPrefix(line, "failed ")
	})
	if err != nil {
		return nil, err
	}
	if why, failed := strings.CutPrefix(line, "failed "); failed {
		return nil, errors.New(why)
	}
	return p, nil
}

func (p *serverProcess) status() (serverproc.Status, error) {
	var st serverproc.Status
	p.asked++
	question := fmt.Sprintf("status %d", p.asked)
	if _, err := fmt.Fprintln(p.requests, question); err != nil {
		return st, err
	}
	line, err := p.waitLine(statusTimeout, func(line string) bool {
		return strings.HasPrefix(line, question+" ")
	})
	if err != nil {
		return st, err
	}
	err = json.Unmarshal([]byte(strings.TrimPrefix(line, question+" ")), &st)
	return st, err
}
