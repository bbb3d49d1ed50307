package relocate

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// A script in testdata is the life of one side: lines with "> " are events, the line behind each says the state and the
// actions that follow ("handing: hand"). Lines with # are for people. The first line says which side it is.

// parseEvent reads an event as event.String writes it.
func parseEvent(s string) (event, error) {
	var e event
	words := strings.Fields(s)
	for k, n := range eventNames {
		if n == words[0] {
			e.kind = k
		}
	}
	if e.kind == 0 {
		return e, fmt.Errorf("no event %q", words[0])
	}
words:
	for _, w := range words[1:] {
		if name, v, ok := strings.Cut(w, "="); ok {
			n, err := strconv.ParseUint(v, 10, 64)
			if err != nil {
				return e, err
			}
			if name == "h" {
				e.h = n
			} else {
				e.revision = n
			}
			continue
		}
		for k, n := range verbNames {
			if n == w {
				e.verb = k
				continue words
			}
		}
		for k, n := range fateNames {
			if n == w {
				e.fate = k
				continue words
			}
		}
		for k, n := range viewNames {
			if n == w {
				e.view = k
				continue words
			}
		}
		return e, fmt.Errorf("no word %q", w)
	}
	if e.String() != s {
		return e, fmt.Errorf("%q is written %q", s, e)
	}
	return e, nil
}

// outcomeOf is what a script says of a step.
func outcomeOf(u unit, acts []action, err error) string {
	if err != nil {
		return "illegal"
	}
	var as []string
	for _, a := range acts {
		as = append(as, a.String())
	}
	return strings.TrimSpace(u.state.String() + ": " + strings.Join(as, ", "))
}

func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no scripts", err)
	}
	visited, seen := map[state]bool{}, map[string]bool{}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var u unit
			want, got, events := "", "", 0
			for n, line := range strings.Split(string(data), "\n") {
				line = strings.TrimSpace(line)
				switch {
				case line == "" || strings.HasPrefix(line, "#"):
				case line == "source":
					u = newSource()
				case line == "target":
					u = newTarget()
				case strings.HasPrefix(line, "> "):
					if want != got {
						t.Fatalf("line %d: nothing is said of the last event, which gives %q", n+1, got)
					}
					e, err := parseEvent(line[2:])
					if err != nil {
						t.Fatalf("line %d: %v", n+1, err)
					}
					next, acts, err := step(u, e)
					seen[e.String()] = true
					events++
					u, got, want = next, outcomeOf(next, acts, err), ""
					visited[u.state] = true
				default:
					if want = line; want != got {
						t.Fatalf("line %d says %q, the step gives %q", n+1, want, got)
					}
				}
			}
			if want != got || events == 0 {
				t.Fatalf("nothing is said of the last event, which gives %q", got)
			}
		})
	}
	for s, name := range stateNames {
		if !visited[s] && s != srcReserving && s != dstReserved {
			t.Errorf("no script comes to the state %q", name)
		}
	}
	for k, name := range eventNames {
		found := false
		for s := range seen {
			if w, _, _ := strings.Cut(s, " "); w == name {
				found = true
			}
		}
		if !found {
			t.Errorf("no script has the event %q (%d)", name, k)
		}
	}
}
