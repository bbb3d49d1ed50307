package channels_test

import (
	"context"
	"testing"

	"github.com/nats-io/nats.go"

	"natsfabric/channels"
	"natsfabric/outcome"
)

// TestBadHeaderNames: a header that NATS does not allow is said to be so, on both sides, instead of being lost.
func TestBadHeaderNames(t *testing.T) {
	t.Parallel()
	srv := server(t)
	dir := newDirectory(member("m1", 1, "c"))
	var l ledger
	serve(t, startMember(t, srv.URL(), dir, "m1", 1), channels.Spec{Name: "c", Handler: func(_ context.Context, req *channels.Request) (channels.Reply, error) {
		l.note(string(req.Data()), "m1")
		return channels.Reply{Header: nats.Header{string(req.Data()): {"x"}}}, nil
	}})
	ch := startClient(t, srv.URL(), dir).Channel("c")
	for _, name := range []string{"with blank", "with:colon", "with\r\nend", "nön-ASCII"} {
		_, err := ch.Request(within(t, patience), []byte(name))
		wantErr(t, err, outcome.InternalFailure, outcome.Accepted)
		if len(l.of(name)) != 1 {
			t.Errorf("the handler ran %d times for %q", len(l.of(name)), name)
		}
		_, err = ch.Request(within(t, patience), []byte("X-Good"), channels.WithHeader(nats.Header{name: {"x"}}))
		wantErr(t, err, outcome.InvalidOperation, outcome.NotAccepted)
	}
	if got := l.of("X-Good"); len(got) != 0 {
		t.Errorf("a request that could not be sent ran: %v", got)
	}
}

// TestNodeNameThatIsNone (FO-2.2): a name that cannot be one is refused; nobody else is chosen for it.
func TestNodeNameThatIsNone(t *testing.T) {
	t.Parallel()
	srv := server(t)
	dir := newDirectory(member("m1", 1, "c"))
	var l ledger
	serve(t, startMember(t, srv.URL(), dir, "m1", 1), channels.Spec{Name: "c", Handler: l.handler("m1")})
	caller := startClient(t, srv.URL(), dir)
	for _, rid := range []string{"", "*", "m1.x", ">"} {
		p := caller.Channel("c").At(rid)
		_, err := p.Request(within(t, patience), []byte("named"))
		wantErr(t, err, outcome.InvalidOperation, outcome.NotAccepted)
		wantErr(t, p.Send(within(t, patience), []byte("named")), outcome.InvalidOperation, outcome.NotAccepted)
		wantErr(t, p.SendUnconfirmed(within(t, patience), []byte("named")), outcome.InvalidOperation, outcome.NotAccepted)
	}
	if _, err := caller.Channel("c").Request(within(t, patience), []byte("after")); err != nil {
		t.Fatal(err)
	}
	if got := l.of("named"); len(got) != 0 {
		t.Errorf("what named no node ran: %v", got)
	}
}

// TestRequestLargerThanTheQueue: what can never fit is refused once, not for as long as the deadline allows.
func TestRequestLargerThanTheQueue(t *testing.T) {
	t.Parallel()
	srv := server(t)
	dir := newDirectory(member("m1", 1, "c"))
	var l ledger
	s := serve(t, startMember(t, srv.URL(), dir, "m1", 1), channels.Spec{Name: "c", QueueBytes: 1000, Handler: l.handler("m1")})
	var tr channels.Trace
	_, err := startClient(t, srv.URL(), dir).Channel("c").Request(within(t, patience), make([]byte, 2000), channels.WithTrace(&tr))
	wantErr(t, err, outcome.CapacityExceeded, outcome.NotAccepted)
	if tr.Attempts != 1 || s.Stats().RefusedTooLarge != 1 {
		t.Errorf("%d attempts, %d refused", tr.Attempts, s.Stats().RefusedTooLarge)
	}
}
