package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"natsfabric/fence"
	"natsfabric/fence/device"
	"natsfabric/internal/wire"
)

// fencePlan is the file of a plan whose devices are driven by commands.
type fencePlan struct {
	Resources []string      `yaml:"resources"`
	Levels    [][]fencePart `yaml:"levels"`
}

// fencePart is one device of a level.
type fencePart struct {
	device.CommandConfig `yaml:",inline"`
	Resources            []string      `yaml:"resources"`
	Timeout              time.Duration `yaml:"timeout"`
}

// planKeys are the file's keys behind the fields that the fence packages' own errors name.
var planKeys = strings.NewReplacer("fence: ", "", "Plan.Levels", "levels", "Plan.Resources", "resources",
	" needs Fence and Status", " needs fence and status", ": Fenced says", ": fenced says", ": Name is", ": name is")

var (
	unknownKey = regexp.MustCompile(`field (\S+) not found in type \S+`)
	wrongValue = regexp.MustCompile("cannot unmarshal !!\\w+ `([^`]*)` into (\\S+)|cannot unmarshal !!(\\w+) into (\\S+)")
)

// yamlError says what is wrong with a file without the names of Go's types.
func yamlError(err error) error {
	var wrong *yaml.TypeError
	if !errors.As(err, &wrong) {
		return err
	}
	texts := make([]string, len(wrong.Errors))
	for i, text := range wrong.Errors {
		text = unknownKey.ReplaceAllString(text, `unknown key "$1"`)
		if m := wrongValue.FindStringSubmatch(text); m != nil {
			text = strings.Replace(text, m[0], fmt.Sprintf("%q is not allowed: it must be %s", m[1]+m[3], yamlKind(m[2]+m[4])), 1)
		}
		texts[i] = text
	}
	return errors.New(strings.Join(texts, "; "))
}

// yamlKind names what a Go type is in a file.
func yamlKind(goType string) string {
	switch {
	case strings.HasPrefix(goType, "[]"):
		return "a list"
	case goType == "time.Duration":
		return "a time like 10s"
	case goType == "int":
		return "a number"
	case goType == "string":
		return "a text"
	}
	return "a mapping of keys"
}

// loadPlan reads and checks a plan.
func loadPlan(text []byte) (*fence.Plan, error) {
	var file fencePlan
	dec := yaml.NewDecoder(bytes.NewReader(text))
	dec.KnownFields(true)
	switch err := dec.Decode(&file); {
	case errors.Is(err, io.EOF):
		return nil, errors.New("it is empty: it must name resources and levels of devices")
	case err != nil:
		return nil, yamlError(err)
	}
	plan := &fence.Plan{Resources: file.Resources}
	for _, parts := range file.Levels {
		var level fence.Level
		for _, p := range parts {
			d, err := device.NewCommand(p.CommandConfig)
			if err != nil {
				return nil, errors.New(planKeys.Replace(err.Error()))
			}
			level = append(level, fence.Cut{Device: d, Resources: p.Resources, Timeout: p.Timeout})
		}
		plan.Levels = append(plan.Levels, level)
	}
	if err := plan.Check(); err != nil {
		return nil, errors.New(planKeys.Replace(err.Error()))
	}
	return plan, nil
}

type fenceTestCmd struct {
	Plan      string            `required:"" placeholder:"FILE" help:"YAML file: resources, and levels of devices with name, fence, status, fenced, not_fenced, env, timeout, resources."`
	Node      string            `required:"" placeholder:"NAME" help:"The node to ask about."`
	Lifecycle uint64            `placeholder:"N" help:"Its process run, for devices that want to know."`
	Label     map[string]string `placeholder:"KEY=VALUE" help:"What the node would have written down for the devices."`
	Fence     bool              `env:"-" help:"Really cut the node off, level by level, until one has. Without it the devices only look."`
}

// fenceTestReply is what fence test answers with --json.
type fenceTestReply struct {
	OK      bool           `json:"ok"`
	Node    string         `json:"node"`
	Fenced  bool           `json:"fenced"` // a whole level was seen to have cut the node off
	Devices []fenceAnswers `json:"devices"`
}

// fenceAnswers is what one device said.
type fenceAnswers struct {
	Level  int          `json:"level"` // from 1
	Device string       `json:"device"`
	Answer fence.Answer `json:"answer"`
	Detail string       `json:"detail"`
	Output string       `json:"output,omitempty"`
}

func (c *fenceTestCmd) Run(a *app) error {
	if err := wire.CheckName("--node", c.Node); err != nil {
		return withCode(ExitUsage, err)
	}
	text, err := os.ReadFile(c.Plan)
	if err == nil && len(text) > maxConfigFile {
		err = fmt.Errorf("%s is larger than %d bytes", c.Plan, maxConfigFile)
	}
	if err != nil {
		return withCode(ExitUsage, fmt.Errorf("--plan: %w", err))
	}
	plan, err := loadPlan(text)
	if err != nil {
		return withCode(ExitUsage, fmt.Errorf("--plan %s: %w", c.Plan, err))
	}
	r := c.ask(a.sig.ctx, plan)
	if err := a.print(r, func(w io.Writer) { printAnswers(w, r, c.Fence) }); err != nil {
		return err
	}
	switch {
	case a.sig.ctx.Err() != nil:
		return a.sig.ctx.Err()
	case c.Fence && !r.Fenced:
		return withCode(ExitFailure, fmt.Errorf("node %q: no level of devices has confirmed that it is fenced", c.Node))
	case !r.OK:
		return withCode(ExitFailure, errors.New("not every device could tell how the node stands"))
	}
	return nil
}

// ask asks every device, or fences with them until a level has succeeded.
func (c *fenceTestCmd) ask(ctx context.Context, plan *fence.Plan) fenceTestReply {
	target := fence.Target{Node: c.Node, Lifecycle: c.Lifecycle, Labels: c.Label}
	r := fenceTestReply{OK: true, Node: c.Node}
	for i, level := range plan.Levels {
		whole := true
		for _, cut := range level {
			var rep fence.Report
			if c.Fence {
				rep = cut.Run(ctx, target)
			} else {
				rep = cut.Look(ctx, target)
			}
			whole = whole && rep.Answer == fence.Fenced
			r.OK = r.OK && rep.Answer != fence.Unknown
			r.Devices = append(r.Devices, fenceAnswers{i + 1, cut.Device.Name(), rep.Answer, rep.Detail, string(rep.Output)})
		}
		r.Fenced = r.Fenced || whole
		if c.Fence && whole {
			r.OK = true
			break
		}
	}
	r.OK = r.OK && (r.Fenced || !c.Fence)
	return r
}

func printAnswers(w io.Writer, r fenceTestReply, did bool) {
	for _, d := range r.Devices {
		fmt.Fprintf(w, "level %d, %s: %s: %s\n", d.Level, d.Device, d.Answer, d.Detail)
		for line := range strings.Lines(d.Output) {
			fmt.Fprintf(w, "    %s\n", strings.TrimRight(line, "\n"))
		}
	}
	verb := "is"
	if did {
		verb = "was seen to be"
	}
	state := "not fenced"
	if r.Fenced {
		state = "fenced"
	}
	fmt.Fprintf(w, "node %s %s %s\n", r.Node, verb, state)
}
