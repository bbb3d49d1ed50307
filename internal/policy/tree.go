package policy

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// finding is one broken rule.
type finding struct {
	file string
	line int
	text string
}

// String returns the finding as file:line: text, which editors can follow.
func (f finding) String() string { return fmt.Sprintf("%s:%d: %s", f.file, f.line, f.text) }

// tree is a repository as the checks see it: the text of each file, and the syntax of each Go file.
type tree struct {
	text map[string]string
	gos  []goFile // sorted by path
	fset *token.FileSet
}

// goFile is one parsed Go file of the main module.
type goFile struct {
	path string
	dir  string
	test bool
	ast  *ast.File
}

// skipped are the folders that hold no source of the project's: version control, built tools, run-time data.
var skipped = []string{".git", ".tools", ".run", "dist"}

// load reads the files of fsys. Files with a NUL byte are binary and left out.
func load(fsys fs.FS) (*tree, error) {
	t := &tree{text: map[string]string{}, fset: token.NewFileSet()}
	err := fs.WalkDir(fsys, ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if slices.Contains(skipped, p) {
				return fs.SkipDir
			}
			return nil
		}
		if !d.Type().IsRegular() {
			return nil
		}
		b, err := fs.ReadFile(fsys, p)
		if err != nil {
			return err
		}
		if strings.IndexByte(string(b), 0) >= 0 {
			return nil
		}
		t.text[p] = string(b)
		if path.Ext(p) != ".go" || strings.Contains(p, "testdata/") {
			return nil
		}
		f, err := parser.ParseFile(t.fset, p, b, parser.ParseComments)
		if err != nil {
			return err
		}
		t.gos = append(t.gos, goFile{path: p, dir: path.Dir(p), test: strings.HasSuffix(p, "_test.go"), ast: f})
		return nil
	})
	slices.SortFunc(t.gos, func(a, b goFile) int { return cmp.Compare(a.path, b.path) })
	return t, err
}

// at returns a finding at the position of a syntax node.
func (t *tree) at(n ast.Node, format string, args ...any) finding {
	p := t.fset.Position(n.Pos())
	return finding{p.Filename, p.Line, fmt.Sprintf(format, args...)}
}

// packages returns the Go files by folder, test files included.
func (t *tree) packages() map[string][]goFile {
	m := map[string][]goFile{}
	for _, f := range t.gos {
		m[f.dir] = append(m[f.dir], f)
	}
	return m
}

// files returns the sorted paths of the files for which keep is true.
func (t *tree) files(keep func(string) bool) []string {
	var ps []string
	for p := range t.text {
		if keep(p) {
			ps = append(ps, p)
		}
	}
	slices.Sort(ps)
	return ps
}

// sorted orders findings by file and line.
func sorted(fs []finding) []finding {
	slices.SortFunc(fs, func(a, b finding) int {
		return cmp.Or(cmp.Compare(a.file, b.file), cmp.Compare(a.line, b.line), cmp.Compare(a.text, b.text))
	})
	return fs
}

// lineOf returns the line number of the byte at offset.
func lineOf(text string, offset int) int { return 1 + strings.Count(text[:offset], "\n") }
