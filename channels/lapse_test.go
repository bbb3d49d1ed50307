package channels_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"natsfabric/channels"
	"natsfabric/fabrictest"
	"natsfabric/outcome"
)

// gateFunc is a lease of the test's own.
type gateFunc func() error

func (f gateFunc) Admit() error { return f() }

// A lease that lapses just after it admitted a request's turn ends that handler's context, too.
func TestLapseBetweenAdmissionAndTurn(t *testing.T) {
	t.Parallel()
	srv := server(t)
	dir := newDirectory(member("m1", 1, "c"))
	lost := errors.New("ownership lost")
	var m *node
	var calls atomic.Int32
	m = start(t, srv.URL(), channels.Config{RID: "m1", Lifecycle: 1, Directory: dir, Gate: gateFunc(func() error {
		if calls.Add(1) == 2 { // the first is the admission to the queue, the second the one to the turn
			m.CancelHandlers(lost)
		}
		return nil
	})})
	causes := make(chan error, 1)
	serve(t, m, channels.Spec{Name: "c", Handler: func(ctx context.Context, _ *channels.Request) (channels.Reply, error) {
		causes <- context.Cause(ctx)
		return channels.Reply{}, nil
	}})
	if err := m.SetServing(true); err != nil {
		t.Fatal(err)
	}
	if _, err := startClient(t, srv.URL(), dir).Channel("c").Request(within(t, patience), nil); err != nil {
		t.Fatal(err)
	}
	if cause := receive(t, causes, "the handler"); !errors.Is(cause, lost) {
		t.Errorf("cause %v", cause)
	}
}

// An operation that waits to select again when its router closes hears that, not that every member was full.
func TestCloseWhileSelectingAgain(t *testing.T) {
	t.Parallel()
	srv := server(t)
	dir := newDirectory(member("m1", 1, "c"))
	m := start(t, srv.URL(), channels.Config{RID: "m1", Lifecycle: 1, Directory: dir, Gate: gateFunc(func() error { return errors.New("closed") })})
	s := serve(t, m, channels.Spec{Name: "c", Handler: echo})
	if err := m.SetServing(true); err != nil {
		t.Fatal(err)
	}
	c := startClient(t, srv.URL(), dir)
	const callers = 16
	ended := make(chan error, callers)
	for range callers {
		go func() {
			_, err := c.Channel("c").Request(within(t, patience), nil)
			ended <- err
		}()
	}
	fabrictest.Eventually(t, patience, "they wait between two selections nearly all the time", func() bool {
		return s.Stats().RefusedLease >= 10*callers
	})
	if err := c.Close(within(t, patience)); err != nil {
		t.Fatal(err)
	}
	for range callers {
		if err := receive(t, ended, "the end of a request"); !errors.Is(err, outcome.ShuttingDown) {
			t.Errorf("got %v", err)
		}
	}
}
