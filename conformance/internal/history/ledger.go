package history

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"

	"natsfabric/conformance/internal/job"
)

// Ledger is what one member noted, over all its process runs.
type Ledger struct {
	RID string
	// Killed is true when some process run of the member was killed: what it had accepted may not have run.
	Killed bool
	// Ran counts how often each operation began to run, and Ended how those ended whose handler returned.
	Ran   map[string]int
	Ended map[string]string
	// Lapsed counts the requests that the member had accepted and whose turn the end of its lease took, Expired those
	// whose deadline passed before it.
	Lapsed, Expired int
}

// ReadLedger reads the file of a member. Each line is one write, which the kernel finishes even when the process is
// killed; so a last line without its end is one that is just being written, and not read yet.
func ReadLedger(rid, path string) (Ledger, error) {
	l := Ledger{RID: rid, Ran: map[string]int{}, Ended: map[string]string{}}
	text, err := os.ReadFile(path)
	if err != nil {
		return l, err
	}
	whole := string(text[:bytes.LastIndexByte(text, '\n')+1])
	for line := range strings.Lines(whole) {
		line = strings.TrimSuffix(line, "\n")
		verb, rest, _ := strings.Cut(line, "\t")
		switch verb {
		case job.LineRan:
			l.Ran[rest]++
		case job.LineEnd:
			id, how, _ := strings.Cut(rest, "\t")
			if l.Ended[id], err = strconv.Unquote(how); err != nil {
				return l, fmt.Errorf("%s: line %q: %w", path, line, err)
			}
		case job.LineLapsed, job.LineExpired:
			n, err := strconv.Atoi(rest)
			if err != nil {
				return l, fmt.Errorf("%s: line %q: %w", path, line, err)
			}
			if verb == job.LineLapsed {
				l.Lapsed += n
			} else {
				l.Expired += n
			}
		default:
			return l, fmt.Errorf("%s: line %q is of no known kind", path, line)
		}
	}
	return l, nil
}
