package fencetest

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"natsfabric/fence"
)

// Mode is how a Device behaves.
type Mode int

// The modes of a Device.
const (
	// Works: the device cuts off, and its check sees it.
	Works Mode = iota
	// Fails: the device says that it could not, and it could not.
	Fails
	// Lies: the device says fenced and does nothing; its check sees that.
	Lies
	// Mute: the device does nothing and neither it nor its check can tell.
	Mute
	// Hangs: the device answers only when its time is up, that it cannot tell, and has done nothing.
	Hangs
	// Secret: the device cuts off and says that it cannot tell; its check sees that it is done.
	Secret
)

// Device is a fence device that a test controls. The zero value is not usable: see New.
//
// Concurrency: its methods may be called from any goroutine.
type Device struct {
	name string

	mu    sync.Mutex
	mode  Mode
	calls []fence.Target
	cut   []string
	onCut func(fence.Target)
}

// New returns a device that works. onCut, when set, is called with each target that is cut off, before the device answers:
// there a test stops what the target stands for.
func New(name string, onCut func(fence.Target)) *Device { return &Device{name: name, onCut: onCut} }

// Set changes how the device behaves from now on.
func (d *Device) Set(m Mode) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mode = m
}

// Name returns the name.
func (d *Device) Name() string { return d.name }

// Calls returns the targets for which Fence was called, in order.
func (d *Device) Calls() []fence.Target {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.calls)
}

// Release forgets that the node was cut off: it was repaired.
func (d *Device) Release(node string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.cut = slices.DeleteFunc(d.cut, func(n string) bool { return n == node })
}

// Fence does what the mode says.
func (d *Device) Fence(ctx context.Context, t fence.Target) fence.Report {
	d.mu.Lock()
	mode := d.mode
	d.calls = append(d.calls, t)
	d.mu.Unlock()
	switch mode {
	case Works, Secret:
		if d.onCut != nil {
			d.onCut(t)
		}
		d.mu.Lock()
		d.cut = append(d.cut, t.Node)
		d.mu.Unlock()
		if mode == Secret {
			return fence.Report{Detail: "no answer"}
		}
	case Fails:
		return fence.Report{Answer: fence.NotFenced, Detail: "out of order"}
	case Mute:
		return fence.Report{Detail: "no answer"}
	case Hangs:
		<-ctx.Done()
		return fence.Report{Detail: fmt.Sprint("no answer: ", context.Cause(ctx))}
	}
	return fence.Report{Answer: fence.Fenced, Detail: "done"}
}

// Check says what is so, unless the mode is Mute or Hangs.
func (d *Device) Check(ctx context.Context, t fence.Target) fence.Report {
	d.mu.Lock()
	mode, cut := d.mode, slices.Contains(d.cut, t.Node)
	d.mu.Unlock()
	switch {
	case mode == Hangs:
		<-ctx.Done()
		return fence.Report{Detail: fmt.Sprint("no answer: ", context.Cause(ctx))}
	case mode == Mute:
		return fence.Report{Detail: "no answer"}
	case cut:
		return fence.Report{Answer: fence.Fenced, Detail: "seen to be cut off"}
	}
	return fence.Report{Answer: fence.NotFenced, Detail: "seen to be alive"}
}
