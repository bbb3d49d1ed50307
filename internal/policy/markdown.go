package policy

import (
	"fmt"
	"path"
	"regexp"
	"strings"
)

// fence is one fenced code block of a Markdown file.
type fence struct {
	file string
	line int    // of the opening fence
	info string // what stands behind the opening fence: "go", "sh", ...
	body string
}

// fences returns the fenced code blocks of a Markdown text, and the text with these blocks emptied (its lines are
// kept), so that what looks like Markdown inside them is not read as such.
func fences(file, text string) (blocks []fence, prose string) {
	var open *fence
	var body, rest strings.Builder
	for i, line := range strings.Split(text, "\n") {
		info, isFence := strings.CutPrefix(strings.TrimLeft(line, " "), "```")
		switch {
		case isFence && open == nil:
			open = &fence{file: file, line: i + 1, info: strings.TrimSpace(info)}
			body.Reset()
		case isFence:
			open.body = body.String()
			blocks = append(blocks, *open)
			open = nil
		case open != nil:
			body.WriteString(line + "\n")
		default:
			rest.WriteString(line)
		}
		rest.WriteByte('\n')
	}
	return blocks, rest.String()
}

var (
	codeSpan = regexp.MustCompile("`[^`\n]+`")
	link     = regexp.MustCompile(`\[[^\]\n]*\]\(([^)\s]+)\)`)
	heading  = regexp.MustCompile(`(?m)^#{1,6} +(.+?) *$`)
	// sourcePath matches a code span that is a path of a file in this repository.
	sourcePath = regexp.MustCompile("^`((?:[A-Za-z0-9_.-]+/)+[A-Za-z0-9_.-]+\\.(?:go|md|conf|log))`$")
)

// markdown returns the Markdown files.
func markdown(t *tree) []string {
	return t.files(func(p string) bool { return path.Ext(p) == ".md" && !strings.Contains(p, "testdata/") })
}

// links wants every relative link of a Markdown file to lead to a file or folder of the tree, and to a heading where
// it names one; and every source file named in a code span with its folder to exist.
func links(t *tree) []finding {
	var out []finding
	folders := map[string]bool{".": true}
	for p := range t.text {
		for d := path.Dir(p); d != "."; d = path.Dir(d) {
			folders[d] = true
		}
	}
	for _, p := range markdown(t) {
		_, prose := fences(p, t.text[p])
		plain := codeSpan.ReplaceAllStringFunc(prose, func(s string) string { return strings.Repeat(" ", len(s)) })
		for _, loc := range link.FindAllStringSubmatchIndex(plain, -1) {
			target := plain[loc[2]:loc[3]]
			if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			file, anchor, hasAnchor := strings.Cut(target, "#")
			to := p
			if file != "" {
				to = path.Join(path.Dir(p), file)
			}
			text, isFile := t.text[to]
			switch {
			case !isFile && !folders[to]:
				out = append(out, finding{p, lineOf(plain, loc[0]), fmt.Sprintf("the link leads nowhere: %s", target)})
			case hasAnchor && path.Ext(to) == ".md" && !anchors(to, text)[anchor]:
				out = append(out, finding{p, lineOf(plain, loc[0]), fmt.Sprintf("no heading makes this anchor: %s", target)})
			}
		}
		for _, loc := range codeSpan.FindAllStringIndex(prose, -1) {
			m := sourcePath.FindStringSubmatch(prose[loc[0]:loc[1]])
			if m == nil || !folders[strings.SplitN(m[1], "/", 2)[0]] {
				continue
			}
			if _, ok := t.text[m[1]]; !ok {
				out = append(out, finding{p, lineOf(prose, loc[0]), "no such file: " + m[1]})
			}
		}
	}
	return out
}

// anchors returns the anchors that the headings of a Markdown text make: lower case, spaces as hyphens, without
// punctuation.
func anchors(file, text string) map[string]bool {
	m := map[string]bool{}
	_, prose := fences(file, text)
	for _, h := range heading.FindAllStringSubmatch(prose, -1) {
		m[strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-' || r == '_' || r > 0x7f || r >= '0' && r <= '9' || r >= 'a' && r <= 'z':
				return r
			}
			return -1
		}, strings.ToLower(h[1]))] = true
	}
	return m
}

// namedCode matches a source file in a code span with the names that follow it: `a/b.go`: first, second.
var namedCode = regexp.MustCompile("`((?:[A-Za-z0-9_-]+/)+[A-Za-z0-9_]+\\.go)`: ((?:[A-Za-z][A-Za-z0-9]*, )*[A-Za-z][A-Za-z0-9]*)")

// namesExist wants every name that a Markdown file gives behind a source file to stand in that file, so that who follows
// the map arrives.
func namesExist(t *tree) []finding {
	var out []finding
	for _, p := range markdown(t) {
		_, prose := fences(p, t.text[p])
		for _, loc := range namedCode.FindAllStringSubmatchIndex(prose, -1) {
			file, names := prose[loc[2]:loc[3]], prose[loc[4]:loc[5]]
			text, ok := t.text[file]
			if !ok {
				continue // links reports it
			}
			for name := range strings.SplitSeq(names, ", ") {
				if !regexp.MustCompile(`\b` + name + `\b`).MatchString(text) {
					out = append(out, finding{p, lineOf(prose, loc[0]), fmt.Sprintf("%s has no %s", file, name)})
				}
			}
		}
	}
	return out
}
