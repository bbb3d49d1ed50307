package policy

import (
	"fmt"
	"path"
	"regexp"
	"strings"
)

// adrDir holds the decision records: NNNN-title.md, each of a page, and README.md as their index.
const adrDir = "docs/adr"

// adrParts are the headings of a decision record, in order.
var adrParts = []string{"## Revisions", "## Context", "## Decision", "## Consequences"}

var adrName = regexp.MustCompile(`^docs/adr/([0-9]{4})-[a-z0-9-]+\.md$`)

// records wants each decision record to have its parts in order, a filled revision table and a row in the index, and
// the numbers to have no gap.
func records(t *tree) []finding {
	var out []finding
	index := t.text[adrDir+"/README.md"]
	next := 0
	for _, p := range t.files(adrName.MatchString) {
		text := t.text[p]
		n := adrName.FindStringSubmatch(p)[1]
		if want := fmt.Sprintf("%04d", next); n != want {
			out = append(out, finding{p, 1, "the next number is " + want})
		}
		next++
		if !strings.HasPrefix(text, "# "+n+" ") {
			out = append(out, finding{p, 1, "the title must begin with its number: # " + n + " ..."})
		}
		from := 0
		for _, part := range adrParts {
			i := strings.Index(text[from:], "\n"+part+"\n")
			if i < 0 {
				out = append(out, finding{p, 1, "this part is missing or out of order: " + part})
				break
			}
			from += i + 1
		}
		if !regexp.MustCompile(`(?m)^\| *1 *\| *\d{4}-\d{2}-\d{2} *\|`).MatchString(text) {
			out = append(out, finding{p, 1, "the revision table has no row | 1 | date | ..."})
		}
		if !strings.Contains(index, "("+path.Base(p)+")") {
			out = append(out, finding{adrDir + "/README.md", 1, "the index has no link to " + path.Base(p)})
		}
	}
	return out
}
