package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"natsfabric/cmd/fabricnode/internal/demo"
	"natsfabric/examples/data"
)

type demoCmd struct {
	Input       string `placeholder:"FILE" help:"Access log in combined format to work through; - reads standard input. Default: the one that is part of this program."`
	Concurrency int    `default:"64" help:"Lines under way at the same time."`
	Rate        int    `placeholder:"N" help:"Lines a second. Default 1000, or as many as send all lines in 10 s."`
}

func (c *demoCmd) Run(a *app) error {
	lines, err := c.lines(a)
	if err != nil {
		return withCode(ExitUsage, err)
	}
	p := &progressLine{w: a.stderr, live: isTerminal(a.stderr)}
	res, err := demo.Run(a.sig.ctx, demo.Options{
		Lines: lines, Concurrency: c.Concurrency, Rate: c.Rate, Tell: p.tell, Progress: p.progress,
		Logger: a.log, Abort: a.sig.abortWith,
	})
	p.end()
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
		return demo.ReadLines(a.stdin)
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

// sparse is the time between two progress lines that are no terminal's.
const sparse = 2 * time.Second

// progressLine writes a progress line over and over on a terminal, and now and then elsewhere. Its methods may be
// called from any goroutine.
type progressLine struct {
	w    io.Writer
	live bool

	mu    sync.Mutex
	width int // of the progress line that stands on the terminal
	last  time.Time
}

// progress replaces the progress line.
func (p *progressLine) progress(line string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.live {
		if time.Since(p.last) >= sparse {
			p.last = time.Now()
			fmt.Fprintln(p.w, line)
		}
		return
	}
	fmt.Fprintf(p.w, "\r%-*s", p.width, line)
	p.width = len(line)
}

// tell writes a line that stays.
func (p *progressLine) tell(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wipe()
	fmt.Fprintf(p.w, format+"\n", args...)
}

// end takes the progress line away.
func (p *progressLine) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.wipe()
}

func (p *progressLine) wipe() {
	if p.width > 0 {
		fmt.Fprintf(p.w, "\r%s\r", strings.Repeat(" ", p.width))
		p.width = 0
	}
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
