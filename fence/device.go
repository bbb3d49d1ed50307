package fence

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"natsfabric/internal/leash"
)

// Answer is what a fence device says. The zero value claims nothing.
type Answer uint8

// The answers of a fence device.
const (
	// Unknown: it could not be told. It counts as not fenced.
	Unknown Answer = iota
	// Fenced: the target can do no more harm through what the device controls.
	Fenced
	// NotFenced: it still can.
	NotFenced
)

var answerNames = [...]string{Unknown: "unknown", Fenced: "fenced", NotFenced: "not fenced"}

// String returns "fenced", "not fenced" or "unknown".
func (a Answer) String() string {
	if int(a) < len(answerNames) {
		return answerNames[a]
	}
	return answerNames[Unknown]
}

// MarshalText returns String's text.
func (a Answer) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// UnmarshalText reads String's text. Everything else is Unknown.
func (a *Answer) UnmarshalText(text []byte) error {
	*a = Answer(max(0, slices.Index(answerNames[:], string(text))))
	return nil
}

// Report is an answer and what led to it.
type Report struct {
	Answer Answer
	// Detail says in one sentence why, for people.
	Detail string
	// Output is what a program wrote, the end of it, when there was one.
	Output []byte

	lied bool // set by Cut.Run: the device said fenced, and its check did not
}

// Target is who is to be fenced.
type Target struct {
	// Node is the name under which the devices know it.
	Node string
	// Lifecycle is its process run, 0 when not known.
	Lifecycle uint64
	// Labels are what the node itself has written down for the devices.
	Labels map[string]string
	// Token is the one whose holder is fenced: a device that remembers tokens can refuse one that is not the newest.
	Token Token
}

// Device cuts a node off, from outside of it: it asks nothing of the node itself (FE-6). Drivers stand in fence/device.
//
// Concurrency: a Device is used by one goroutine at a time of each Election that has it, so by several when it is shared.
type Device interface {
	// Name tells the device apart from the others of a plan.
	Name() string
	// Fence cuts the target off, and does so again when it was cut off before. It returns when ctx ends; one that does not
	// is waited for no longer, counts as Unknown, and is not called again before it has returned.
	Fence(ctx context.Context, t Target) Report
	// Check looks whether the target is cut off, changes nothing, and does not rest on what Fence was told: Fenced only
	// when it has seen that the process is gone or the path is closed.
	Check(ctx context.Context, t Target) Report
}

// DefaultDeviceTimeout bounds a device's Fence, and again its Check.
const DefaultDeviceTimeout = 30 * time.Second

// MaxDeviceTimeout is the longest time that a device may be given.
const MaxDeviceTimeout = 10 * time.Minute

// Cut is a device and what it closes.
type Cut struct {
	Device Device
	// Resources are those of Plan.Resources that the device closes for the target. Empty means all of them: the device
	// stops the node or its process (FE-6).
	Resources []string
	// Timeout bounds the device's Fence, and again its Check (DefaultDeviceTimeout).
	Timeout time.Duration
}

// Level is one way to fence: all of its cuts together.
type Level []Cut

// Plan is how a node is fenced: by its first level, and when that fails by the next one (FE-8).
type Plan struct {
	// Resources are what the node writes to. Every level must close all of them (FE-7), either by a device that stops the
	// node, or by one for each resource.
	Resources []string
	// Levels are tried in order. At least one.
	Levels []Level
}

// maxCuts bounds the devices of a level, so that a record keeps the answers of a whole pass through one.
const maxCuts = 16

// Check returns an error for a plan whose levels leave a resource open, or that is otherwise wrong.
func (p *Plan) Check() error {
	if len(p.Levels) == 0 {
		return errors.New("fence: Plan.Levels is empty: without a device there is no fencing")
	}
	for i, level := range p.Levels {
		var names, closed []string
		for _, c := range level {
			switch {
			case c.Device == nil:
				return fmt.Errorf("fence: Plan.Levels[%d] has a cut without a device", i)
			case c.Timeout < 0 || c.Timeout > MaxDeviceTimeout:
				return fmt.Errorf("fence: Plan.Levels[%d]: timeout %v of device %q is not allowed: it must be up to %v, or 0 for %v", i, c.Timeout, c.Device.Name(), MaxDeviceTimeout, DefaultDeviceTimeout)
			case c.Device.Name() == "" || slices.Contains(names, c.Device.Name()):
				return fmt.Errorf("fence: Plan.Levels[%d]: device name %q is empty or stands twice", i, c.Device.Name())
			}
			names = append(names, c.Device.Name())
			for _, r := range c.Resources {
				if !slices.Contains(p.Resources, r) {
					return fmt.Errorf("fence: Plan.Levels[%d]: device %q closes %q, which is none of Plan.Resources %q", i, c.Device.Name(), r, p.Resources)
				}
			}
			if len(c.Resources) == 0 {
				closed = append(closed, p.Resources...)
			}
			closed = append(closed, c.Resources...)
		}
		if len(level) == 0 || len(level) > maxCuts {
			return fmt.Errorf("fence: Plan.Levels[%d] has %d devices, it must have 1 to %d", i, len(level), maxCuts)
		}
		for _, r := range p.Resources {
			if !slices.Contains(closed, r) {
				return fmt.Errorf("fence: Plan.Levels[%d] leaves resource %q open: every level must close all of %q", i, r, p.Resources)
			}
		}
	}
	return nil
}

func (c Cut) timeout() time.Duration {
	if c.Timeout == 0 {
		return DefaultDeviceTimeout
	}
	return c.Timeout
}

// Look asks the device's check how the target stands.
func (c Cut) Look(ctx context.Context, t Target) Report {
	return c.call(ctx, new(leash.Leash), "", t, c.Device.Check)
}

// Run tells the device to fence, and believes only what its check sees then: a device that says fenced while its check
// does not gets the check's answer.
func (c Cut) Run(ctx context.Context, t Target) Report {
	return c.run(ctx, new(leash.Leash), "", t)
}

// run is Run with calls that are held by l. A device whose call was given up under this name is not called again until that
// has returned, neither to fence nor to check, so at most one of its calls is ever out.
func (c Cut) run(ctx context.Context, l *leash.Leash, name string, t Target) Report {
	did := c.call(ctx, l, name, t, c.Device.Fence)
	saw := c.call(ctx, l, name, t, c.Device.Check)
	switch {
	case saw.Answer == Fenced:
		return Report{Answer: Fenced, Detail: clip(saw.Detail), Output: saw.Output}
	case did.Answer == Fenced:
		// A device that lies, or is mistaken.
		return Report{Answer: saw.Answer, Detail: clip(fmt.Sprintf("the device said fenced, its check says %s: %s", saw.Answer, saw.Detail)), Output: saw.Output, lied: true}
	}
	return Report{Answer: saw.Answer, Detail: clip(fmt.Sprintf("the device: %s: %s; the check: %s: %s", did.Answer, did.Detail, saw.Answer, saw.Detail)), Output: did.Output}
}

// deviceGrace is how long a device may take to return once its time is over.
const deviceGrace = 2 * time.Second

// call makes one call of the device, which must not outlive its time: one that does has no answer, and nor has one that panics.
func (c Cut) call(ctx context.Context, l *leash.Leash, name string, t Target, f func(context.Context, Target) Report) Report {
	ctx, cancel := context.WithTimeout(ctx, c.timeout())
	defer cancel()
	// A process that was frozen may look here before the context's own timer has come round.
	if end, ok := ctx.Deadline(); ctx.Err() != nil || ok && !time.Now().Before(end) {
		return Report{Detail: "not tried: its time is over"}
	}
	r, err := leash.Call(ctx, l, name, deviceGrace, func(ctx context.Context) (Report, error) { return f(ctx, t), nil })
	if err != nil {
		return Report{Detail: err.Error()}
	}
	return r
}

func clip(s string) string {
	if len(s) > maxDetail {
		return s[:maxDetail] + "..."
	}
	return s
}
