package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"
)

// filled is a flag's text that must not be empty: an empty one would silently mean the default.
type filled string

// UnmarshalText refuses an empty text.
func (f *filled) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		return errors.New("it is empty: give a value, or leave it out")
	}
	*f = filled(text)
	return nil
}

// flagNames are the flags behind the fields that the packages' own errors name.
var flagNames = strings.NewReplacer(
	"Connect.URL", "--server", "Connect.CredsFile", "--creds", "Connect.NKeyFile", "--nkey", "Connect.CAFile", "--tlsca",
	"Connect.CertFile", "--tlscert", "Connect.KeyFile", "--tlskey", "Connect.Timeout", "--connect-timeout",
	"Connect.Context", "--context", "Connect.Password", "--password", "Connect.User", "--user",
	"Spec.Queue", "--queue", "Spec.Workers", "--workers", "Capacity ", "--capacity ", "Wave ", "--wave ", "Mesh ", "--mesh ", "RID ", "--rid ",
	`domain "`, `--domain "`, "lease TTL ", "--lease-ttl ", "lease renewal interval ", "--lease-renew ", "renewal interval ", "--lease-renew ",
	"lease margin ", "--lease-margin ", "less margin ", "less --lease-margin ", "Every ", "--every ",
)

// flagError is a configuration error in the words of the command line.
type flagError struct{ err error }

func (e flagError) Error() string { return flagNames.Replace(e.err.Error()) }
func (e flagError) Unwrap() error { return e.err }

// inFlags gives a configuration error the flags' names and its exit code. A nil error stays nil.
func inFlags(err error) error {
	if err == nil {
		return nil
	}
	return withCode(ExitUsage, flagError{err})
}

// plural is a number of things: noun must take an s.
func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// checkDuration refuses a duration outside its range.
func checkDuration(flag string, d, lo, hi time.Duration) error {
	if d < lo || d > hi {
		return fmt.Errorf("%s %v is not allowed: it must be %v to %v", flag, d, lo, hi)
	}
	return nil
}

// checkText refuses a text that is empty or longer than a number of bytes.
func checkText(what, text string, most int) error {
	if text == "" || len(text) > most {
		return fmt.Errorf("%s %.80q is not allowed: it must have 1 to %d bytes", what, text, most)
	}
	return nil
}

// The parser's own texts that say too little, or speak of the parser.
var (
	noValue    = regexp.MustCompile(`^(--[a-z-]+): expected .* value but got "EOL" \(<EOL>\)$`)
	looksFlag  = regexp.MustCompile(`^(--[a-z-]+): expected (\w+) value but got "(-[^"]*)" \([a-z ]+\)`)
	noDuration = regexp.MustCompile(`^(--[a-z-]+): expected duration but got ("[^"]*")`)
	noNumber   = regexp.MustCompile(`^(--[a-z-]+): expected (?:a valid \d+ bit u?int|a float) but got ("[^"]*")`)
	noArgument = regexp.MustCompile(`^expected "(<[a-z-]+>).*"$`)
	noCommand  = regexp.MustCompile(`^expected one of "`)
	strayWord  = regexp.MustCompile(`^unexpected argument ([^\s,]+)(?:, did you mean "([^"]+)")?`)
)

// inWords puts the parser's error into words for people. at is the command that it had found.
func inWords(model *kong.Application, at *kong.Node, err error) error {
	text := err.Error()
	var missing *fs.PathError // only --config is opened while arguments are read
	if errors.As(err, &missing) {
		return fmt.Errorf("--config: %w", err)
	}
	if m := noValue.FindStringSubmatch(text); m != nil {
		return fmt.Errorf("%s needs a value", m[1])
	}
	if m := looksFlag.FindStringSubmatch(text); m != nil {
		if m[2] == "text" {
			return fmt.Errorf("%s needs a value; one that begins with - is given as %s=%s", m[1], m[1], m[3])
		}
		return fmt.Errorf("%s %q is not allowed: it must not be negative", m[1], m[3])
	}
	if m := noDuration.FindStringSubmatch(text); m != nil {
		return fmt.Errorf("%s %s is not allowed: it must be a time like 500ms, 10s or 2m", m[1], m[2])
	}
	if m := noNumber.FindStringSubmatch(text); m != nil {
		return fmt.Errorf("%s %s is not allowed: it must be a number", m[1], m[2])
	}
	if m := noArgument.FindStringSubmatch(text); m != nil && at != nil {
		var all []string
		for _, p := range at.Positional {
			all = append(all, p.Summary())
		}
		return fmt.Errorf("%s is missing: it must be fabricnode %s %s", m[1], commandPath(at), strings.Join(all, " "))
	}
	if noCommand.MatchString(text) && at != nil && len(at.Children) > 0 {
		return fmt.Errorf("%s needs one of %s", commandPath(at), strings.Join(commands(at), ", "))
	}
	if m := strayWord.FindStringSubmatch(text); m != nil && at == nil {
		if slices.Contains(commands(model.Node), m[2]) {
			return fmt.Errorf("unknown command %q, did you mean %q?", m[1], m[2])
		}
		return fmt.Errorf("unknown command %q: it must be one of %s", m[1], strings.Join(commands(model.Node), ", "))
	}
	const emptyAllowed = `one of "",`
	if strings.Contains(text, emptyAllowed) {
		return errors.New(strings.ReplaceAll(text, emptyAllowed, "one of "))
	}
	return err
}

// parseError explains what the parser found wrong, and where there is more to read.
func parseError(model *kong.Application, err error) error {
	var at *kong.Node
	more := "fabricnode --help"
	var failed *kong.ParseError
	if errors.As(err, &failed) {
		if at = failed.Context.Selected(); at != nil {
			more = "fabricnode " + commandPath(at) + " --help"
		}
	}
	return withCode(ExitUsage, fmt.Errorf("%w (%s explains)", inWords(model, at, err), more))
}

// commandPath is what stands on the command line for a command: supervise pause.
func commandPath(n *kong.Node) string {
	if n.Parent == nil || n.Parent.Parent == nil {
		return n.Name
	}
	return commandPath(n.Parent) + " " + n.Name
}

// commands lists the commands of a node that are for people.
func commands(n *kong.Node) (out []string) {
	for _, c := range n.Children {
		if !c.Hidden {
			out = append(out, c.Name)
		}
	}
	return out
}
