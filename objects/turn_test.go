package objects

import (
	"context"
	"errors"
	"fmt"
	goruntime "runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"natsfabric/fence"
	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// handle returns an object whose turns run f, one after the other.
func handle(f func(ctx context.Context, req *Request) (Reply, error)) Object { return HandlerFunc(f) }

// A turn that nobody asks for Done is used again; one that was asked is not, and its context ends with the turn.
func TestContextReuse(t *testing.T) {
	t.Parallel()
	h := newHost(t, 10, Type{Name: "t"})
	var kept context.Context
	o := h.object(t, "o", handle(func(ctx context.Context, req *Request) (Reply, error) {
		kept = ctx
		if string(req.Data()) == "ask" {
			ctx.Done()
		}
		if ctx.Err() != nil {
			t.Errorf("a running turn's context: %v", ctx.Err())
		}
		return Reply{}, nil
	}))
	turn := func(data string) context.Context {
		t.Helper()
		if _, err := h.request(context.Background(), o, data); err != nil {
			t.Fatal(err)
		}
		return kept
	}
	first := turn("")
	if turn("") != first {
		t.Error("a context that nobody kept was not used again")
	}
	if !errors.Is(first.Err(), context.Canceled) {
		t.Errorf("between turns: %v", first.Err())
	}
	asked := turn("ask")
	if asked != first {
		t.Error("another context")
	}
	<-asked.Done()
	if !errors.Is(asked.Err(), context.Canceled) {
		t.Errorf("after the turn: %v", asked.Err())
	}
	next := turn("")
	if next == asked {
		t.Error("a context whose Done was asked for was used again")
	}
	if asked.Err() == nil {
		t.Error("the context of an earlier turn lives again")
	}
	<-next.Done() // asked between two turns, by somebody who kept it
	if turn("") == next {
		t.Error("a context whose Done was asked for after its turn was used again")
	}
}

// What a turn's context says, with and without a deadline.
func TestContextOfTurn(t *testing.T) {
	t.Parallel()
	h := newHost(t, 10, Type{Name: "t"})
	type key struct{}
	o := h.object(t, "o", handle(func(ctx context.Context, req *Request) (Reply, error) {
		at, ok := ctx.Deadline()
		if ok == req.OneWay() {
			t.Errorf("one way %v, deadline %v %v", req.OneWay(), at, ok)
		}
		if reqAt, reqOK := req.Deadline(); reqOK != ok || reqAt.Sub(at).Abs() > time.Second {
			t.Errorf("the request says %v %v, the context %v %v", reqAt, reqOK, at, ok)
		}
		if ctx.Value(key{}) != nil {
			t.Error("a value out of nowhere")
		}
		if token, err := fence.FromContext(ctx); err != nil || token.String() != "m/actor/o=20x:0000000000000003-000000000000000b-0000000000000001" {
			t.Errorf("token %v, %v", token, err)
		}
		sub, cancel := context.WithTimeout(context.WithValue(ctx, key{}, 1), time.Hour)
		defer cancel()
		if token, err := fence.FromContext(sub); err != nil || token.IsZero() {
			t.Errorf("token of a derived context: %v, %v", token, err)
		}
		if string(req.Data()) == "wait" {
			<-ctx.Done()
			<-sub.Done()
			if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
				t.Errorf("at the deadline: %v", ctx.Err())
			}
		}
		if string(req.Data()) == "spin" { // never asks for Done
			for ctx.Err() == nil {
				goruntime.Gosched()
			}
			if !errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
				t.Errorf("cause at the deadline: %v", context.Cause(ctx))
			}
		}
		return Reply{}, nil
	}))
	o.id = "o x"
	if err := h.send(o, ""); err != nil {
		t.Error(err)
	}
	if _, err := h.request(context.Background(), o, ""); err != nil {
		t.Error(err)
	}
	for _, data := range []string{"wait", "spin"} {
		if err := h.late(context.Background(), o, data, 50*time.Millisecond); err != nil { // the turn may answer a moment after the deadline, or before its caller has noticed that
			wantOutcome(t, err, outcome.DeadlineExceeded, outcome.Accepted)
		}
	}
	if _, err := h.request(context.Background(), o, ""); err != nil {
		t.Error(err)
	}
}

// A context that a handler keeps has no token and no life of its own after the turn, however it is used meanwhile.
func TestLeakedContext(t *testing.T) {
	t.Parallel()
	h := newHost(t, 10, Type{Name: "t"})
	leaks := make(chan context.Context, 100)
	handler := handle(func(ctx context.Context, _ *Request) (Reply, error) {
		select {
		case leaks <- ctx:
		default:
		}
		return Reply{}, nil
	})
	a, b := h.object(t, "a", handler), h.object(t, "b", handler)
	if _, err := h.request(context.Background(), a, ""); err != nil {
		t.Fatal(err)
	}
	leaked := <-leaks
	if _, err := fence.FromContext(leaked); outcome.KindOf(err) != outcome.InvalidOperation {
		t.Errorf("a token after the turn: %v", err)
	}
	if _, err := h.request(leaked, b, ""); err == nil {
		t.Error("a call with the context of a turn that is over")
	}
	stop := make(chan struct{})
	used := make(chan struct{})
	go func() { // it may see the object's next turn, never another object's
		defer close(used)
		for {
			select {
			case <-stop:
				return
			default:
			}
			if token, err := fence.FromContext(leaked); err == nil && token.Source != "m/actor/a" {
				t.Errorf("a token of %s", token.Source)
			}
			leaked.Err()
			leaked.Deadline()
			leaked.Value(1)
		}
	}()
	for range 500 {
		for _, o := range []*object{a, b} {
			if _, err := h.request(context.Background(), o, ""); err != nil {
				t.Error(err)
			}
		}
	}
	close(stop)
	<-used
}

// A caller is held neither by a handler that never returns nor by mail in front of it; a deadline that passes in the
// queue keeps the turn from running.
func TestDeadlines(t *testing.T) {
	t.Parallel()
	h := newHost(t, 10, Type{Name: "t"})
	gate := make(chan struct{})
	var ran atomic.Int64
	o := h.object(t, "o", handle(func(context.Context, *Request) (Reply, error) { ran.Add(1); <-gate; return Reply{}, nil }))
	if err := h.send(o, "blocks"); err != nil {
		t.Fatal(err)
	}
	waitRunning(t, o)
	err := h.late(context.Background(), o, "waits", 20*time.Millisecond)
	wantOutcome(t, err, outcome.DeadlineExceeded, outcome.Accepted)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v hides the context's error", err)
	}
	h.rt.defaultTimeout = 20 * time.Millisecond // before anybody else calls
	for range 3 {                               // an envelope's alarm is good for its next uses
		_, err = h.request(context.Background(), o, "waits by default")
		wantOutcome(t, err, outcome.DeadlineExceeded, outcome.Accepted)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancelled := make(chan error, 1)
	h.rt.defaultTimeout = long
	go func() { _, err := h.request(ctx, o, "is cancelled"); cancelled <- err }()
	waitMail(t, o, 5)
	cancel()
	err = within(t, cancelled, "the cancelled call")
	wantOutcome(t, err, outcome.DeadlineExceeded, outcome.Accepted)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v hides the cancellation", err)
	}
	_, err = h.request(ctx, o, "too late")
	wantOutcome(t, err, outcome.DeadlineExceeded, outcome.NotAccepted)
	stale := newInbound("stale")
	stale.deadline = time.Now().Add(500 * time.Millisecond) // which its offer has to come before
	if because := o.offer(newRemote(stale)); because != whyNot {
		t.Fatal(because)
	}
	eventually(t, func() error {
		if !stale.Past(time.Now()) {
			return errors.New("not past")
		}
		return nil
	})
	close(gate)
	wantOutcome(t, within(t, stale.failed, "the refusal"), outcome.DeadlineExceeded, outcome.Accepted)
	if _, err := h.request(context.Background(), o, "behind them"); err != nil {
		t.Error(err)
	}
	// The sender's turn, the cancelled one (which nobody waits for, but whose deadline has not passed), the last.
	if ran.Load() != 3 {
		t.Errorf("%d turns ran", ran.Load())
	}
	if c := h.counts(); c.Accepted != 8 || c.Run != 3 || c.Expired != 5 {
		t.Errorf("counted %+v", c)
	}
}

// Panics are contained: the caller hears of it, and the object is kept or closed as its type says.
func TestPanics(t *testing.T) {
	t.Parallel()
	for _, policy := range []PanicPolicy{KeepOnPanic, DestroyOnPanic} {
		t.Run(fmt.Sprint(policy), func(t *testing.T) {
			t.Parallel()
			h := newHost(t, 10, Type{Name: "t", OnPanic: policy})
			gate := make(chan struct{})
			o := h.object(t, "o", handle(func(_ context.Context, req *Request) (Reply, error) {
				switch string(req.Data()) {
				case "panic":
					<-gate
					panic("at the disco")
				case "nil panic":
					panic(nil) //nolint:govet // what a handler may do
				case "exit":
					goruntime.Goexit()
				}
				return Reply{Data: req.Data()}, nil
			}))
			first, behind := make(chan error, 1), make(chan error, 1)
			go func() { _, err := h.request(context.Background(), o, "panic"); first <- err }()
			waitRunning(t, o)
			go func() { _, err := h.request(context.Background(), o, "behind"); behind <- err }()
			waitMail(t, o, 1)
			close(gate)
			err := within(t, first, "the panic's error")
			wantOutcome(t, err, outcome.InternalFailure, outcome.Accepted)
			if !strings.Contains(err.Error(), "at the disco") {
				t.Errorf("%v does not say what happened", err)
			}
			err = within(t, behind, "what was behind it")
			if policy == DestroyOnPanic {
				wantOutcome(t, err, outcome.Unavailable, outcome.Accepted)
				if why, _ := h.closedWhy("o"); why != ClosePanic {
					t.Errorf("closed by %q", why)
				}
				return
			}
			if err != nil {
				t.Error(err)
			}
			for _, how := range []string{"nil panic", "exit", "exit"} {
				_, err = h.request(context.Background(), o, how)
				wantOutcome(t, err, outcome.InternalFailure, outcome.Accepted)
			}
			if got, err := h.request(context.Background(), o, "still here"); err != nil || got != "still here" {
				t.Errorf("%q, %v", got, err)
			}
			if c := h.counts(); c.Panics != 4 || c.Failed != 4 || c.Run != 6 {
				t.Errorf("counted %+v", c)
			}
		})
	}
}

// A call in a circle ends at its deadline, with an error that names the circle.
func TestCycle(t *testing.T) {
	t.Parallel()
	h := newHost(t, 10, Type{Name: "t"})
	var a, b *object
	errs := make(chan error, 1)
	a = h.object(t, "a", handle(func(ctx context.Context, req *Request) (Reply, error) {
		_, err := h.request(ctx, b, "")
		return Reply{}, err
	}))
	b = h.object(t, "b", handle(func(ctx context.Context, req *Request) (Reply, error) {
		err := h.late(ctx, a, "", 50*time.Millisecond)
		errs <- err
		return Reply{}, err
	}))
	_, err := h.request(context.Background(), a, "")
	wantOutcome(t, err, outcome.DeadlineExceeded, outcome.Accepted)
	err = within(t, errs, "the end of the circle")
	wantOutcome(t, err, outcome.DeadlineExceeded, outcome.Accepted)
	if want := `actor "a" -> actor "b" -> actor "a"`; !strings.Contains(err.Error(), want) {
		t.Errorf("%v does not say %s", err, want)
	}
}

// A chain goes through its header and back, and is bounded.
func TestChain(t *testing.T) {
	t.Parallel()
	var c *chain
	for i := range maxChain {
		c = &chain{parent: c, kind: []kvlocation.ObjectKind{kvlocation.KindActor, kvlocation.KindSpot}[i%2], id: fmt.Sprintf("ö %d", i), depth: i + 1}
	}
	text := c.String()
	if !strings.HasPrefix(text, "actor/=C3=B6=200,spot/=C3=B6=201,") {
		t.Errorf("%s", text)
	}
	back := parseChain(text)
	if back.String() != text || back.depth != maxChain || back.path() != c.path() {
		t.Errorf("came back as %v", back)
	}
	for _, bad := range []string{"", "x", "actor/", "house/a", "actor/a,,", text + ",actor/a", "actor/ä"} {
		if parseChain(bad) != nil {
			t.Errorf("%q is a chain", bad)
		}
	}
	h := newHost(t, 10, Type{Name: "t"})
	errs := make(chan error, 1)
	o := h.object(t, "o", handle(func(ctx context.Context, _ *Request) (Reply, error) {
		_, err := callChain(ctx, "request")
		errs <- err
		return Reply{}, nil
	}))
	m := newInbound("")
	m.header = map[string][]string{"Fabric-Chain": {text}}
	o.offer(newRemote(m))
	wantOutcome(t, within(t, errs, "the refusal"), outcome.InvalidOperation, outcome.NotAccepted)
}

// Handlers' errors keep their kind, and are Accepted whatever they say.
func TestHandlerErrors(t *testing.T) {
	t.Parallel()
	h := newHost(t, 10, Type{Name: "t"})
	plain := errors.New("plain")
	o := h.object(t, "o", handle(func(_ context.Context, req *Request) (Reply, error) {
		if string(req.Data()) == "plain" {
			return Reply{}, plain
		}
		return Reply{}, outcome.New("call", outcome.NotFound, outcome.NotAccepted, "something else", "")
	}))
	_, err := h.request(context.Background(), o, "plain")
	wantOutcome(t, err, outcome.InternalFailure, outcome.Accepted)
	if !errors.Is(err, plain) {
		t.Errorf("%v hides its cause", err)
	}
	_, err = h.request(context.Background(), o, "ours")
	wantOutcome(t, err, outcome.NotFound, outcome.Accepted)
}

// Middleware wraps every turn, the first one outermost.
func TestMiddleware(t *testing.T) {
	t.Parallel()
	wrap := func(name string) Middleware {
		return func(next Handler) Handler {
			return func(ctx context.Context, req *Request) (Reply, error) {
				r, err := next(ctx, req)
				return Reply{Data: append([]byte(name+" "), r.Data...)}, err
			}
		}
	}
	h := newHost(t, 10, Type{Name: "t", Middleware: []Middleware{wrap("outer"), wrap("inner")}})
	a, b := h.object(t, "a", echo), h.object(t, "b", handle(func(context.Context, *Request) (Reply, error) { return Reply{Data: []byte("b")}, nil }))
	if got, err := h.request(context.Background(), a, "a"); err != nil || got != "outer inner a" {
		t.Errorf("%q, %v", got, err)
	}
	if got, err := h.request(context.Background(), b, ""); err != nil || got != "outer inner b" {
		t.Errorf("%q, %v", got, err)
	}
}
