package cli

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

func TestScreenOnATerminal(t *testing.T) {
	var out bytes.Buffer
	s := &screen{w: &out, live: true}
	s.progress(strings.Repeat("x", 200))
	s.progress("short")
	s.tell("stays %d", 1)
	s.progress("last")
	s.end()
	s.end()
	long := "\r" + strings.Repeat("x", screenWidth)
	want := long + "\rshort" + strings.Repeat(" ", screenWidth-5) + "\r     \r" + "stays 1\n" + "\rlast" + "\r    \r"
	if out.String() != want {
		t.Errorf("got  %q\nwant %q", out.String(), want)
	}
}

func TestScreenElsewhere(t *testing.T) {
	var out bytes.Buffer
	s := newScreen(&out)
	s.progress("one")
	s.progress("two, too soon after the first")
	s.tell("stays")
	s.last = time.Time{}
	s.progress("one") // which stands there already
	s.progress("three")
	s.end()
	if out.String() != "one\nstays\nthree\n" {
		t.Errorf("got %q", out.String())
	}
}
