package policy

import (
	"os"
	"strings"
	"testing"
	"testing/fstest"

	"go.uber.org/goleak"
)

// root is the repository's folder as seen from this package.
const root = "../.."

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func repository(t *testing.T) *tree {
	t.Helper()
	tr, err := load(os.DirFS(root))
	if err != nil {
		t.Fatal(err)
	}
	if len(tr.gos) == 0 {
		t.Fatal("no Go file was found: the check would prove nothing")
	}
	return tr
}

// sample returns a tree of the given files.
func sample(t *testing.T, files map[string]string) *tree {
	t.Helper()
	fsys := fstest.MapFS{}
	for p, text := range files {
		fsys[p] = &fstest.MapFile{Data: []byte(text)}
	}
	tr, err := load(fsys)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// checks are the rules that every file must keep, each with a sample that breaks it once and the text of the finding,
// and a sample that comes close without breaking it.
var checks = []struct {
	name  string
	check func(*tree) []finding
	bad   map[string]string
	want  string
	good  map[string]string
}{
	{
		name: "a package has a comment", check: packageDocs,
		bad:  map[string]string{"a/a.go": "package a\n", "a/a_test.go": "// Package a is a test's.\npackage a\n"},
		want: "a:1: the package has no package comment",
		good: map[string]string{"a/doc.go": "// Package a is.\npackage a\n", "a/b.go": "package a\n", "b/b_test.go": "package b\n"},
	},
	{
		name: "the package comment stands in doc.go", check: packageDocs,
		bad:  map[string]string{"a/a.go": "// Package a is.\npackage a\n", "a/b.go": "package a\n"},
		want: "a/a.go:2: the package comment belongs into doc.go",
		good: map[string]string{"cmd/a/main.go": "// Command a is.\npackage main\n", "cmd/a/b.go": "package main\n", "b/b.go": "// Package b is.\npackage b\n"},
	},
	{
		name: "the package comment names the package", check: packageDocs,
		bad:  map[string]string{"a/doc.go": "// Something.\npackage a\n"},
		want: `a/doc.go:2: the package comment must begin with "Package a "`,
	},
	{
		name: "an exported function has a comment", check: docComments,
		bad:  map[string]string{"a/a.go": "package a\n\nfunc F() {}\n"},
		want: "a/a.go:3: F has no doc comment",
		good: map[string]string{"a/a.go": "package a\n\n// F is.\nfunc F() {}\n\nfunc f() {}\n\ntype t int\n\nfunc (t) M() {}\n", "a/a_test.go": "package a\n\nfunc G() {}\n"},
	},
	{
		name: "an exported method has a comment", check: docComments,
		bad:  map[string]string{"a/a.go": "package a\n\n// T is.\ntype T[X any] struct{}\n\nfunc (t *T[X]) M() {}\n\nfunc (t *T[X]) String() string { return \"\" }\n"},
		want: "a/a.go:6: M has no doc comment",
	},
	{
		name: "an exported type has a comment", check: docComments,
		bad:  map[string]string{"a/a.go": "package a\n\n// Types.\ntype (\n\tT int\n)\n"},
		want: "a/a.go:5: T has no doc comment",
	},
	{
		name: "an exported constant has a comment", check: docComments,
		bad:  map[string]string{"a/a.go": "package a\n\nconst C = 1\n"},
		want: "a/a.go:3: C has no doc comment",
		good: map[string]string{"a/a.go": "package a\n\n// All.\nconst (\n\tC = 1\n\tD = 2\n)\n"},
	},
	{
		name: "gofmt", check: formatting,
		bad:  map[string]string{"a/a.go": "package a\nfunc  f() {}\n"},
		want: "a/a.go:1: gofmt would change it",
		good: map[string]string{"a/a.go": "package a\n\nfunc f() {}\n"},
	},
	{
		name: "file length", check: fileLength,
		bad:  map[string]string{"a/a.go": "package a\n" + strings.Repeat("\n", maxLines)},
		want: "a/a.go:601: 601 lines, 600 are allowed",
		good: map[string]string{"a/a.go": "package a\n" + strings.Repeat("\n", maxLines-1)},
	},
	{
		name: "promises in code", check: words,
		bad:  map[string]string{"a/a.go": "package a\n\n// TO" + "DO: more\n"},
		want: `a/a.go:3: promises something for later: "TO` + `DO"`,
		good: map[string]string{"a/a.go": "package a\n\n// a stubborn thing\nvar _ = `place" + "holder:\"URL\"`\n"},
	},
	{
		name: "promises in scripts", check: words,
		bad:  map[string]string{"scripts/x": "echo not " + "implemented\n"},
		want: "scripts/x:1: promises something for later",
	},
	{
		name: "machine folders", check: machines,
		bad:  map[string]string{"scripts/x": "cd /wo" + "rk/main\n"},
		want: "scripts/x:1: names a machine's folder",
		good: map[string]string{"go.sum": "proxy.go" + "lang.org\n", "a.md": "./work\n"},
	},
	{
		name: "no fixed sleep in a test", check: sleeps,
		bad:  map[string]string{"a/a_test.go": "package a\n\nimport \"time\"\n\nfunc f() { time.Sleep(1) }\n"},
		want: "a/a_test.go:5: a fixed sleep in a test",
		good: map[string]string{"a/a.go": "package a\n\nimport \"time\"\n\nfunc f() { time.Sleep(1) }\n"},
	},
	{
		name: "leak checks", check: leakChecks,
		bad:  map[string]string{"a/a_test.go": "package a\n", "b/b_test.go": "package b\n\nfunc TestMain() { goleak.VerifyTestMain(m) }\n"},
		want: "a:1: the tests have no TestMain with goleak.VerifyTestMain or fabrictest.VerifyTestMain",
	},
	{
		name: "imports go down", check: imports,
		bad:  map[string]string{"kvlocation/a.go": "package kvlocation\n\nimport _ \"natsfabric/channels\"\n"},
		want: "kvlocation/a.go:3: kvlocation must not import channels",
		good: map[string]string{"channels/a.go": "package channels\n\nimport _ \"natsfabric/kvlocation\"\n"},
	},
	{
		name: "imports go down in tests, too", check: imports,
		bad:  map[string]string{"kvlocation/a_test.go": "package kvlocation_test\n\nimport _ \"natsfabric/fabric\"\n"},
		want: "kvlocation/a_test.go:3: kvlocation must not import fabric",
	},
	{
		name: "the test harness is for tests", check: imports,
		bad:  map[string]string{"fabric/a.go": "package fabric\n\nimport _ \"natsfabric/fabrictest\"\n"},
		want: "fabric/a.go:3: fabrictest is for commands and tests only",
		good: map[string]string{"fabric/a_test.go": "package fabric\n\nimport _ \"natsfabric/fabrictest\"\n", "cmd/x/a.go": "package main\n\nimport _ \"natsfabric/internal/embedded\"\n"},
	},
	{
		name: "the test harness stands below", check: imports,
		bad:  map[string]string{"fabrictest/a.go": "package fabrictest\n\nimport _ \"natsfabric/kvlocation\"\n"},
		want: "fabrictest/a.go:3: fabrictest must not import kvlocation",
		good: map[string]string{"fabrictest/a.go": "package fabrictest\n\nimport _ \"natsfabric/internal/embedded\"\n"},
	},
	{
		name: "a package has a place", check: imports,
		bad:  map[string]string{"extra/a.go": "package extra\n\nimport _ \"natsfabric/outcome\"\n"},
		want: "extra/a.go:3: package extra has no place",
	},
	{
		name: "the server stays out of the library", check: imports,
		bad:  map[string]string{"fabric/a.go": "package fabric\n\nimport _ \"github.com/nats-io/nats-server/v2/server\"\n"},
		want: "fabric/a.go:3: github.com/nats-io/nats-server/v2/server is allowed only in internal/embedded, fabrictest, cmd, test: ",
		good: map[string]string{"fabric/a_test.go": "package fabric\n\nimport _ \"github.com/nats-io/nats-server/v2/server\"\n"},
	},
	{
		name: "command-only modules", check: imports,
		bad:  map[string]string{"fabric/a.go": "package fabric\n\nimport _ \"github.com/alecthomas/kong\"\n"},
		want: "fabric/a.go:3: github.com/alecthomas/kong is allowed only in cmd",
	},
	{
		name: "test-only modules", check: imports,
		bad:  map[string]string{"fabric/a.go": "package fabric\n\nimport _ \"go.uber.org/goleak\"\n"},
		want: "fabric/a.go:3: go.uber.org/goleak is allowed only in fabrictest, test",
	},
	{
		name: "a new module needs a row", check: imports,
		bad:  map[string]string{"fabric/a.go": "package fabric\n\nimport _ \"example.org/x\"\n"},
		want: "fabric/a.go:3: example.org/x belongs to no module",
	},
	{
		name: "links lead to files", check: links,
		bad:  map[string]string{"docs/a.md": "one\n[x](b.md)\n"},
		want: "docs/a.md:2: the link leads nowhere: b.md",
		good: map[string]string{"docs/a.md": "[x](../c.md) [y](https://example.org/z) [z](../d) `[n](o)`\n```\n[p](q)\n```\n", "c.md": "", "d/e": ""},
	},
	{
		name: "links lead to headings", check: links,
		bad:  map[string]string{"a.md": "# One thing: all\n[x](#one-thing-al)\n"},
		want: "a.md:2: no heading makes this anchor: #one-thing-al",
		good: map[string]string{"a.md": "# One thing: all\n[x](#one-thing-all)\n"},
	},
	{
		name: "named files exist", check: links,
		bad:  map[string]string{"a.md": "see `docs/x.go`\n", "docs/b.md": ""},
		want: "a.md:1: no such file: docs/x.go",
		good: map[string]string{"a.md": "see `docs/b.md` and `elsewhere/x.go`\n", "docs/b.md": ""},
	},
	{
		name: "names of a file stand in it", check: namesExist,
		bad:  map[string]string{"a.md": "x `a/a.go`: first, second does it\n", "a/a.go": "package a\n\nfunc first() {}\n\nfunc seconds() {}\n"},
		want: "a.md:1: a/a.go has no second",
		good: map[string]string{"a.md": "`a/a.go`: first (then, others)\n\n`b/b.go`: gone\n", "a/a.go": "package a\n\nfunc first() {}\n"},
	},
	{
		name: "shown packages exist", check: commandsExist,
		bad:  map[string]string{"README.md": "```sh\ngo run ./cmd/fabricnode demo\n```\n", "cmd/other/main.go": "package main\n"},
		want: "README.md:2: go run ./cmd/fabricnode demo: there is no folder cmd/fabricnode",
		good: map[string]string{"README.md": "```sh\nX=1 go test ./... # all\ncd x && git status | cat\n```\n```text\nnothing here\n```\n"},
	},
	{
		name: "shown make targets exist", check: commandsExist,
		bad:  map[string]string{"README.md": "```console\n$ make tset\nmake: output\n```\n", "Makefile": "test: ## all\n"},
		want: "README.md:2: the Makefile has no target tset",
		good: map[string]string{"README.md": "```console\n$ make -j2 test\noutput of it\n```\n", "Makefile": "test: ## all\n"},
	},
	{
		name: "shown scripts exist", check: commandsExist,
		bad:  map[string]string{"README.md": "```sh\nscripts/go \\\n  start\n```\n"},
		want: "README.md:3: there is no file scripts/go",
		good: map[string]string{"README.md": "```sh\nbash scripts/go start\n```\n", "scripts/go": ""},
	},
	{
		name: "shown programs are known", check: commandsExist,
		bad:  map[string]string{"README.md": "```sh\nfabricnode run &\n```\n"},
		want: "README.md:2: fabricnode is neither a command of this project",
		good: map[string]string{"README.md": "```sh\nfabricnode run &\n./dist/fabricnode run\n```\n", "cmd/fabricnode/main.go": "package main\n"},
	},
	{
		name: "commands in the text exist", check: commandsExist,
		bad:  map[string]string{"a.md": "one\ntwo `make tset` and `make`, `scripts/x start`\n", "Makefile": "test: ## all\n", "scripts/x": ""},
		want: "a.md:2: the Makefile has no target tset",
		good: map[string]string{"a.md": "`make test`, `makefile`, `go run ./cmd/x --data ./data`, `./cmd/y`\n", "Makefile": "test: ## all\n", "cmd/x/main.go": "package main\n"},
	},
	{
		name: "the README names the test command", check: oneTestCommand,
		bad:  map[string]string{"README.md": "```sh\ngo test ./...\n```\n", ".ci/run": "make test 2>&1\n"},
		want: "README.md:1: no shell block names the test command",
		good: map[string]string{"README.md": "```sh\nmake test\n```\n", ".ci/run": "make test 2>&1\n"},
	},
	{
		name: "CI runs the README's test command", check: oneTestCommand,
		bad:  map[string]string{"README.md": "```sh\nmake test\n```\n", ".ci/run": "go test ./...\n"},
		want: ".ci/run:1: does not run the README's test command",
	},
	{
		name: "records have their parts", check: records,
		bad:  map[string]string{"docs/adr/README.md": "[x](0000-a.md)", "docs/adr/0000-a.md": "# 0000 A\n\n## Revisions\n\n| 1 | 2026-01-01 | x |\n\n## Decision\n\n## Context\n\n## Consequences\n"},
		want: "docs/adr/0000-a.md:1: this part is missing or out of order: ## Decision",
		good: map[string]string{"docs/adr/README.md": "[x](0000-a.md)", "docs/adr/0000-a.md": "# 0000 A\n\n## Revisions\n\n| 1 | 2026-01-01 | x |\n\n## Context\n\n## Decision\n\n## Consequences\n"},
	},
	{
		name: "records are dated, numbered and listed", check: records,
		bad: map[string]string{"docs/adr/0001-a.md": "# 1 A\n\n## Revisions\n\n## Context\n\n## Decision\n\n## Consequences\n"},
		want: "docs/adr/0001-a.md:1: the next number is 0000\n" +
			"docs/adr/0001-a.md:1: the title must begin with its number: # 0001 ...\n" +
			"docs/adr/0001-a.md:1: the revision table has no row | 1 | date | ...\n" +
			"docs/adr/README.md:1: the index has no link to 0001-a.md",
	},
	{
		name: "rules have rows", check: func(t *tree) []finding { return guarantees(t, []string{"FO-1", "FO-2"}) },
		bad:  map[string]string{guaranteesFile: "| FO-1 | x | `a.TestA/FO-1` |\n", "a/a_test.go": "package a\n\nfunc TestA(t *testing.T) { t.Run(\"FO-1\", f) }\n"},
		want: "docs/guarantees.md:1: no row for FO-2",
	},
	{
		name: "rules name tests", check: func(t *tree) []finding { return guarantees(t, nil) },
		bad: map[string]string{guaranteesFile: "| ID |\n| FO-1 | x | none |\n| FO-2 | x | `b.TestA/FO-2` |\n| FO-3a | x | `a.TestB` |\n| FO-4 | x | `a.TestA/FO-4` |\n| FO-5 | x | `a.TestA/FO-5` |\n",
			"a/a_test.go": "package a\n\nfunc TestA(t *testing.T) { t.Run(\"FO-4\", f) }\n"},
		want: "docs/guarantees.md:2: FO-1 names no test (`package.TestName/ID`)\n" +
			"docs/guarantees.md:3: FO-2: package b has no TestA\n" +
			"docs/guarantees.md:4: FO-3a: package a has no TestB\n" +
			"docs/guarantees.md:6: FO-5: no test file of a names \"FO-5\"",
	},
}

func text(fs []finding) string {
	lines := make([]string, len(fs))
	for i, f := range fs {
		lines[i] = f.String()
	}
	return strings.Join(lines, "\n")
}

// A check that cannot fail is worthless: each one finds what its sample breaks, once, and nothing in the sample that
// is right.
func TestChecksFindWhatIsBroken(t *testing.T) {
	for _, c := range checks {
		t.Run(c.name, func(t *testing.T) {
			got := c.check(sample(t, c.bad))
			if s := text(got); !strings.HasPrefix(s, c.want) || len(got) != 1+strings.Count(c.want, "\n") {
				t.Errorf("found:\n%s\nwant:\n%s", s, c.want)
			}
			if c.good == nil {
				return
			}
			if s := text(c.check(sample(t, c.good))); s != "" {
				t.Errorf("found in the good sample:\n%s", s)
			}
		})
	}
}

func TestRepository(t *testing.T) {
	tr := repository(t)
	for _, c := range []struct {
		name  string
		check func(*tree) []finding
	}{
		{"package comments", packageDocs},
		{"doc comments", docComments},
		{"gofmt", formatting},
		{"file length", fileLength},
		{"promises", words},
		{"machines", machines},
		{"sleeps", sleeps},
		{"leak checks", leakChecks},
		{"imports", imports},
		{"links", links},
		{"names", namesExist},
		{"commands", commandsExist},
		{"test command", oneTestCommand},
		{"decision records", records},
		{"guarantees", func(t *tree) []finding { return guarantees(t, rules) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, f := range c.check(tr) {
				t.Error(f)
			}
		})
	}
}
