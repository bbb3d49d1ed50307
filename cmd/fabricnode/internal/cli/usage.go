package cli

import (
	"errors"
	"fmt"
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

var (
	noValue      = regexp.MustCompile(`^(--[a-z-]+): expected .* value but got "EOL" \(<EOL>\)$`)
	strayWord    = regexp.MustCompile(`^unexpected argument ([^\s,]+)(?:, did you mean "([^"]+)")?`)
	emptyAllowed = `one of "",`
)

// parseError explains what the parser found wrong.
func parseError(model *kong.Application, err error) error {
	var at *kong.ParseError
	text := err.Error()
	if m := noValue.FindStringSubmatch(text); m != nil {
		err = fmt.Errorf("%s needs a value", m[1])
	} else if m := strayWord.FindStringSubmatch(text); m != nil && errors.As(err, &at) && at.Context.Command() == "" {
		if slices.Contains(commands(model), m[2]) {
			err = fmt.Errorf("unknown command %q, did you mean %q?", m[1], m[2])
		} else {
			err = fmt.Errorf("unknown command %q: it must be one of %s", m[1], strings.Join(commands(model), ", "))
		}
	} else if strings.Contains(text, emptyAllowed) {
		err = errors.New(strings.ReplaceAll(text, emptyAllowed, "one of "))
	}
	return withCode(ExitUsage, fmt.Errorf("%w (fabricnode --help explains)", err))
}

// commands lists the commands that are for people.
func commands(model *kong.Application) (out []string) {
	for _, c := range model.Children {
		if !c.Hidden {
			out = append(out, c.Name)
		}
	}
	return out
}
