package device

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"natsfabric/fence"
)

// MaxOutput is how much of a program's output is kept, its end, in bytes.
const MaxOutput = 4096

// Match says which end of a program means something. Both parts must hold that are given; a Match without any matches
// nothing.
type Match struct {
	// Codes are exit codes.
	Codes []int `yaml:"codes" json:"codes,omitempty"`
	// Output is a regular expression that is found in what the program wrote, both streams, without space around it.
	Output string `yaml:"output" json:"output,omitempty"`
}

// CommandConfig describes a device that is driven by programs. In arguments and environment {node}, {lifecycle}, {token}
// and {label.NAME} stand for the target's; one that it has no value for, or whose value begins with a hyphen, runs
// nothing (Unknown). No shell is involved.
type CommandConfig struct {
	// Name tells the device apart. Required.
	Name string `yaml:"name" json:"name"`
	// Fence is the program that cuts off, and its arguments. Required. Its exit code decides nothing.
	Fence []string `yaml:"fence" json:"fence"`
	// Status is the program that looks, by a way of its own if there is one. Required.
	Status []string `yaml:"status" json:"status"`
	// Env is added to the environment, NAME=VALUE, beside FENCE_NODE, FENCE_LIFECYCLE and FENCE_TOKEN.
	Env []string `yaml:"env" json:"env,omitempty"`
	// Fenced and NotFenced say which end of Status means what. An end that matches neither, or both, is Unknown.
	Fenced    Match `yaml:"fenced" json:"fenced"`
	NotFenced Match `yaml:"not_fenced" json:"not_fenced"`
}

// Command is a fence device that runs programs. It implements fence.Device.
type Command struct {
	cfg               CommandConfig
	fenced, notFenced *regexp.Regexp
}

// NewCommand returns the device. Errors are of the configuration.
func NewCommand(c CommandConfig) (*Command, error) {
	switch {
	case c.Name == "":
		return nil, errors.New("fence device: Name is empty")
	case len(c.Fence) == 0 || len(c.Status) == 0:
		return nil, fmt.Errorf("fence device %q needs Fence and Status: without a look of its own nothing is confirmed", c.Name)
	case len(c.Fenced.Codes) == 0 && c.Fenced.Output == "":
		return nil, fmt.Errorf("fence device %q: Fenced says nothing, so it could never confirm anything", c.Name)
	}
	d := &Command{cfg: c}
	var err1, err2 error
	d.fenced, err1 = regexp.Compile(c.Fenced.Output)
	d.notFenced, err2 = regexp.Compile(c.NotFenced.Output)
	if err := errors.Join(err1, err2); err != nil {
		return nil, fmt.Errorf("fence device %q: %w", c.Name, err)
	}
	return d, nil
}

// Name returns the device's name.
func (d *Command) Name() string { return d.cfg.Name }

// Fence runs the fencing program. Its report claims nothing: what it says about its work is in Detail and Output.
func (d *Command) Fence(ctx context.Context, t fence.Target) fence.Report {
	code, out, err := d.run(ctx, d.cfg.Fence, t)
	if err != nil {
		return fence.Report{Detail: err.Error(), Output: out}
	}
	return fence.Report{Detail: ended(d.cfg.Fence[0], code, out), Output: out}
}

// Check runs the status program and reads its end.
func (d *Command) Check(ctx context.Context, t fence.Target) fence.Report {
	code, out, err := d.run(ctx, d.cfg.Status, t)
	if err != nil {
		return fence.Report{Detail: err.Error(), Output: out}
	}
	r := fence.Report{Detail: ended(d.cfg.Status[0], code, out), Output: out}
	yes, no := d.cfg.Fenced.holds(d.fenced, code, out), d.cfg.NotFenced.holds(d.notFenced, code, out)
	switch {
	case yes && !no:
		r.Answer = fence.Fenced
	case no && !yes:
		r.Answer = fence.NotFenced
	}
	return r
}

func (m Match) holds(re *regexp.Regexp, code int, out []byte) bool {
	if len(m.Codes) == 0 && m.Output == "" {
		return false
	}
	return (len(m.Codes) == 0 || slices.Contains(m.Codes, code)) && (m.Output == "" || re.Match(bytes.TrimSpace(out)))
}

func ended(program string, code int, out []byte) string {
	text := strings.Join(strings.Fields(string(out)), " ")
	if len(text) > 200 {
		text = text[len(text)-200:]
	}
	return fmt.Sprintf("%s ended with %d: %s", program, code, text)
}

// run returns the exit code, or an error when there is none to speak of.
func (d *Command) run(ctx context.Context, command []string, t fence.Target) (int, []byte, error) {
	args, err := fill(command, t)
	if err != nil {
		return 0, nil, err
	}
	env, err := fill(d.cfg.Env, t)
	if err != nil {
		return 0, nil, err
	}
	var out tail
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = append(append(os.Environ(), "FENCE_NODE="+t.Node, "FENCE_LIFECYCLE="+strconv.FormatUint(t.Lifecycle, 10), "FENCE_TOKEN="+t.Token.String()), env...)
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.WaitDelay = time.Second // whoever has inherited the pipes does not keep us
	endWithChildren(cmd)
	err = cmd.Run()
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return 0, out.bytes, fmt.Errorf("%s was ended: %w", args[0], context.Cause(ctx))
	case errors.As(err, &exit) && exit.ExitCode() >= 0:
		return exit.ExitCode(), out.bytes, nil
	case err != nil:
		return 0, out.bytes, err
	}
	return 0, out.bytes, nil
}

var slot = regexp.MustCompile(`\{(node|lifecycle|token|label\.[^{}]+)\}`)

// fill puts the target's values in.
func fill(in []string, t fence.Target) ([]string, error) {
	out := make([]string, len(in))
	var bad error
	for i, text := range in {
		out[i] = slot.ReplaceAllStringFunc(text, func(p string) string {
			name := p[1 : len(p)-1]
			var v string
			switch name {
			case "node":
				v = t.Node
			case "lifecycle":
				v = strconv.FormatUint(t.Lifecycle, 10)
			case "token":
				v = t.Token.String()
			default:
				v = t.Labels[strings.TrimPrefix(name, "label.")]
			}
			if v == "" || v[0] == '-' || strings.ContainsRune(v, 0) {
				bad = fmt.Errorf("not run: the target's %s is %q", name, v)
			}
			return v
		})
	}
	return out, bad
}

// tail keeps the end of what is written to it.
type tail struct{ bytes []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.bytes = append(t.bytes, p...)
	if n := len(t.bytes) - MaxOutput; n > 0 {
		t.bytes = append(t.bytes[:0], t.bytes[n:]...)
	}
	return len(p), nil
}
