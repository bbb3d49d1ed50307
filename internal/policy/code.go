package policy

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/format"
	"path"
	"regexp"
	"slices"
	"strings"
)

// maxLines is the greatest length of a Go file; the goal is 500.
const maxLines = 600

// packageDocs wants a package comment in every package, in doc.go unless the package is a command or a single file.
func packageDocs(t *tree) []finding {
	var out []finding
	for dir, files := range t.packages() {
		var have bool
		files = slices.DeleteFunc(slices.Clone(files), func(f goFile) bool { return f.test })
		for _, f := range files {
			if f.ast.Doc == nil {
				continue
			}
			have = true
			name := f.ast.Name.Name
			if name == "main" {
				continue
			}
			if want := "Package " + name + " "; !strings.HasPrefix(f.ast.Doc.Text(), want) {
				out = append(out, t.at(f.ast.Name, "the package comment must begin with %q", want))
			}
			if path.Base(f.path) != "doc.go" && len(files) > 1 {
				out = append(out, t.at(f.ast.Name, "the package comment belongs into doc.go"))
			}
		}
		if len(files) > 0 && !have {
			out = append(out, finding{dir, 1, "the package has no package comment (doc.go)"})
		}
	}
	return sorted(out)
}

// plainMethods are the methods whose meaning the standard library fixes; a comment on them is welcome, not needed.
var plainMethods = []string{"Error", "String", "Unwrap"}

// docComments wants a comment on every exported top-level name and method. A group of constants or variables is
// documented by the group's comment or by each entry's own, a type always by its own.
func docComments(t *tree) []finding {
	var out []finding
	for _, f := range t.gos {
		if f.test || f.ast.Name.Name == "main" {
			continue
		}
		for _, decl := range f.ast.Decls {
			switch d := decl.(type) {
			case *ast.FuncDecl:
				plain := d.Recv != nil && slices.Contains(plainMethods, d.Name.Name)
				if d.Name.IsExported() && d.Doc == nil && !plain && ast.IsExported(receiver(d)) {
					out = append(out, t.at(d, "%s has no doc comment", d.Name.Name))
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					for _, name := range undocumented(d, spec) {
						out = append(out, t.at(spec, "%s has no doc comment", name))
					}
				}
			}
		}
	}
	return out
}

// receiver returns the name of a method's type, and an exported name for a function.
func receiver(d *ast.FuncDecl) string {
	if d.Recv == nil || len(d.Recv.List) == 0 {
		return "Func"
	}
	typ := d.Recv.List[0].Type
	for {
		switch x := typ.(type) {
		case *ast.StarExpr:
			typ = x.X
		case *ast.IndexExpr:
			typ = x.X
		case *ast.IndexListExpr:
			typ = x.X
		case *ast.Ident:
			return x.Name
		default:
			return ""
		}
	}
}

// undocumented returns the exported names of one entry of a declaration that no comment covers.
func undocumented(d *ast.GenDecl, spec ast.Spec) []string {
	var names []string
	switch s := spec.(type) {
	case *ast.TypeSpec:
		if s.Name.IsExported() && s.Doc == nil && (d.Doc == nil || d.Lparen.IsValid()) {
			names = append(names, s.Name.Name)
		}
	case *ast.ValueSpec:
		for _, n := range s.Names {
			if n.IsExported() && s.Doc == nil && s.Comment == nil && d.Doc == nil {
				names = append(names, n.Name)
			}
		}
	}
	return names
}

// formatting wants what gofmt prints.
func formatting(t *tree) []finding {
	var out []finding
	for _, f := range t.gos {
		src := []byte(t.text[f.path])
		if got, err := format.Source(src); err != nil || !bytes.Equal(got, src) {
			out = append(out, finding{f.path, 1, "gofmt would change it"})
		}
	}
	return out
}

// fileLength wants files of at most maxLines lines.
func fileLength(t *tree) []finding {
	var out []finding
	for _, f := range t.gos {
		if n := strings.Count(t.text[f.path], "\n"); n > maxLines {
			out = append(out, finding{f.path, n, fmt.Sprintf("%d lines, %d are allowed: split it by noun", n, maxLines)})
		}
	}
	return out
}

// promises are words that promise something for later. They are put together here, so that this file holds none.
var promises = []string{
	"TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK",
	"not " + "implemented", "un" + "implemented", "place" + "holder", "for " + "now", "st" + "ub",
}

// words wants no promises for later in code, scripts or documentation.
func words(t *tree) []finding {
	return grep(t, promises, "promises something for later: %q", func(p string) bool {
		return slices.Contains([]string{".go", ".md", ".sh", ".conf", ".yaml", ".yml"}, path.Ext(p)) ||
			strings.HasPrefix(p, "scripts/") || strings.HasPrefix(p, ".ci/") || p == "Makefile"
	})
}

// elsewhere are the folders of a build machine and the hosts of package registries, neither of which means anything
// to a reader of the repository.
var elsewhere = []string{
	"/wo" + "rk/", "/ro" + "ot/", "proxy.go" + "lang.org", "sum.go" + "lang.org", "registry.npm" + "js.org",
}

// machines wants no path of one machine and no registry's host in the tree, apart from what checksums need.
func machines(t *tree) []finding {
	return grep(t, elsewhere, "names a machine's folder or a registry's host: %q", func(p string) bool {
		return path.Ext(p) != ".sum" && !strings.HasPrefix(p, "examples/data/")
	})
}

// grep returns a finding for each of the words in the files for which keep is true.
func grep(t *tree, words []string, format string, keep func(string) bool) []finding {
	var out []finding
	for _, p := range t.files(keep) {
		text := t.text[p]
		for _, w := range words {
			for from := 0; ; {
				i := strings.Index(text[from:], w)
				if i < 0 {
					break
				}
				at := from + i
				from = at + len(w)
				if wholeWord(text, at, from) {
					out = append(out, finding{p, lineOf(text, at), fmt.Sprintf(format, w)})
				}
			}
		}
	}
	return sorted(out)
}

// wholeWord reports whether text[from:to] is no part of a longer word, a plural apart, and not the key of a struct
// tag, which other packages name.
func wholeWord(text string, from, to int) bool {
	letter := func(i int) bool {
		return i >= 0 && i < len(text) && (text[i]|0x20 >= 'a' && text[i]|0x20 <= 'z')
	}
	if strings.HasPrefix(text[to:], ":\"") {
		return false
	}
	if to < len(text) && text[to] == 's' {
		to++
	}
	return !(letter(from) && letter(from-1)) && !(letter(to-1) && letter(to))
}

// sleeps wants no time.Sleep in tests: they wait for signals and conditions, with a deadline.
func sleeps(t *tree) []finding {
	var out []finding
	for _, f := range t.gos {
		if !f.test {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok && s.Sel.Name == "Sleep" {
				if x, ok := s.X.(*ast.Ident); ok && x.Name == "time" {
					out = append(out, t.at(s, "a fixed sleep in a test: wait for a signal or a condition"))
				}
			}
			return true
		})
	}
	return out
}

var leakCheck = regexp.MustCompile(`\b(goleak|fabrictest)\.VerifyTestMain\(`)

// leakChecks wants a TestMain that finds goroutines left behind in every package that has tests.
func leakChecks(t *tree) []finding {
	var out []finding
	for dir, files := range t.packages() {
		var tests, checked bool
		for _, f := range files {
			tests = tests || f.test
			checked = checked || f.test && leakCheck.MatchString(t.text[f.path])
		}
		if tests && !checked {
			out = append(out, finding{dir, 1, "the tests have no TestMain with goleak.VerifyTestMain or fabrictest.VerifyTestMain"})
		}
	}
	return sorted(out)
}
