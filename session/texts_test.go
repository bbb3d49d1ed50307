package session

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// between are the texts that only nodes and their logs see.
var between = map[string]bool{
	"a bind names a session and a token": true, "the message is not what it must be": true, "its answer is not what it must be": true,
	"the session or the binding is over": true, "too many pushes wait for one that is missing": true,
	"node %s knows no verb %q of sessions": true, "node ": true, " is shutting down": true,
	"the node's connection to NATS was replaced": true, "session: what was captured names a token without its session": true,
	"a batch of pushes that is cut off": true, "another session was bound to the Actor": true, "session: %d callbacks of the application have not returned": true,
}

// TestTexts compares the texts for clients with docs/sessions.md: every one of them stands there, and none that is not said.
func TestTexts(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("../docs/sessions.md")
	if err != nil {
		t.Fatal(err)
	}
	_, texts, ok := strings.Cut(string(doc), "## Every text")
	if !ok {
		t.Fatal("the section is missing")
	}
	source := literals(t, "*.go", "internal/frame/*.go", "client/*.go")
	script, err := os.ReadFile("js/natsfabric.js")
	if err != nil {
		t.Fatal(err)
	}
	all := strings.Join(source, "\x00") + string(script)
	for _, line := range strings.Split(texts, "\n") {
		for _, m := range regexp.MustCompile("`([a-z][^`]* [^`]*)`").FindAllStringSubmatch(line, -1) {
			if strings.HasPrefix(m[1], "go test") || m[1] == "there is no object of this ID" { // the last one is of package objects
				continue
			}
			for _, part := range regexp.MustCompile(`\b[NX]\b`).Split(m[1], -1) {
				if part = strings.TrimSpace(part); !strings.Contains(all, part) {
					t.Errorf("docs/sessions.md has %q, and nothing says %q", m[1], part)
				}
			}
		}
	}
	for _, text := range said(t, "session.go", "handshake.go", "websocket.go", "nats.go", "tie.go", "bind.go", "errors.go", "actor.go", "binding.go", "inbound.go") {
		if between[text] {
			continue
		}
		for _, part := range regexp.MustCompile(`%[a-z]`).Split(text, -1) {
			if part = strings.TrimSpace(part); len(part) > 3 && !strings.Contains(texts, part) {
				t.Errorf("a client may hear %q, and docs/sessions.md does not say %q", text, part)
			}
		}
	}
}

// literals returns every string literal of the files, tests apart.
func literals(t *testing.T, patterns ...string) (out []string) {
	t.Helper()
	for _, pattern := range patterns {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range files {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			ast.Inspect(parsed(t, name), func(n ast.Node) bool {
				if text, ok := literal(n); ok {
					out = append(out, text)
				}
				return true
			})
		}
	}
	return out
}

// said returns the texts of the errors, refusals and ends that are made in the files.
func said(t *testing.T, files ...string) (out []string) {
	t.Helper()
	for _, name := range files {
		ast.Inspect(parsed(t, name), func(n ast.Node) bool {
			var parts []ast.Node
			switch n := n.(type) {
			case *ast.CallExpr:
				var name string
				switch f := n.Fun.(type) {
				case *ast.Ident:
					name = f.Name
				case *ast.SelectorExpr:
					name = f.Sel.Name
				}
				switch name {
				case "New", "Wrap", "refusal", "Refuse", "Sprintf", "endMalformed":
					for _, arg := range n.Args {
						parts = append(parts, arg)
					}
				}
			case *ast.KeyValueExpr:
				if key, ok := n.Key.(*ast.Ident); ok && (key.Name == "text" || key.Name == "Text") {
					parts = append(parts, n.Value)
				}
			}
			for _, part := range parts {
				ast.Inspect(part, func(n ast.Node) bool {
					if _, isCall := n.(*ast.CallExpr); isCall && n != part {
						return false // it is looked at for itself
					}
					if text, ok := literal(n); ok && strings.Contains(text, " ") && text != "open session" {
						out = append(out, text)
					}
					return true
				})
			}
			return true
		})
	}
	if len(out) < 40 {
		t.Fatalf("only %d texts were found", len(out))
	}
	return out
}

func literal(n ast.Node) (string, bool) {
	lit, ok := n.(*ast.BasicLit)
	if !ok || lit.Kind != token.STRING {
		return "", false
	}
	text, err := strconv.Unquote(lit.Value)
	return text, err == nil
}

func parsed(t *testing.T, name string) *ast.File {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	return f
}
