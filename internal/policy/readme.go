package policy

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
)

// testCommand is the one command that runs all tests, named by the README and run by .ci/run.
const testCommand = "make test"

// command is one command of a shell block in a Markdown file.
type command struct {
	file string
	line int
	args []string
}

// outside are the programs that a reader is expected to have, or that a shell has.
var outside = strings.Fields("cat cd curl docker export git go kill mkdir nats nats-server watch")

var (
	assignment = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*=`)
	separator  = regexp.MustCompile(`\s*(?:&&|\|\||[|;&])\s*`)
	makeTarget = regexp.MustCompile(`(?m)^([a-z0-9-]+):`)
)

// spanCommand matches a code span that is a command line of the project's, not just its name or a word of it.
var spanCommand = regexp.MustCompile("`((?:go (?:run|build|test) \\./|fabricnode |fabric-bench |make |scripts/)[^`]*)`")

// shellCommands returns the commands in the sh, bash and console blocks of a Markdown file, and those in code spans. In
// a console block only the lines that begin with "$ " are commands.
func shellCommands(t *tree, file string) []command {
	var out []command
	blocks, prose := fences(file, t.text[file])
	for _, loc := range spanCommand.FindAllStringSubmatchIndex(prose, -1) {
		blocks = append(blocks, fence{file: file, line: lineOf(prose, loc[0]) - 1, info: "sh", body: prose[loc[2]:loc[3]]})
	}
	for _, b := range blocks {
		if !slices.Contains([]string{"sh", "bash", "console"}, b.info) {
			continue
		}
		var joined string
		for i, line := range strings.Split(b.body, "\n") {
			line, prompt := strings.CutPrefix(strings.TrimSpace(line), "$ ")
			if b.info == "console" && !prompt && joined == "" {
				continue
			}
			line, _, _ = strings.Cut(" "+line, " #")
			if before, ok := strings.CutSuffix(line, `\`); ok {
				joined += before
				continue
			}
			line, joined = joined+line, ""
			for _, part := range separator.Split(line, -1) {
				args := strings.Fields(part)
				for len(args) > 0 && assignment.MatchString(args[0]) {
					args = args[1:]
				}
				if len(args) > 0 {
					out = append(out, command{file, b.line + 1 + i, args})
				}
			}
		}
	}
	return out
}

// commandsExist wants every command that a Markdown file shows to be there: packages of go commands, make targets,
// scripts.
func commandsExist(t *tree) []finding {
	var out []finding
	for _, p := range markdown(t) {
		for _, c := range shellCommands(t, p) {
			if why := missingCommand(t, c.args); why != "" {
				out = append(out, finding{p, c.line, why})
			}
		}
	}
	return out
}

func missingCommand(t *tree, args []string) string {
	name := strings.TrimPrefix(args[0], "./")
	switch {
	case name == "go":
		for _, a := range args[1:] {
			dir, ok := strings.CutPrefix(a, "./")
			if !ok {
				continue
			}
			dir = path.Clean(strings.TrimSuffix(dir, "..."))
			if len(t.files(func(p string) bool { return dir == "." || strings.HasPrefix(p, dir+"/") })) == 0 {
				return fmt.Sprintf("%s: there is no folder %s", strings.Join(args, " "), dir)
			}
			if args[1] == "run" {
				break // what follows belongs to the program
			}
		}
	case name == "make":
		var targets []string
		for _, m := range makeTarget.FindAllStringSubmatch(t.text["Makefile"], -1) {
			targets = append(targets, m[1])
		}
		for _, a := range args[1:] {
			if !strings.HasPrefix(a, "-") && !assignment.MatchString(a) && !slices.Contains(targets, a) {
				return "the Makefile has no target " + a
			}
		}
	case name == "bash" && len(args) > 1:
		return missingCommand(t, args[1:])
	case strings.Contains(name, "/"):
		if _, ok := t.text[name]; !ok && ourCommand(t, name) == "" {
			return "there is no file " + name
		}
	case !slices.Contains(outside, name) && ourCommand(t, name) == "":
		return fmt.Sprintf("%s is neither a command of this project nor one that a reader has", name)
	}
	return ""
}

// ourCommand returns the folder of the project's command that a program's path stands for (dist/fabricnode for
// cmd/fabricnode), or "".
func ourCommand(t *tree, program string) string {
	dir := "cmd/" + path.Base(program)
	if len(t.files(func(p string) bool { return path.Dir(p) == dir })) == 0 {
		return ""
	}
	return dir
}

// ourInvocation returns the folder and the arguments of a call of one of the project's commands; ok is false for any
// other command. What a reader fills in stays in the arguments as it is.
func ourInvocation(t *tree, args []string) (dir string, rest []string, ok bool) {
	if len(args) > 2 && args[0] == "go" && args[1] == "run" {
		return strings.TrimPrefix(args[2], "./"), args[3:], true
	}
	if dir := ourCommand(t, args[0]); dir != "" {
		return dir, args[1:], true
	}
	return "", nil, false
}

// oneTestCommand wants the README to name the test command that .ci/run runs.
func oneTestCommand(t *tree) []finding {
	var out []finding
	if !slices.ContainsFunc(shellCommands(t, "README.md"), func(c command) bool { return strings.Join(c.args, " ") == testCommand }) {
		out = append(out, finding{"README.md", 1, "no shell block names the test command: " + testCommand})
	}
	if !strings.Contains(t.text[".ci/run"], testCommand+" ") {
		out = append(out, finding{".ci/run", 1, "does not run the README's test command: " + testCommand})
	}
	return out
}

// programs returns the complete Go programs that the Markdown files show.
func programs(t *tree) []fence {
	var out []fence
	for _, p := range markdown(t) {
		blocks, _ := fences(p, t.text[p])
		for _, b := range blocks {
			if b.info == "go" && strings.HasPrefix(b.body, "package main\n") {
				out = append(out, b)
			}
		}
	}
	return out
}
