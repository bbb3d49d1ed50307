package bench

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// Defaults of Options.
const (
	DefaultPairs      = 15
	DefaultSlice      = 400 * time.Millisecond
	DefaultIdleWindow = 6 * time.Second
	DefaultIdleNodes  = 100
	DefaultObjects    = 1_000_000
	DefaultOthers     = 1_000
	DefaultDrain      = 10_000
	DefaultWorkers    = 10_000
)

// What a quick run takes instead.
const (
	quickPairs      = 3
	quickSlice      = 100 * time.Millisecond
	quickIdleWindow = time.Second
	quickIdleNodes  = 10
	quickObjects    = 10_000
	quickDrain      = 300
	quickWorkers    = 500
)

// Options says what Run measures. Every field but Command has a default.
type Options struct {
	// Command is how to start this program again as a child: Run appends the name of a role, and the program calls
	// Child with it. Required.
	Command []string
	// Scenarios are the names of the scenarios to run, in the order of Scenarios. Default all.
	Scenarios []string
	// Payloads are the message sizes in bytes, 1 to 1 MiB less 1 KiB. Default 16 and 1,024.
	Payloads []int
	// Callers are the numbers of operations under way at the same time, 1 to 1,024. Default 1 and 64.
	Callers []int
	// Pairs is the number of rounds, each with a slice of every side, 1 to 1,000. Default 15.
	Pairs int
	// Slice is the length of a slice, 10 ms to 1 min. Default 400 ms.
	Slice time.Duration
	// IdleWindow is the length of a round of the scenario idle, 10 ms to 10 min. It should hold several renewals of
	// a lease. Default 6 s.
	IdleWindow time.Duration
	// IdleNodes is the size of the large mesh of the scenario idle, 4 to 500. Default 100.
	IdleNodes int
	// Objects is the number of idle objects that the scenario idle makes on one node, 10 to 10,000,000. Default
	// 1,000,000.
	Objects int
	// Others is the number of objects beside the hot one of the scenario hot, 1 to 100,000. Default 1,000.
	Others int
	// Drain is the number of Actors that a member has when the scenario drain has it move them, 1 to 1,000,000. Default
	// 10,000.
	Drain int
	// Workers is the number of workers that the monitors of the scenario supervise watch, 10 to 1,000,000. Default 10,000.
	Workers int
	// Quick takes values that end within minutes for Pairs, Slice, IdleWindow, IdleNodes, Objects, Drain and Workers, where they are
	// not given: to see that everything works, not to compare.
	Quick bool
	// Dir is where servers keep their data; it is created and removed. Default: a temporary folder.
	Dir string
	// Progress, if set, is told what begins.
	Progress func(string)
}

// OptionError says which options are wrong: for each, its name, its value and what is allowed.
type OptionError struct{ Err error }

func (e *OptionError) Error() string { return e.Err.Error() }

func (e *OptionError) Unwrap() error { return e.Err }

func (o Options) withDefaults() (Options, error) {
	if len(o.Scenarios) == 0 {
		for _, s := range scenarios {
			o.Scenarios = append(o.Scenarios, s.Name)
		}
	}
	if len(o.Payloads) == 0 {
		o.Payloads = []int{16, 1024}
	}
	if len(o.Callers) == 0 {
		o.Callers = []int{1, 64}
	}
	if o.Quick {
		or(&o.Pairs, quickPairs)
		or(&o.Slice, quickSlice)
		or(&o.IdleWindow, quickIdleWindow)
		or(&o.IdleNodes, quickIdleNodes)
		or(&o.Objects, quickObjects)
		or(&o.Drain, quickDrain)
		or(&o.Workers, quickWorkers)
	}
	or(&o.Pairs, DefaultPairs)
	or(&o.Slice, DefaultSlice)
	or(&o.IdleWindow, DefaultIdleWindow)
	or(&o.IdleNodes, DefaultIdleNodes)
	or(&o.Objects, DefaultObjects)
	or(&o.Others, DefaultOthers)
	or(&o.Drain, DefaultDrain)
	or(&o.Workers, DefaultWorkers)
	if o.Progress == nil {
		o.Progress = func(string) {}
	}

	var errs []error
	if len(o.Command) == 0 {
		errs = append(errs, errors.New("Command is required"))
	}
	for _, name := range o.Scenarios {
		if !slices.ContainsFunc(scenarios, func(s scenario) bool { return s.Name == name }) {
			errs = append(errs, fmt.Errorf("Scenarios: %q is not known", name))
		}
	}
	for _, p := range o.Payloads {
		errs = append(errs, inRange("Payloads", p, 1, 1<<20-1024))
	}
	for _, c := range o.Callers {
		errs = append(errs, inRange("Callers", c, 1, 1024))
	}
	err := errors.Join(append(errs,
		inRange("Pairs", o.Pairs, 1, 1000),
		inRange("Slice", o.Slice, 10*time.Millisecond, time.Minute),
		inRange("IdleWindow", o.IdleWindow, 10*time.Millisecond, 10*time.Minute),
		inRange("IdleNodes", o.IdleNodes, smallMesh+1, 500),
		inRange("Objects", o.Objects, 10, 10_000_000),
		inRange("Others", o.Others, 1, 100_000),
		inRange("Drain", o.Drain, 1, 1_000_000),
		inRange("Workers", o.Workers, smallFleet, 1_000_000))...)
	if err != nil {
		return o, &OptionError{err}
	}
	return o, nil
}

func or[T comparable](v *T, otherwise T) {
	var zero T
	if *v == zero {
		*v = otherwise
	}
}

func inRange[T int | time.Duration](field string, v, lo, hi T) error {
	if v < lo || v > hi {
		return fmt.Errorf("%s %v is not allowed: it must be %v to %v", field, v, lo, hi)
	}
	return nil
}
