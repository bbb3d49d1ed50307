package fence

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"natsfabric/outcome"
)

// holder is a Holder that tests turn off.
type holder struct {
	token Token
	err   atomic.Pointer[error]
}

func (h *holder) FenceToken() (Token, error) {
	if err := h.err.Load(); err != nil {
		return h.token, *err
	}
	return h.token, nil
}

func (h *holder) fail(err error) { h.err.Store(&err) }

func at(sequence uint64) Token {
	return Token{Source: "m/actor/a", Epoch: 1, Generation: 7, Sequence: sequence}
}

func holding(t *testing.T, tok Token) (context.Context, *holder) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), readyIn)
	t.Cleanup(cancel)
	h := &holder{token: tok}
	return NewContext(ctx, h), h
}

func pass() error { return nil }

func TestConformance(t *testing.T) {
	// FE-13: a node whose lease is lost and whose turns do not end stops itself.
	t.Run("FE-13", stopsItself)

	// FE-12: where tokens are introduced it is said what they cannot stop.
	t.Run("FE-12", func(t *testing.T) {
		for file, says := range map[string]string{"doc.go": "cannot be fenced (FE-12)", "../docs/fencing.md": "## What cannot be fenced"} {
			if text, err := os.ReadFile(file); err != nil || !strings.Contains(string(text), says) {
				t.Errorf("%s does not say %q (%v)", file, says, err)
			}
		}
	})

	// FE-1: the resource remembers the highest and refuses lower ones when the write arrives.
	t.Run("FE-1", func(t *testing.T) {
		g := NewGuard("file", "")
		ctx, _ := holding(t, at(1))
		var wrote []uint64
		for _, c := range []struct {
			t  Token
			ok bool
		}{{at(1), true}, {at(3), true}, {at(2), false}, {at(3), true}, {Token{"m/actor/a", 1, 6, 99}, false}, {Token{"m/actor/a", 2, 1, 1}, true}, {at(4), false}} {
			err := g.DoToken(ctx, c.t, func() error { wrote = append(wrote, c.t.Sequence); return nil })
			if (err == nil) != c.ok {
				t.Fatalf("a write with %s ended with %v", c.t, err)
			}
		}
		if len(wrote) != 4 {
			t.Fatalf("%d writes were called: %v", len(wrote), wrote)
		}
		if high, ok := g.Highest(); !ok || high.Epoch != 2 {
			t.Fatalf("the highest is %s, %t", high, ok)
		}
	})

	// FE-2: a holder that is paused between its own check and its write, and overtaken, writes nothing.
	t.Run("FE-2", func(t *testing.T) {
		g := NewGuard("account", "m/actor/a")
		balance := "empty"
		write := func(v string) func() error { return func() error { balance = v; return nil } }
		paused, checked, result := make(chan struct{}), make(chan struct{}), make(chan error, 1)
		old, _ := holding(t, at(33))
		go func() {
			if tok, err := FromContext(old); err != nil || tok != at(33) {
				result <- errors.New("the old holder has no token")
				return
			}
			close(checked) // and believes from here on that it may write
			<-paused
			result <- g.Do(old, write("by 33"))
		}()
		<-checked
		successor, _ := holding(t, at(34))
		if err := g.Do(successor, write("by 34")); err != nil {
			t.Fatal(err)
		}
		close(paused)
		err := <-result
		var stale *StaleError
		if !errors.As(err, &stale) || stale.StoppedBy != ByToken || stale.Presented != at(33) || stale.Seen != at(34) {
			t.Fatalf("the write with 33 ended with %v", err)
		}
		if balance != "by 34" {
			t.Fatalf("the resource says %q", balance)
		}
	})

	// FE-3: equal passes; a lower one gets a typed error and changes nothing; another source is an error of its own.
	t.Run("FE-3", func(t *testing.T) {
		t.Run("NATS", guardsOfNATS) // a KV key and a stream; SQL stands in fence/sqltest
		g := NewGuard("file", "")
		ctx, _ := holding(t, at(5))
		for range 2 {
			if err := g.Do(ctx, pass); err != nil {
				t.Fatal(err)
			}
		}
		lower, _ := holding(t, at(4))
		err := g.Do(lower, func() error { t.Error("called"); return nil })
		if !errors.Is(err, outcome.Rejected) || !errors.Is(err, outcome.NotAccepted) || outcome.KindOf(err) != outcome.Rejected {
			t.Fatalf("a lower token ended with %v", err)
		}
		other, _ := holding(t, Token{Source: "m/actor/b", Epoch: 9, Generation: 9, Sequence: 9})
		var source *SourceError
		if err := g.Do(other, func() error { t.Error("called"); return nil }); !errors.As(err, &source) || source.Bound != "m/actor/a" || !errors.Is(err, outcome.InvalidOperation) {
			t.Fatalf("a token of another source ended with %v", err)
		}
		if high, _ := g.Highest(); high != at(5) {
			t.Fatalf("a refused write moved the highest to %s", high)
		}
	})

	// FE-10: which barrier stopped a write is in the error and in the counters.
	t.Run("FE-10", func(t *testing.T) {
		g := NewGuard("file", "")
		ctx, h := holding(t, at(5))
		if err := g.Do(ctx, pass); err != nil {
			t.Fatal(err)
		}
		lower, _ := holding(t, at(4))
		if err := g.Do(lower, pass); !strings.Contains(err.Error(), "stopped by the token") {
			t.Fatalf("the error says %q", err)
		}
		lost := errors.New("the lease ended")
		h.fail(lost)
		err := g.Do(ctx, func() error { t.Error("called"); return nil })
		var stale *StaleError
		if !errors.As(err, &stale) || stale.StoppedBy != ByLease || !errors.Is(err, lost) || !strings.Contains(err.Error(), "stopped by the lease") {
			t.Fatalf("a write after the loss ended with %v", err)
		}
		h.fail(outcome.New("fence", outcome.InvalidOperation, outcome.NotAccepted, "", "the commit is not known yet"))
		if err := g.Do(ctx, func() error { t.Error("called"); return nil }); !errors.Is(err, outcome.InvalidOperation) || errors.As(err, new(*StaleError)) {
			t.Fatalf("a write before the commit ended with %v", err)
		}
		if err := g.Do(context.Background(), pass); !errors.Is(err, outcome.InvalidOperation) {
			t.Fatalf("a write without a token ended with %v", err)
		}
		if err := g.DoToken(context.Background(), Token{}, pass); !errors.Is(err, outcome.InvalidOperation) {
			t.Fatalf("a write with the zero token ended with %v", err)
		}
		if err := g.DoToken(context.Background(), Token{Source: "m/actor/b"}, pass); !errors.As(err, new(*SourceError)) {
			t.Fatalf("a write of another source ended with %v", err)
		}
		if got, want := g.Stats(), (Stats{Passed: 1, StoppedByToken: 1, StoppedByLease: 1, OtherSource: 1, WithoutToken: 3}); got != want {
			t.Fatalf("the counters are %+v, want %+v", got, want)
		}
	})

	// FE-11: a guard raised in the new owner's activation stops the old one before the new one has written anything.
	t.Run("FE-11", func(t *testing.T) {
		g := NewGuard("file", "m/actor/a")
		activation, _ := holding(t, at(8))
		if err := g.Raise(activation); err != nil {
			t.Fatal(err)
		}
		old, _ := holding(t, at(7))
		var stale *StaleError
		if err := g.Do(old, func() error { t.Error("called"); return nil }); !errors.As(err, &stale) || stale.Seen != at(8) {
			t.Fatalf("the old owner's write ended with %v", err)
		}
		if err := g.RaiseToken(old, at(7)); !errors.As(err, &stale) {
			t.Fatalf("a guard was lowered: %v", err)
		}
		if s := g.Stats(); s.Passed != 0 {
			t.Fatalf("%d writes passed", s.Passed)
		}
	})
}

// A higher token waits for the write that runs, so that nothing of a lower one lands after it.
func TestRaiseWaitsForTheWriteThatRuns(t *testing.T) {
	g := NewGuard("file", "")
	inside, release, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	old, _ := holding(t, at(1))
	go func() { done <- g.Do(old, func() error { close(inside); <-release; return nil }) }()
	<-inside

	successor, _ := holding(t, at(2))
	short, cancel := context.WithTimeout(successor, 20*time.Millisecond)
	defer cancel()
	if err := g.Raise(short); !errors.Is(err, outcome.DeadlineExceeded) || !errors.Is(err, outcome.NotAccepted) || !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("a raise beside a write ended with %v", err)
	}
	raised := make(chan error, 1)
	go func() { raised <- g.Raise(successor) }()
	close(release)
	if err := errors.Join(<-done, <-raised); err != nil {
		t.Fatal(err)
	}
	if err := g.Do(old, pass); !errors.As(err, new(*StaleError)) {
		t.Fatalf("the old holder wrote: %v", err)
	}
}

// What is lost while a write waits for the guard is lost when its turn comes.
func TestOwnershipIsAskedAfterTheWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewGuard("file", "")
		inside, release, first, second := make(chan struct{}), make(chan struct{}), make(chan error, 1), make(chan error, 1)
		ctx, h := holding(t, at(1))
		go func() { first <- g.Do(ctx, func() error { close(inside); <-release; return nil }) }()
		<-inside
		go func() { second <- g.Do(ctx, func() error { t.Error("called"); return nil }) }()
		synctest.Wait() // it waits
		h.fail(errors.New("the lease ended"))
		close(release)
		if err := <-first; err != nil {
			t.Fatal(err)
		}
		var stale *StaleError
		if err := <-second; !errors.As(err, &stale) || stale.StoppedBy != ByLease {
			t.Fatalf("the waiting write ended with %v", err)
		}

		ended, cancel := context.WithCancel(NewContext(context.Background(), &holder{token: at(1)}))
		cancel()
		if err := g.Do(ended, func() error { t.Error("called"); return nil }); !errors.Is(err, context.Canceled) || !errors.Is(err, outcome.NotAccepted) {
			t.Fatalf("a write under an ended context ended with %v", err)
		}
	})
}

// A guard that was made for a source takes no token of another one, not even as the first.
func TestGuardOfOneSource(t *testing.T) {
	g := NewGuard("file", "m/actor/b")
	var other *SourceError
	if err := g.RaiseToken(t.Context(), at(1)); !errors.As(err, &other) || other.Bound != "m/actor/b" {
		t.Fatalf("a token of another source got %v", err)
	}
	if seen, ok := g.Highest(); ok || g.Stats().OtherSource != 1 {
		t.Fatalf("it has seen %s, %+v", seen, g.Stats())
	}
}

func TestWriteErrorAndPanicPassThrough(t *testing.T) {
	g := NewGuard("file", "")
	ctx, _ := holding(t, at(1))
	full := errors.New("disk full")
	if err := g.Do(ctx, func() error { return full }); err != full {
		t.Fatalf("the write's error came as %v", err)
	}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic was swallowed")
			}
		}()
		_ = g.Do(ctx, func() error { panic("torn") })
	}()
	if err := g.Do(ctx, pass); err != nil {
		t.Fatalf("after a panic: %v", err)
	}
	if s := g.Stats(); s.Passed != 3 {
		t.Fatalf("%d writes counted", s.Passed)
	}
}

// Many holders at once: what was written never goes backwards.
func TestWritesNeverGoBackwards(t *testing.T) {
	g := NewGuard("file", "")
	var last uint64 // guarded by the guard itself: the race detector watches
	var wg sync.WaitGroup
	for sequence := range uint64(8) {
		wg.Go(func() {
			ctx := NewContext(context.Background(), &holder{token: at(sequence + 1)})
			for range 500 {
				err := g.Do(ctx, func() error {
					if sequence+1 < last {
						t.Errorf("%d wrote after %d", sequence+1, last)
					}
					last = sequence + 1
					return nil
				})
				if err != nil && !errors.As(err, new(*StaleError)) {
					t.Errorf("unexpected: %v", err)
				}
			}
		})
	}
	wg.Wait()
	s := g.Stats()
	if last != 8 || s.Passed+s.StoppedByToken != 8*500 {
		t.Fatalf("the last writer is %d, the counters are %+v", last, s)
	}
}
