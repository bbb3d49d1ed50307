package cli

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
)

// One missing server of the cluster is one line, and one when it is back.
func TestServerLogOfAMissingServer(t *testing.T) {
	const gone = "Error trying to connect to route (attempt 14): dial tcp 127.0.0.1:6223: connect: connection refused"
	const back = "127.0.0.1:6223 - rid:17 - Route connection created (127.0.0.1:6223)"
	var out bytes.Buffer
	log, err := newLogger(&out, "info", "console")
	if err != nil {
		t.Fatal(err)
	}
	s := newServerLog(log)
	s.line(slog.LevelError, gone) // while the cluster forms
	if out.Len() > 0 {
		t.Errorf("while it forms: %s", &out)
	}
	s.formed()
	s.line(slog.LevelInfo, back) // nobody was missing
	for range 3 {
		s.line(slog.LevelError, gone)
	}
	s.line(slog.LevelInfo, back)
	s.line(slog.LevelInfo, back)
	s.line(slog.LevelError, gone)
	s.line(slog.LevelError, "another thing")
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	for i, want := range []string{"cannot be reached", "is back", "cannot be reached", "another thing"} {
		if i >= len(lines) || !strings.Contains(lines[i], want) {
			t.Fatalf("line %d must say %q:\n%s", i, want, &out)
		}
	}
	if len(lines) != 4 || !strings.Contains(lines[0], "WARN") || !strings.Contains(lines[0], "127.0.0.1:6223") {
		t.Errorf("got:\n%s", &out)
	}
}
