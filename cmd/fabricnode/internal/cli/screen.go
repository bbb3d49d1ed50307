package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"
)

// isTerminal reports whether w is a character device, which is near enough to decide about line ends and progress.
func isTerminal(w io.Writer) bool {
	if o, ok := w.(*output); ok {
		w = o.w
	}
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// output is standard output or standard error. When its reader has gone away, as head(1) does when it has seen enough,
// the command is told to stop.
type output struct {
	w    io.Writer
	gone func()
}

func (o *output) Write(b []byte) (int, error) {
	n, err := o.w.Write(b)
	if errors.Is(err, syscall.EPIPE) {
		o.gone()
	}
	return n, err
}

const (
	// sparse is the time between two progress lines where there is no terminal.
	sparse = 2 * time.Second
	// screenWidth bounds the progress line: one that the terminal wraps cannot be taken back.
	screenWidth = 79
)

// screen is standard error: what a person reads while a command runs. On a terminal one progress line stands below
// everything else and is replaced; elsewhere one is written now and then, if it says something new. Its methods may be
// called from any goroutine.
type screen struct {
	w    io.Writer
	live bool

	mu    sync.Mutex
	width int // of the progress line that stands on the terminal
	last  time.Time
	line  string // the last progress line where there is no terminal
}

func newScreen(w io.Writer) *screen { return &screen{w: w, live: isTerminal(w)} }

// Write writes what stays: the log, messages.
func (s *screen) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wipe()
	return s.w.Write(b)
}

// tell writes a line that stays.
func (s *screen) tell(format string, args ...any) { fmt.Fprintf(s, format+"\n", args...) }

// progress replaces the progress line.
func (s *screen) progress(line string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.live {
		if line != s.line && time.Since(s.last) >= sparse {
			s.last, s.line = time.Now(), line
			fmt.Fprintln(s.w, line)
		}
		return
	}
	line = line[:min(len(line), screenWidth)]
	fmt.Fprintf(s.w, "\r%-*s", s.width, line)
	s.width = len(line)
}

// end takes the progress line away.
func (s *screen) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wipe()
}

func (s *screen) wipe() {
	if s.width > 0 {
		fmt.Fprintf(s.w, "\r%s\r", strings.Repeat(" ", s.width))
		s.width = 0
	}
}
