package policy

import (
	"strconv"
	"strings"
)

// module is the project's module path.
const module = "natsfabric"

// rooms are the packages from top to bottom. A package imports only what stands below its own line; packages
// within one room (cmd/fabricnode/...) may import each other. The numbers have gaps for rooms of later parts.
// Commands and the conformance suite stand at the top: nothing imports them.
var rooms = []struct {
	path  string // the folder; packages below it belong to the room
	level int
	// beside: imported by commands and tests only, wherever these stand.
	beside bool
}{
	{path: "conformance", level: top},
	{path: "cmd", level: top},
	{path: "internal/bench", level: 80, beside: true},
	{path: "fabric", level: 70},
	{path: "session", level: 60},
	{path: "relocate", level: 50},
	{path: "objects", level: 40},
	{path: "supervise", level: 37},
	{path: "fence", level: 35},
	{path: "channels", level: 30},
	{path: "kvlocation", level: 20},
	{path: "outcome", level: 10},
	{path: "internal/wire", level: 0},
	{path: "internal/monotime", level: 0},
	{path: "internal/leash", level: 0},
	{path: "internal/jsonkeep", level: 0},
	{path: "fabrictest", level: 2, beside: true},
	{path: "internal/embedded", level: 1, beside: true},
	{path: "internal/accesslog", level: 0, beside: true},
	{path: "internal/policy", level: 0, beside: true},
	{path: "examples/data", level: 0, beside: true},
	{path: "examples", level: top}, // whole programs; nothing imports them
}

// top is the level of commands and the conformance suite.
const top = 90

// modules are the modules that may be used, where, and why so. "test" allows every test file.
var modules = []struct {
	prefix string
	where  []string
	reason string
}{
	{"github.com/nats-io/nats-server/v2", []string{"internal/embedded", "fabrictest", "cmd", "test"},
		"a program that uses the library must not carry a server"},
	{"github.com/nats-io/nats.go", []string{""}, ""},
	{"github.com/nats-io/nuid", []string{""}, ""},
	{"go.uber.org/zap", []string{""}, ""},
	{"golang.org/x/sys", []string{"internal", "fabrictest", "cmd", "test"},
		"what depends on the system stands in one place"},
	{"github.com/alecthomas/kong", []string{"cmd"}, "the library reads no command line"},
	{"github.com/prometheus", []string{"cmd"}, "the library offers numbers, a program chooses how to show them"},
	{"go.yaml.in/yaml", []string{"cmd"}, "the library reads no files"},
	{"github.com/synadia-io/orbit.go/natscontext", []string{"fabric", "cmd"}, "what stands below fabric takes a connection"},
	{"github.com/coder/websocket", []string{"session", "internal/bench", "test"}, "one transport of sessions speaks it"},
	{"modernc.org/sqlite", []string{"fence/sqltest", "examples/fenced"}, "modules of their own: drivers stay out of users' graphs"},
	{"github.com/jackc/pgx/v5", []string{"fence/sqltest", "examples/fenced"}, "modules of their own: drivers stay out of users' graphs"},
	{"go.uber.org/goleak", []string{"fabrictest", "test"}, "a test tool"},
	{"github.com/anishathalye/porcupine", []string{"conformance", "test"}, "a test tool"},
	{"pgregory.net/rapid", []string{"test"}, "a test tool"},
	{"github.com/nats-io/nkeys", []string{"test"}, "the client library reads keys"},
	{"github.com/nats-io/jwt/v2", []string{"test"}, "the client library reads credentials"},
}

// imports wants imports to go down only, and modules to be used only where the table allows them.
func imports(t *tree) []finding {
	var out []finding
	for _, f := range t.gos {
		for _, spec := range f.ast.Imports {
			p, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				continue
			}
			var why string
			first, rest, _ := strings.Cut(p, "/")
			switch {
			case first == module:
				why = wrongRoom(f, rest)
			case strings.Contains(first, "."):
				why = wrongModule(f, p)
			}
			if why != "" {
				out = append(out, t.at(spec, "%s", why))
			}
		}
	}
	return out
}

// wrongRoom says why the file may not import the project's package at target, or returns "".
func wrongRoom(f goFile, target string) string {
	from, to := room(f.dir), room(target)
	switch {
	case from < 0:
		return "package " + f.dir + " has no place in the order of packages (internal/policy/imports.go)"
	case to < 0:
		return "package " + target + " has no place in the order of packages (internal/policy/imports.go)"
	case from == to || f.test && rooms[to].beside:
		return ""
	case rooms[to].beside && !rooms[from].beside && rooms[from].level < top:
		return target + " is for commands and tests only"
	case rooms[from].level <= rooms[to].level:
		return f.dir + " must not import " + target + ": imports go down only"
	}
	return ""
}

// room returns the index of the room of a folder, or -1.
func room(dir string) int {
	for i, r := range rooms {
		if within(dir, r.path) {
			return i
		}
	}
	return -1
}

// wrongModule says why the file may not import the third-party package, or returns "".
func wrongModule(f goFile, pkg string) string {
	for _, m := range modules {
		if !within(pkg, m.prefix) {
			continue
		}
		for _, w := range m.where {
			if w == "" || within(f.dir, w) || w == "test" && f.test {
				return ""
			}
		}
		return pkg + " is allowed only in " + strings.Join(m.where, ", ") + ": " + m.reason
	}
	return pkg + " belongs to no module of the table in internal/policy/imports.go: a new dependency needs a row and its reason in docs/adr/0001-dependencies.md"
}

// within reports whether p is the folder or import path prefix, or lies below it.
func within(p, prefix string) bool { return p == prefix || strings.HasPrefix(p, prefix+"/") }
