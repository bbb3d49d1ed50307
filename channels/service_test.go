package channels_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"natsfabric/channels"
	"natsfabric/fabrictest"
	"natsfabric/outcome"
)

// listen starts the service "svc" at a node.
func listen(t testing.TB, n *node, handle func(*channels.Inbound), shared ...string) {
	t.Helper()
	if err := n.Listen(context.Background(), channels.Service{Name: "svc", Handle: handle, Shared: shared}); err != nil {
		t.Fatalf("Listen: %v", err)
	}
}

// runOf is a call of the service "svc" at a node with lifecycle 1.
func runOf(caller *node, rid, data string) *channels.RunCall {
	return &channels.RunCall{
		Op: "request", Target: "thing", RID: rid, Lifecycle: 1,
		Subject: caller.RunSubject(rid, 1, "svc", "do.it"), Data: []byte(data),
	}
}

// servicePair is a member with the service "svc", and a caller.
func servicePair(t *testing.T, handle func(*channels.Inbound)) (m, caller *node) {
	t.Helper()
	srv := server(t)
	dir := newDirectory(member("m1", 1))
	m = start(t, srv.URL(), channels.Config{RID: "m1", Lifecycle: 1, Directory: dir, Clock: newClock()})
	if err := m.SetServing(true); err != nil {
		t.Fatal(err)
	}
	listen(t, m, handle)
	return m, start(t, srv.URL(), channels.Config{RID: "caller", Lifecycle: 9, Directory: dir, Clock: newClock()})
}

func TestServiceRequest(t *testing.T) {
	t.Parallel()
	var deadline, sender atomic.Bool
	_, caller := servicePair(t, func(in *channels.Inbound) {
		_, said := in.Deadline()
		local, known := in.LocalDeadline()
		left := time.Until(local)
		deadline.Store(said && known && left > patience/2 && left < patience+time.Second && !in.Past(time.Now()))
		s, ok := in.Sender()
		sender.Store(ok && s == channels.Sender{RID: "caller", Lifecycle: 9})
		in.Accept()
		h := nats.Header{"X-Shared": {fmt.Sprint(in.Shared())}, "X-One-Way": {fmt.Sprint(in.OneWay())}, "X-Got": in.Header()["X-Sent"]}
		in.Reply(fmt.Appendf(nil, "%s %s", in.Tail(), in.Data()), h)
	})
	c := runOf(caller, "m1", "hello")
	c.Header = nats.Header{"X-Sent": {"yes"}}
	reply, err := caller.CallRun(within(t, patience), c)
	if err != nil {
		t.Fatal(err)
	}
	if got := string(reply.Data); got != "do.it hello" {
		t.Errorf("reply %q", got)
	}
	for name, want := range map[string]string{"X-Shared": "false", "X-One-Way": "false", "X-Got": "yes"} {
		if got := reply.Header.Get(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	if !deadline.Load() || !sender.Load() {
		t.Errorf("deadline known: %v, sender known: %v", deadline.Load(), sender.Load())
	}
	if got := caller.Metrics().Runs; got.Started != 1 || got.Succeeded != 1 || got.Attempts != 1 {
		t.Errorf("counted %+v", got)
	}
}

// A one-way operation ends with the acceptance: not before it, and not later.
func TestServiceOneWay(t *testing.T) {
	t.Parallel()
	got := make(chan *channels.Inbound, 1)
	m, caller := servicePair(t, func(in *channels.Inbound) { got <- in })
	for name, accept := range map[string]func(*channels.Inbound){
		"accepted": func(in *channels.Inbound) {
			in.Accept()
			in.Accept()                        // says nothing twice
			in.Reply([]byte("to nobody"), nil) // nobody waits for it
			in.Fail(errors.New("heard by none"))
		},
		"ended without acceptance": func(in *channels.Inbound) { in.Reply(nil, nil) },
	} {
		before := m.Metrics().Services["svc"]
		c := runOf(caller, "m1", "x")
		c.OneWay = true
		ended := make(chan error, 1)
		go func() {
			reply, err := caller.CallRun(within(t, patience), c)
			if len(reply.Data) != 0 {
				err = fmt.Errorf("a reply: %q", reply.Data)
			}
			ended <- err
		}()
		in := receive(t, got, "the message")
		if !in.OneWay() {
			t.Errorf("%s: not one-way", name)
		}
		select {
		case err := <-ended:
			t.Fatalf("%s: ended with %v before the acceptance", name, err)
		default:
		}
		accept(in)
		if err := receive(t, ended, "the end"); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		after := m.Metrics().Services["svc"]
		if n := after.Notices - before.Notices; n != 1 {
			t.Errorf("%s: %d notices", name, n)
		}
		if after.Replied != before.Replied || after.ErrorReplies != before.ErrorReplies {
			t.Errorf("%s: somebody was answered: %+v", name, after)
		}
	}
	// A refusal is heard by the sender.
	c := runOf(caller, "m1", "x")
	c.OneWay = true
	go func() { receive(t, got, "the message").Refuse(outcome.Unavailable, "full", nil) }()
	_, err := caller.CallRun(within(t, patience), c)
	wantErr(t, err, outcome.Unavailable, outcome.NotAccepted)
}

// What a service says reaches the caller with kind, acceptance and headers, and nothing is tried twice.
func TestServiceErrors(t *testing.T) {
	t.Parallel()
	var handled atomic.Int32
	var answer atomic.Pointer[func(*channels.Inbound)]
	m, caller := servicePair(t, func(in *channels.Inbound) {
		handled.Add(1)
		(*answer.Load())(in)
	})
	large := bytes.Repeat([]byte("x"), int(m.nc.MaxPayload())+1)
	for _, c := range []struct {
		name   string
		answer func(*channels.Inbound)
		kind   outcome.Kind
		acc    outcome.Acceptance
		hint   string
	}{
		{"refused", func(in *channels.Inbound) { in.Refuse(outcome.Unavailable, "not here", nats.Header{"X-Hint": {"m2"}}) }, outcome.Unavailable, outcome.NotAccepted, "m2"},
		{"refused for good", func(in *channels.Inbound) { in.Refuse(outcome.NotFound, "no such thing", nil) }, outcome.NotFound, outcome.NotAccepted, ""},
		{"failed", func(in *channels.Inbound) { in.Accept(); in.Fail(errors.New("oops")) }, outcome.InternalFailure, outcome.Accepted, ""},
		{"failed by kind", func(in *channels.Inbound) {
			in.Accept()
			in.Fail(outcome.New("", outcome.Rejected, outcome.NotAccepted, "", "no"))
		}, outcome.Rejected, outcome.Accepted, ""},
		{"too large", func(in *channels.Inbound) { in.Accept(); in.Reply(large, nil) }, outcome.CapacityExceeded, outcome.Accepted, ""},
		{"reserved header", func(in *channels.Inbound) { in.Accept(); in.Reply(nil, nats.Header{"Status": {"503"}}) }, outcome.InternalFailure, outcome.Accepted, ""},
		{"header that NATS does not allow", func(in *channels.Inbound) { in.Accept(); in.Reply(nil, nats.Header{"a b": {"c"}}) }, outcome.InternalFailure, outcome.Accepted, ""},
	} {
		answer.Store(&c.answer)
		before := handled.Load()
		reply, err := caller.CallRun(within(t, patience), runOf(caller, "m1", "x"))
		e := wantErr(t, err, c.kind, c.acc)
		if !e.Remote || e.Op != "request" {
			t.Errorf("%s: %+v", c.name, e)
		}
		if got := reply.Header.Get("X-Hint"); got != c.hint {
			t.Errorf("%s: hint %q", c.name, got)
		}
		if n := handled.Load() - before; n != 1 {
			t.Errorf("%s: handled %d times", c.name, n)
		}
		if channels.IsNobody(err) {
			t.Errorf("%s: reads as if nobody had been there", c.name)
		}
	}
	s := m.Metrics().Services["svc"]
	if s.Oversized != 1 || s.RefusedByService != 2 || s.Received != uint64(handled.Load()) {
		t.Errorf("counted %+v", s)
	}
	if err := checkAccount(caller.Metrics().Runs); err != nil {
		t.Error(err)
	}
}

// Shared subjects are taken by the nodes that serve, by one for each message, and left without losing one.
func TestServiceSharedSubjects(t *testing.T) {
	t.Parallel()
	const shared = "fab.t.shared.>"
	srv := server(t)
	dir := newDirectory(member("m1", 1), member("m2", 1))
	var got [2]atomic.Int32
	var nodes [2]*node
	for i := range nodes {
		rid := fmt.Sprint("m", i+1)
		nodes[i] = start(t, srv.URL(), channels.Config{RID: rid, Lifecycle: 1, Directory: dir})
		listen(t, nodes[i], func(in *channels.Inbound) {
			got[i].Add(1)
			if !in.Shared() || in.Tail() != in.Subject() {
				in.Refuse(outcome.InternalFailure, "not shared", nil)
				return
			}
			in.Reply([]byte(in.Tail()), nil)
		}, shared)
	}
	plain := dial(t, srv.URL())
	ask := func() error {
		m, err := plain.Request("fab.t.shared.a.b", nil, patience)
		switch {
		case err != nil:
			return err
		case len(m.Header) != 0 || string(m.Data) != "fab.t.shared.a.b":
			return fmt.Errorf("answer %q, %v", m.Data, m.Header)
		}
		return nil
	}
	if err := ask(); !errors.Is(err, nats.ErrNoResponders) {
		t.Fatalf("somebody takes shared messages without serving: %v", err)
	}
	for _, n := range nodes {
		if err := n.SetServing(true); err != nil {
			t.Fatal(err)
		}
	}
	asked := 0
	fabrictest.Eventually(t, patience, "both take some", func() bool {
		if err := ask(); err != nil {
			t.Fatal(err)
		}
		asked++
		return got[0].Load() > 0 && got[1].Load() > 0
	})
	if sum := int(got[0].Load() + got[1].Load()); sum != asked {
		t.Errorf("asked %d times, handled %d times", asked, sum)
	}
	// One leaves under load: every message is answered, by whomever.
	stop, ends := make(chan struct{}), make(chan error, 4)
	for range cap(ends) {
		go func() {
			for {
				select {
				case <-stop:
					ends <- nil
					return
				default:
				}
				m, err := plain.Request("fab.t.shared.a.b", nil, patience)
				if err == nil && len(m.Header) != 0 && outcome.FromHeaders(m.Header, "", "").Acceptance != outcome.NotAccepted {
					err = fmt.Errorf("answer %v", m.Header)
				}
				if err != nil {
					ends <- err
					return
				}
			}
		}()
	}
	if err := nodes[0].SetServing(false); err != nil {
		t.Fatal(err)
	}
	fabrictest.Eventually(t, patience, "the first has left", func() bool {
		before := got[0].Load()
		for range 20 {
			if err := ask(); err != nil {
				return false
			}
		}
		return got[0].Load() == before
	})
	close(stop)
	for range cap(ends) {
		if err := receive(t, ends, "the end of the load"); err != nil {
			t.Error(err)
		}
	}
}

// An answer may come from another node than the one that took the message.
func TestAnswerFromElsewhere(t *testing.T) {
	t.Parallel()
	srv := server(t)
	dir := newDirectory(member("m1", 1), member("m2", 1))
	m1, m2 := startMember(t, srv.URL(), dir, "m1", 1), startMember(t, srv.URL(), dir, "m2", 1)
	taken := make(chan string, 1)
	listen(t, m1, func(in *channels.Inbound) { taken <- in.ReplyTo() })
	caller := startClient(t, srv.URL(), dir)
	for _, c := range []struct {
		name   string
		oneWay bool
		answer func(replyTo string) error
		want   string
		kind   outcome.Kind
		acc    outcome.Acceptance
	}{
		{"reply", false, func(to string) error { return m2.Answer(to, []byte("hi"), nil) }, "hi", 0, 0},
		{"acceptance", true, func(to string) error { return m2.Answer(to, []byte("hi"), nil) }, "", 0, 0},
		{"refusal", false, func(to string) error {
			return m2.AnswerError(to, outcome.New("", outcome.DataLost, outcome.NotAccepted, "", "gone"))
		}, "", outcome.DataLost, outcome.NotAccepted},
		{"refusal of a one-way", true, func(to string) error {
			return m2.AnswerError(to, outcome.New("", outcome.DataLost, outcome.NotAccepted, "", "gone"))
		}, "", outcome.DataLost, outcome.NotAccepted},
		{"failure", false, func(to string) error { return m2.AnswerError(to, errors.New("oops")) }, "", outcome.InternalFailure, outcome.Accepted},
	} {
		run := runOf(caller, "m1", "x")
		run.OneWay = c.oneWay
		ended := make(chan error, 1)
		go func() {
			reply, err := caller.CallRun(within(t, patience), run)
			if err == nil && string(reply.Data) != c.want {
				err = fmt.Errorf("reply %q", reply.Data)
			}
			ended <- err
		}()
		if err := c.answer(receive(t, taken, "the message")); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		err := receive(t, ended, "the end")
		switch {
		case c.kind == 0 && err != nil:
			t.Errorf("%s: %v", c.name, err)
		case c.kind != 0:
			wantErr(t, err, c.kind, c.acc)
		}
	}
	// To a one-way operation an answer is the acceptance notice, whatever there would be to answer.
	plain := dial(t, srv.URL())
	inbox, err := plain.SubscribeSync("fab.t.client.c.r1.>")
	if err != nil {
		t.Fatal(err)
	}
	if err := plain.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := m2.Answer("fab.t.client.c.r1.1--3", make([]byte, m2.nc.MaxPayload()+1), nil); err != nil {
		t.Fatal(err)
	}
	notice, err := inbox.NextMsg(patience)
	if err != nil {
		t.Fatal(err)
	}
	if notice.Subject != "fab.t.client.c.r1.1--3.a" || string(notice.Data) != "m2" || len(notice.Header) != 0 {
		t.Errorf("notice on %s: %q, %v", notice.Subject, notice.Data, notice.Header)
	}
	for _, err := range []error{m2.Answer("", nil, nil), m2.AnswerError("", errors.New("x"))} {
		if err != nil {
			t.Errorf("an answer to nobody: %v", err)
		}
	}
	if s := m2.Metrics(); s.Answers != 6 || s.AnswersLost != 0 {
		t.Errorf("counted %d answers, %d lost", s.Answers, s.AnswersLost)
	}
}

func TestListenErrors(t *testing.T) {
	t.Parallel()
	srv := server(t)
	dir := newDirectory()
	handle := func(*channels.Inbound) {}
	m := startMember(t, srv.URL(), dir, "m1", 1)
	for _, name := range []string{"", "a.b", "ch", "hello", "r1", "r203"} {
		err := m.Listen(context.Background(), channels.Service{Name: name, Handle: handle})
		if err == nil || !strings.Contains(err.Error(), "Service.Name") {
			t.Errorf("name %q: %v", name, err)
		}
	}
	if err := m.Listen(context.Background(), channels.Service{Name: "r"}); err == nil || !strings.Contains(err.Error(), "Service.Handle") {
		t.Errorf("without Handle: %v", err)
	}
	svc := channels.Service{Name: "svc", Handle: handle}
	if err := m.Listen(context.Background(), svc); err != nil {
		t.Fatal(err)
	}
	wantErr(t, m.Listen(context.Background(), svc), outcome.AlreadyExists, outcome.NotAccepted)
	wantErr(t, startClient(t, srv.URL(), dir).Listen(context.Background(), svc), outcome.InvalidOperation, outcome.NotAccepted)
	if err := m.Close(within(t, patience)); err != nil {
		t.Fatal(err)
	}
	svc.Name = "other"
	wantErr(t, m.Listen(context.Background(), svc), outcome.ShuttingDown, outcome.NotAccepted)
}

// What cannot be begun is refused before anything is sent, and time ends what is not answered.
func TestCallRunBounds(t *testing.T) {
	t.Parallel()
	silent := make(chan *channels.Inbound, 16)
	_, caller := servicePair(t, func(in *channels.Inbound) { silent <- in })
	c := runOf(caller, "m1", "x")
	c.Header = nats.Header{"fabric-kind": {"NotFound"}}
	_, err := caller.CallRun(within(t, patience), c)
	wantErr(t, err, outcome.InvalidOperation, outcome.NotAccepted)
	over, cancel := context.WithCancel(context.Background())
	cancel()
	_, err = caller.CallRun(over, runOf(caller, "m1", "x"))
	wantErr(t, err, outcome.DeadlineExceeded, outcome.NotAccepted)
	if len(silent) != 0 {
		t.Error("it was sent")
	}
	_, err = caller.CallRun(within(t, 200*time.Millisecond), runOf(caller, "m1", "x"))
	wantErr(t, err, outcome.DeadlineExceeded, outcome.Unknown)
	receive(t, silent, "the message")

	waiting, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		_, err := caller.CallRun(waiting, runOf(caller, "m1", "x"))
		ended <- err
	}()
	receive(t, silent, "the message")
	cancel()
	err = receive(t, ended, "the end")
	wantErr(t, err, outcome.DeadlineExceeded, outcome.Unknown)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v is no cancellation", err)
	}
	if err := checkAccount(caller.Metrics().Runs); err != nil {
		t.Error(err)
	}
	if caller.DefaultTimeout() != channels.DefaultTimeout {
		t.Errorf("default timeout %v", caller.DefaultTimeout())
	}
	if d := caller.StoreDeadline(time.Now().Add(time.Minute)); time.Until(d) < 50*time.Second || time.Until(d) > 70*time.Second {
		t.Errorf("a deadline in a minute is in %v on the store's clock", time.Until(d))
	}
}
