package policy

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
)

// guaranteesFile has one row per rule: | ID | rule | tests |. A test is named in a code span as
// package.TestName/ID, where package is the folder and ID the sub-test.
const guaranteesFile = "docs/guarantees.md"

// rules are the IDs of all rules.
var rules = strings.Fields(`
	FO-2.1 FO-2.2 FO-2.3 FO-2.4 FO-2.5 FO-2.6
	FO-3.1a FO-3.1b FO-3.1c FO-3.2a FO-3.2b FO-3.2c FO-3.2d
	FO-4.1 FO-4.2a FO-4.2b FO-4.2c FO-4.3 FO-4.4a FO-4.4b FO-4.4c FO-4.4d FO-4.4e FO-4.4f FO-4.5
	FO-5a FO-5b FO-5c FO-5d FO-5e FO-5f
	FO-6a FO-6b FO-6c FO-6d
	FO-7a FO-7b FO-7c FO-7d FO-7e
	FO-8
	FO-10.1 FO-10.2 FO-10.3 FO-10.4 FO-10.5 FO-10.6 FO-10.7 FO-10.8 FO-10.9 FO-10.10 FO-10.11 FO-10.12 FO-10.13 FO-10.14
	FO-10.15 FO-10.16
	SV-1 SV-2 SV-3 SV-4 SV-5 SV-6 SV-7 SV-8 SV-9 SV-10 SV-11 SV-12 SV-13 SV-14 SV-15 SV-16
	FE-1 FE-2 FE-3 FE-4 FE-5 FE-6 FE-7 FE-8 FE-9 FE-10 FE-11 FE-12 FE-13
	CA-1 CA-2 CA-3 CA-4 CA-5 CA-6 CA-7
`)

var (
	ruleRow  = regexp.MustCompile(`(?m)^\| *([A-Z]{2}-[0-9]+(?:\.[0-9]+)?[a-z]?) *\|(.*)$`)
	testName = regexp.MustCompile("`([a-z][a-z0-9_/-]*)\\.(Test[A-Za-z0-9_]*)(?:/([A-Za-z0-9_./-]+))?`")
)

// guarantees wants a row for each of the wanted rules, and that every row names tests that exist.
func guarantees(t *tree, wanted []string) []finding {
	var out []finding
	text := t.text[guaranteesFile]
	var seen []string
	for _, loc := range ruleRow.FindAllStringSubmatchIndex(text, -1) {
		id, row, line := text[loc[2]:loc[3]], text[loc[4]:loc[5]], lineOf(text, loc[0])
		seen = append(seen, id)
		names := testName.FindAllStringSubmatch(row, -1)
		if len(names) == 0 {
			out = append(out, finding{guaranteesFile, line, id + " names no test (`package.TestName/ID`)"})
		}
		for _, n := range names {
			if why := missingTest(t, n[1], n[2], n[3]); why != "" {
				out = append(out, finding{guaranteesFile, line, id + ": " + why})
			}
		}
	}
	for _, id := range wanted {
		if !slices.Contains(seen, id) {
			out = append(out, finding{guaranteesFile, 1, "no row for " + id})
		}
	}
	return out
}

// missingTest says what of the test is not in the tree: the function in the folder's test files, or the sub-test's
// literal name beside it. It returns "" when both are there.
func missingTest(t *tree, dir, fn, sub string) string {
	var haveFn, haveSub bool
	for _, f := range t.gos {
		if !f.test || path.Clean(f.dir) != dir {
			continue
		}
		text := t.text[f.path]
		haveFn = haveFn || strings.Contains(text, "func "+fn+"(t *testing.T)")
		haveSub = haveSub || strings.Contains(text, `"`+sub+`"`)
	}
	switch {
	case !haveFn:
		return fmt.Sprintf("package %s has no %s", dir, fn)
	case sub != "" && !haveSub:
		return fmt.Sprintf("no test file of %s names %q", dir, sub)
	}
	return ""
}
