package main

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"natsfabric/fabrictest"
	"natsfabric/outcome"
)

func TestMain(m *testing.M) { fabrictest.VerifyTestMain(m) }

func TestStory(t *testing.T) {
	var out strings.Builder
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := run(ctx, &out); err != nil {
		t.Fatal(err)
	}
	for _, says := range []string{"DeadlineExceeded (Unknown)", "done once, balance 100", "repeated true, balance 100", "balance 150"} {
		if !strings.Contains(out.String(), says) {
			t.Errorf("it does not say %q:\n%s", says, out.String())
		}
	}
}

// Many tellers whose answers are lost now and then make each deposit once, and a later incarnation of the account
// remembers the keys.
func TestEachDepositOnce(t *testing.T) {
	srv := fabrictest.StartServer(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	b, err := open(ctx, srv.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer b.close(context.WithoutCancel(ctx))
	actors := b.client.Actors()
	ref, err := actors.Create(ctx, accountType, "alice", nil)
	if err != nil {
		t.Fatal(err)
	}

	const tellers, each = 4, 10
	var unknown sync.Map
	var all sync.WaitGroup
	for n := range tellers {
		teller := &teller{actors: actors, timeout: 100 * time.Millisecond, tell: func(_ string, args ...any) {
			for _, a := range args {
				if err, ok := a.(error); ok && errors.Is(err, outcome.Unknown) {
					unknown.Store(n, true)
				}
			}
		}}
		all.Go(func() {
			for i := range each {
				if i%5 == 2 {
					b.answers.delayNext(300 * time.Millisecond)
				}
				if r, err := teller.deposit(ctx, "alice", strconv.Itoa(n)+"-"+strconv.Itoa(i), 1); err != nil || !r.Done {
					t.Errorf("teller %d, deposit %d: %+v, %v", n, i, r, err)
				}
			}
		})
	}
	all.Wait()
	seen := 0
	unknown.Range(func(any, any) bool { seen++; return true })
	if seen == 0 {
		t.Error("no outcome was unknown: nothing was shown")
	}

	if err := actors.Destroy(ctx, ref); err != nil {
		t.Fatal(err)
	}
	if _, err := actors.Create(ctx, accountType, "alice", nil); err != nil {
		t.Fatal(err)
	}
	teller := &teller{actors: actors, timeout: 10 * time.Second, tell: t.Logf}
	if r, err := teller.deposit(ctx, "alice", "0-0", 1); err != nil || !r.Repeated {
		t.Errorf("a later incarnation does not know the key: %+v, %v", r, err)
	}
	r, err := teller.deposit(ctx, "alice", "last", 1)
	if want := int64(tellers*each + 1); err != nil || r.Balance != want {
		t.Errorf("balance %d, want %d (%v)", r.Balance, want, err)
	}
}

// What the account refuses is not repeated.
func TestRefusedIsNotRepeated(t *testing.T) {
	srv := fabrictest.StartServer(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	b, err := open(ctx, srv.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer b.close(context.WithoutCancel(ctx))
	teller := &teller{actors: b.client.Actors(), timeout: 10 * time.Second, tell: t.Logf}
	if _, err := teller.deposit(ctx, "nobody", "k", 1); !errors.Is(err, outcome.NotFound) {
		t.Errorf("got %v, want NotFound", err)
	}
	if _, err := b.client.Actors().Create(ctx, accountType, "alice", nil); err != nil {
		t.Fatal(err)
	}
	if _, err := teller.deposit(ctx, "alice", "", 1); !errors.Is(err, outcome.InvalidOperation) || !errors.Is(err, outcome.Accepted) {
		t.Errorf("got %v, want InvalidOperation and Accepted", err)
	}
}
