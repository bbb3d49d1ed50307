package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
	"go.yaml.in/yaml/v3"
)

// maxConfigFile bounds a configuration file.
const maxConfigFile = 1 << 20

// fileValues resolves flags from a YAML file whose keys are the flags' names. One file may serve all commands: a key
// that belongs to another command's flag is left alone, one that belongs to none is an error.
type fileValues map[string]any

func loadFile(r io.Reader) (kong.Resolver, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxConfigFile+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxConfigFile {
		return nil, fmt.Errorf("configuration file: larger than %d bytes", maxConfigFile)
	}
	values := map[string]any{}
	if err := yaml.Unmarshal(text, &values); err != nil {
		return nil, fmt.Errorf("configuration file: it must be a YAML mapping of flag names to values, like \"mesh: shop\": %w", err)
	}
	for key, v := range values {
		if values[key], err = scalar(v); err != nil {
			return nil, fmt.Errorf("configuration file: %s: %w", key, err)
		}
	}
	return fileValues(values), nil
}

// scalar turns a YAML value into what a flag on the command line would be. A list becomes comma-separated text.
func scalar(v any) (any, error) {
	switch v := v.(type) {
	case nil:
		return nil, errors.New("it has no value")
	case bool:
		return v, nil
	case []any:
		parts := make([]string, len(v))
		for i, p := range v {
			s, err := scalar(p)
			if err != nil {
				return nil, err
			}
			parts[i] = fmt.Sprint(s)
		}
		return strings.Join(parts, ","), nil
	case map[string]any, map[any]any:
		return nil, errors.New("it must be a value or a list, not a mapping")
	default:
		return fmt.Sprint(v), nil
	}
}

// Validate refuses keys that are no flag of any command.
func (f fileValues) Validate(app *kong.Application) error {
	known := map[string]bool{}
	var walk func(n *kong.Node)
	walk = func(n *kong.Node) {
		for _, flag := range n.Flags {
			known[flag.Name] = known[flag.Name] || !onlyTyped(flag)
		}
		for _, child := range n.Children {
			walk(child)
		}
	}
	walk(app.Node)
	var unknown []string
	for key := range f {
		if !known[key] || key == "config" {
			unknown = append(unknown, key)
		}
	}
	if len(unknown) > 0 {
		slices.Sort(unknown)
		return fmt.Errorf("configuration file: unknown key %q: keys are flag names without the dashes in front", unknown[0])
	}
	return nil
}

// onlyTyped reports whether a flag counts only when it is typed: one that is dangerous, or means something else elsewhere.
func onlyTyped(flag *kong.Flag) bool { return len(flag.Envs) == 0 }

// Resolve gives a flag's value from the file, unless the environment has one.
func (f fileValues) Resolve(_ *kong.Context, _ *kong.Path, flag *kong.Flag) (any, error) {
	if onlyTyped(flag) {
		return nil, nil
	}
	for _, env := range flag.Envs {
		if _, set := os.LookupEnv(env); set {
			return nil, nil
		}
	}
	v, ok := f[flag.Name]
	if !ok {
		return nil, nil
	}
	return v, nil
}
