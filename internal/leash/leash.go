// Package leash calls code that is not this project's own, fence devices, restarters, collectors of logs, notifiers, and comes
// back in time whatever that code does. A call that does not return is given up, and keeps its goroutine until it does; while one
// is out, its name is not called again, so that nothing piles up behind something that hangs.
package leash

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// What became of a call that has no result of its own.
var (
	// ErrLate: it did not return when its time was over, and was given up.
	ErrLate = errors.New("it did not return when its time was over")
	// ErrOut: it was not made, for an earlier one under this name was given up and has not returned since.
	ErrOut = errors.New("not called: an earlier call was given up and has not returned")
)

// Leash remembers the calls that were given up. The zero value is ready.
//
// Concurrency: any number of goroutines may use a Leash.
type Leash struct {
	mu  sync.Mutex
	out map[string]int // guarded by mu; calls that were given up and have not returned, by name
}

// Out counts the calls that were given up and have not returned.
func (l *Leash) Out() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, k := range l.out {
		n += k
	}
	return n
}

// Call calls f and returns what it does, or ErrLate when it has not returned some grace after ctx ended, or ErrOut. A panic
// of f is an error. Calls that are made under one name at the same time may all be given up; after the first of them no more
// are made until all have returned.
func Call[T any](ctx context.Context, l *Leash, name string, grace time.Duration, f func(context.Context) (T, error)) (T, error) {
	var none T
	l.mu.Lock()
	out := l.out[name]
	l.mu.Unlock()
	if out > 0 {
		return none, ErrOut
	}
	type result struct {
		v   T
		err error
	}
	done := make(chan result, 1)
	givenUp := false // guarded by l.mu
	go func() {
		var r result
		defer func() {
			if p := recover(); p != nil {
				r.err = fmt.Errorf("it panicked: %v", p)
			}
			l.mu.Lock()
			defer l.mu.Unlock()
			done <- r
			if givenUp {
				if l.out[name]--; l.out[name] == 0 {
					delete(l.out, name)
				}
			}
		}()
		r.v, r.err = f(ctx)
	}()
	select {
	case r := <-done:
		return r.v, r.err
	case <-ctx.Done():
	}
	late := time.NewTimer(grace)
	defer late.Stop()
	select {
	case r := <-done:
		return r.v, r.err
	case <-late.C:
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case r := <-done:
		return r.v, r.err
	default:
	}
	givenUp = true
	if l.out == nil {
		l.out = map[string]int{}
	}
	l.out[name]++
	return none, ErrLate
}
