package policy

import (
	"context"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// run runs a command in dir with a bound of two minutes and returns its output.
func run(t *testing.T, dir string, env []string, name string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// The command lines of the project's own commands that the documentation shows are understood by them: with --help
// added each one ends well, which it does not when a sub-command or a flag is unknown.
func TestShownCommandLinesAreUnderstood(t *testing.T) {
	t.Parallel()
	tr := repository(t)
	bin := t.TempDir()
	var n int
	for _, p := range markdown(tr) {
		for _, c := range shellCommands(tr, p) {
			dir, args, ok := ourInvocation(tr, c.args)
			if !ok {
				continue
			}
			n++
			exe := filepath.Join(bin, path.Base(dir))
			if _, err := os.Stat(exe); err != nil {
				if out, err := run(t, root, nil, "go", "build", "-o", exe, "./"+dir); err != nil {
					t.Fatalf("%s does not build: %v\n%s", dir, err, out)
				}
			}
			if out, err := run(t, root, nil, exe, append(args, "--help")...); err != nil {
				t.Errorf("%s:%d: %s: %v\n%s", c.file, c.line, strings.Join(c.args, " "), err, out)
			}
		}
	}
	if n == 0 {
		t.Error("the documentation shows no command of the project: nothing was checked")
	}
}

// The complete programs that the documentation shows compile in a module of their own, which takes the library by
// a replace directive, as the README says.
func TestShownProgramsCompile(t *testing.T) {
	t.Parallel()
	tr := repository(t)
	progs := programs(tr)
	if !slices.ContainsFunc(progs, func(f fence) bool { return f.file == "README.md" }) {
		t.Error("the README shows no complete Go program (a block marked go that begins with package main)")
	}
	for _, p := range progs {
		if out, err := compile(t, tr, p.body); err != nil {
			t.Errorf("%s:%d: the program does not compile: %v\n%s", p.file, p.line, err, out)
		}
	}
}

func TestCompileFindsABrokenProgram(t *testing.T) {
	t.Parallel()
	tr := repository(t)
	const good = "package main\n\nimport (\n\t\"fmt\"\n\n\t\"natsfabric/outcome\"\n)\n\nfunc main() { fmt.Println(outcome.NotFound) }\n"
	if out, err := compile(t, tr, good); err != nil {
		t.Errorf("a correct program: %v\n%s", err, out)
	}
	out, err := compile(t, tr, strings.Replace(good, "NotFound", "NotThere", 1))
	if err == nil || !strings.Contains(out, "NotThere") {
		t.Errorf("a program that names what is not there: %v\n%s", err, out)
	}
}

// compile builds a program outside the repository. The module's requirements are the repository's own, so that
// nothing has to be looked up.
func compile(t *testing.T, tr *tree, program string) (string, error) {
	t.Helper()
	dir := t.TempDir()
	abs, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	mod := strings.Replace(tr.text["go.mod"], "module "+module+"\n", "module example.org/shown\n", 1) +
		"\nrequire " + module + " v0.0.0\n\nreplace " + module + " => " + abs + "\n"
	for name, text := range map[string]string{"go.mod": mod, "go.sum": tr.text["go.sum"], "main.go": program} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return run(t, dir, []string{"GOFLAGS=-mod=mod"}, "go", "build", "-o", os.DevNull, ".")
}
