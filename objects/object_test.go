package objects

import (
	"context"
	"errors"
	"fmt"
	goruntime "runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// journal is an object that writes down what it was given.
type journal struct {
	mu   sync.Mutex
	list []string
}

func (j *journal) Handle(_ context.Context, req *Request) (Reply, error) {
	name, timer := req.Timer()
	j.mu.Lock()
	defer j.mu.Unlock()
	if timer {
		name = "timer " + name + "="
	}
	j.list = append(j.list, name+string(req.Data()))
	return Reply{Data: []byte(strconv.Itoa(len(j.list)))}, nil
}

func (j *journal) note(s string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.list = append(j.list, s)
}

func (j *journal) entries() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return append([]string(nil), j.list...)
}

// What one sender sent runs in that order, once each, one turn at a time (I2, I4).
func TestOneTurnAtATimeInOrder(t *testing.T) {
	t.Parallel()
	const senders, each = 8, 500
	h := newHost(t, 100, Type{Name: "t", Mailbox: 64})
	var inside atomic.Int32
	last := make([]int, senders)
	o := h.object(t, "o", HandlerFunc(func(_ context.Context, req *Request) (Reply, error) {
		if inside.Add(1) != 1 {
			t.Error("two turns at a time")
		}
		defer inside.Add(-1)
		var sender, n int
		if _, err := fmt.Sscanf(string(req.Data()), "%d %d", &sender, &n); err != nil {
			return Reply{}, nil // the last one
		}
		if n != last[sender]+1 {
			t.Errorf("sender %d: %d after %d", sender, n, last[sender])
		}
		last[sender] = n
		return Reply{Data: req.Data()}, nil
	}))
	var wg sync.WaitGroup
	for s := range senders {
		wg.Go(func() {
			for n := 1; n <= each; {
				data := fmt.Sprintf("%d %d", s, n)
				var err error
				if s%2 == 0 {
					err = h.send(o, data)
				} else {
					var got string
					if got, err = h.request(context.Background(), o, data); err == nil && got != data {
						t.Errorf("%q was answered with %q", data, got)
					}
				}
				switch {
				case err == nil:
					n++
				case errors.Is(err, outcome.CapacityExceeded) && errors.Is(err, outcome.NotAccepted):
					goruntime.Gosched()
				default:
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if _, err := h.request(context.Background(), o, "behind everything"); err != nil {
		t.Error(err)
	}
	for s, n := range last {
		if n != each {
			t.Errorf("sender %d: %d of %d ran", s, n, each)
		}
	}
	if c := h.counts(); c.Accepted != senders*each+1 || c.Run != c.Accepted || c.RefusedFull == 0 {
		t.Errorf("counted %+v", c)
	}
}

// Mail from elsewhere is told that it was accepted before its turn, and in the order of the offers.
func TestRemoteMail(t *testing.T) {
	t.Parallel()
	h := newHost(t, 10, Type{Name: "t", Mailbox: 2})
	gate := make(chan struct{})
	var current atomic.Pointer[inbound]
	o := h.object(t, "o", HandlerFunc(func(_ context.Context, req *Request) (Reply, error) {
		if m := current.Load(); m != nil && !m.accepted.Load() {
			t.Error("a turn before the acceptance")
		}
		s, ok := req.Sender()
		if req.OneWay() || !ok || s.RID != "n2" || req.Header().Get("k") != "v" {
			t.Errorf("one way %v, sender %v %v, header %v", req.OneWay(), s, ok, req.Header())
		}
		<-gate
		if string(req.Data()) == "bad" {
			return Reply{}, errors.New("refused by the handler")
		}
		return Reply{Data: req.Data()}, nil
	}))
	offer := func(data string) (*inbound, why) {
		m := newInbound(data)
		m.header = nats.Header{"k": {"v"}}
		e := newRemote(m)
		because := o.offer(e)
		if because != whyNot {
			e.release()
		}
		return m, because
	}
	first, _ := offer("1")
	current.Store(first)
	waitRunning(t, o)
	bad, because := offer("bad")
	if because != whyNot {
		t.Fatal(because)
	}
	offer("3")
	if _, because := offer("4"); because != whyFull {
		t.Errorf("a full mailbox said %d", because)
	}
	if err := whyFull.refusal("request", o.target(), true); err.Kind != outcome.Unavailable || err.Acceptance != outcome.NotAccepted {
		t.Errorf("refused with %v", err)
	}
	close(gate)
	if r := within(t, first.replied, "the reply"); string(r.Data) != "1" {
		t.Errorf("got %q", r.Data)
	}
	if err := within(t, bad.failed, "the failure"); err.Error() != "refused by the handler" {
		t.Errorf("got %v", err)
	}
	past := newInbound("late")
	past.deadline = time.Now().Add(-time.Second)
	e := newRemote(past)
	if because := o.offer(e); because != whyPast {
		t.Errorf("a message past its deadline: %d", because)
	}
	e.release()
	// As if the machine had been suspended: the time of this process has stood still, the store's has not.
	slept := newInbound("slept")
	slept.deadline = time.Now().Add(time.Hour)
	e = newRemote(slept)
	slept.deadline = time.Now().Add(-time.Second)
	if because := o.offer(e); because != whyPast {
		t.Errorf("a message past its deadline on the store's clock: %d", because)
	}
	e.release()
}

// A mailbox is bounded in count and in bytes, and what is larger than it never fits.
func TestMailboxBounds(t *testing.T) {
	t.Parallel()
	h := newHost(t, 10, Type{Name: "t", Mailbox: 3, MailboxBytes: 100})
	gate := make(chan struct{})
	o := h.object(t, "o", HandlerFunc(func(context.Context, *Request) (Reply, error) { <-gate; return Reply{}, nil }))
	if err := h.send(o, ""); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		if n, _ := o.waiting(); n != 0 {
			return fmt.Errorf("%d wait", n)
		}
		return nil
	})
	for i, c := range []struct {
		size int
		kind outcome.Kind
	}{{101, outcome.CapacityExceeded}, {60, 0}, {41, outcome.CapacityExceeded}, {40, 0}, {0, 0}, {0, outcome.CapacityExceeded}} {
		err := h.send(o, string(make([]byte, c.size)))
		if c.kind == 0 && err != nil || c.kind != 0 && (outcome.KindOf(err) != c.kind || !errors.Is(err, outcome.NotAccepted)) {
			t.Errorf("%d: %d bytes: %v", i, c.size, err)
		}
	}
	if n, bytes := o.waiting(); n != 3 || bytes != 100 {
		t.Errorf("%d messages of %d bytes wait", n, bytes)
	}
	if c := h.counts(); c.RefusedFull != 2 || c.RefusedTooLarge != 1 {
		t.Errorf("counted %+v", c)
	}
	close(gate)
}

// While an object is being created its mail is held without being accepted; it runs behind the activation and the first
// message, in order.
func TestHeldWhileCreating(t *testing.T) {
	t.Parallel()
	h := newHost(t, 10, Type{Name: "t"})
	j := &activated{}
	o := h.creating(t, "o")
	remote := newInbound("remote")
	if because := o.offer(newRemote(remote)); because != whyNot {
		t.Fatal(because)
	}
	sent := make(chan error, 1)
	go func() { sent <- h.send(o, "send") }()
	waitMail(t, o, 2)
	left, leave := context.WithCancel(context.Background())
	gone := make(chan error, 2)
	go func() { _, err := h.request(left, o, "left"); gone <- err }()
	waitMail(t, o, 3)
	go func() { _, err := h.rt.request(left, o, opSend, []byte("left, too"), nil, true); gone <- err }()
	waitMail(t, o, 4)
	turn := make(chan error, 1)
	go func() {
		turn <- o.between(context.Background(), func(context.Context) error { j.note("turn"); return nil })
	}()
	waitMail(t, o, 5)
	if remote.accepted.Load() || h.counts().Accepted != 0 {
		t.Error("mail was accepted before there was an object")
	}
	leave()
	for range 2 {
		wantOutcome(t, within(t, gone, "the caller who leaves"), outcome.DeadlineExceeded, outcome.NotAccepted)
	}
	select {
	case err := <-sent:
		t.Fatalf("a send ended before its acceptance: %v", err)
	default:
	}
	first := newInbound("first")
	o.open(j, 5, 2, h.lease.Load(), newRemote(first))
	if err := within(t, sent, "the send"); err != nil {
		t.Error(err)
	}
	if err := within(t, turn, "the turn"); err != nil {
		t.Error(err)
	}
	within(t, first.replied, "the first reply")
	within(t, remote.replied, "the other reply")
	if got, want := fmt.Sprint(j.entries()), "[activate 5 2 first remote send turn]"; got != want {
		t.Errorf("ran %v, want %v", got, want)
	}
	if c := h.counts(); c.Accepted != 3 || c.Run != 3 {
		t.Errorf("counted %+v", c)
	}
}

// activated notes its activation, too.
type activated struct {
	journal
	fail atomic.Bool
}

func (a *activated) Activate(_ context.Context, self *Self) error {
	if a.fail.Load() {
		return errors.New("cannot load")
	}
	a.note(fmt.Sprintf("activate %d %d", self.Generation(), self.OwnerGeneration()))
	return nil
}

func waitMail(t *testing.T, o *object, n int) {
	t.Helper()
	eventually(t, func() error {
		if got, _ := o.waiting(); got != n {
			return fmt.Errorf("%d messages wait, want %d", got, n)
		}
		return nil
	})
}

// A creation that fails gives everyone who waits its error as it is, and the slot back.
func TestAbort(t *testing.T) {
	t.Parallel()
	h := newHost(t, 10, Type{Name: "t", Capacity: 1})
	o := h.creating(t, "o")
	wantOutcome(t, h.rt.reserve(h.rt.order[0]), outcome.Unavailable, outcome.NotAccepted)
	remote := newInbound("remote")
	o.offer(newRemote(remote))
	errs := make(chan error, 2)
	go func() { errs <- h.send(o, "send") }()
	go func() { _, err := h.request(context.Background(), o, "request"); errs <- err }()
	waitMail(t, o, 3)
	cause := outcome.New("create", outcome.Rejected, outcome.Unknown, "o", "the factory said no")
	o.abort(cause)
	for range 2 {
		if err := within(t, errs, "the end"); !errors.Is(err, cause) && err != error(cause) {
			t.Errorf("got %v", err)
		}
	}
	if err := within(t, remote.failed, "the end elsewhere"); err != error(cause) || remote.accepted.Load() {
		t.Errorf("got %v", err)
	}
	if h.rt.find(kvlocation.KindActor, "o") != nil {
		t.Error("it is still there")
	}
	wantOutcome(t, h.send(o, "late"), outcome.Unavailable, outcome.NotAccepted)
	if c := h.counts(); c.Accepted != 0 || c.RefusedAborted != 3 || c.Owned != 0 {
		t.Errorf("counted %+v", c)
	}
}

// A drop ends what waits with the stated cause; the running turn's answer goes out.
func TestDrop(t *testing.T) {
	t.Parallel()
	h := newHost(t, 10, Type{Name: "t"})
	gate := make(chan struct{})
	o := h.object(t, "o", HandlerFunc(func(context.Context, *Request) (Reply, error) { <-gate; return Reply{Data: []byte("done")}, nil }))
	running, waits := make(chan error, 1), make(chan error, 1)
	go func() {
		got, err := h.request(context.Background(), o, "")
		if got != "done" {
			err = errors.Join(err, fmt.Errorf("got %q", got))
		}
		running <- err
	}()
	waitRunning(t, o)
	go func() { _, err := h.request(context.Background(), o, ""); waits <- err }()
	waitMail(t, o, 1)
	if err := h.send(o, ""); err != nil {
		t.Fatal(err)
	}
	h.rt.drop(o, errClosed(o))
	h.rt.drop(o, errClosed(o))
	wantOutcome(t, within(t, waits, "the end of what waits"), outcome.Unavailable, outcome.Accepted)
	close(gate)
	if err := within(t, running, "the running turn"); err != nil {
		t.Error(err)
	}
	eventually(t, func() error {
		if c := h.counts(); c.Accepted != 3 || c.Run != 1 || c.Dropped != 2 || c.Owned != 0 {
			return fmt.Errorf("counted %+v", c)
		}
		return nil
	})
}

// The slots of a type and of the node are never given out twice, and come back.
func TestSlots(t *testing.T) {
	t.Parallel()
	h := newHost(t, 10, Type{Name: "t", Capacity: 10}, Type{Name: "u", Capacity: 10})
	h.rt.capacity = 15
	var got [2]atomic.Int64
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			if h.rt.reserve(h.rt.order[i%2]) == nil {
				got[i%2].Add(1)
			}
		})
	}
	wg.Wait()
	a, b := got[0].Load(), got[1].Load()
	if a > 10 || b > 10 || a+b > 15 { // fewer when refusals were due to reservations that were themselves refused
		t.Errorf("%d and %d slots were given out", a, b)
	}
	for h.rt.reserve(h.rt.order[0]) == nil || h.rt.reserve(h.rt.order[1]) == nil {
	}
	select {
	case <-h.rt.typesChanged():
	default:
		t.Error("nobody was told that no slot is left")
	}
	if n := h.rt.owned.Load(); n != 15 {
		t.Errorf("%d of 15 slots are taken", n)
	}
	for _, i := range h.rt.types() {
		if !i.Full {
			t.Errorf("%s is not full", i.Name)
		}
	}
	h.rt.unreserve(h.rt.order[0])
	select {
	case <-h.rt.typesChanged():
	default:
		t.Error("nobody was told that a slot is free")
	}
	if err := h.rt.reserve(h.rt.order[0]); err != nil {
		t.Error(err)
	}
}

// Types with wrong settings are refused, with the field, the value and what is allowed.
func TestTypeCheck(t *testing.T) {
	t.Parallel()
	ok := func(context.Context, *Self, []byte) (Object, error) { return nil, nil }
	for _, c := range []struct {
		types []Type
		want  string
	}{
		{[]Type{{Name: "a b", Class: kvlocation.ClassActor, New: ok}}, `Type.Name`},
		{[]Type{{Name: "a", Class: "house", New: ok}}, `Class "house"`},
		{[]Type{{Name: "a", Class: kvlocation.ClassActor}}, `New is required`},
		{[]Type{{Name: "a", Class: kvlocation.ClassActor, New: ok, Capacity: -1}}, `Capacity -1`},
		{[]Type{{Name: "a", Class: kvlocation.ClassActor, New: ok, Mailbox: 1 << 30}}, `Mailbox 1073741824`},
		{[]Type{{Name: "a", Class: kvlocation.ClassActor, New: ok, MailboxBytes: -5}}, `MailboxBytes -5`},
		{[]Type{{Name: "a", Class: kvlocation.ClassActor, New: ok, CreateTimeout: time.Hour}}, `CreateTimeout 1h0m0s`},
		{[]Type{{Name: "a", Class: kvlocation.ClassActor, New: ok, IdleAfter: time.Hour}}, `IdleAfter 1h0m0s`},
		{[]Type{{Name: "a", Class: kvlocation.ClassInstanceSpot, New: ok, IdleAfter: 1}}, `IdleAfter 1ns`},
		{[]Type{{Name: "a", Class: kvlocation.ClassActor, New: ok, OnPanic: 7}}, `OnPanic 7`},
		{[]Type{{Name: "a", Class: kvlocation.ClassActor, New: ok}, {Name: "a", Class: kvlocation.ClassActor, New: ok}}, `registered twice`},
		{[]Type{{Name: "a", Class: kvlocation.ClassEntrySpot, New: ok}, {Name: "b", Class: kvlocation.ClassEntrySpot, New: ok}}, `entry_spot`},
		{[]Type{{Name: "a", Class: kvlocation.ClassActor, New: ok}, {Name: "a", Class: kvlocation.ClassUserSpot, New: ok}}, ``},
	} {
		_, err := newRuntime(runtimeConfig{types: c.types, maxTurns: 1}, &host{})
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%v: %v", c.types, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%v: %v, want %s", c.types, err, c.want)
		}
	}
}

// slowNotice is a message whose acceptance notice takes until it is told.
type slowNotice struct {
	*inbound
	begun, end chan struct{}
}

func (m slowNotice) Accept() { close(m.begun); <-m.end; m.inbound.Accept() }

// A message has its place before its notice goes out, and no turn before: what is sent after the notice was seen runs
// behind it (I4), and a close meanwhile does not lose it.
func TestNoticeBehindThePlace(t *testing.T) {
	t.Parallel()
	for _, drop := range []bool{false, true} {
		h := newHost(t, 10, Type{Name: "t"})
		j := &journal{}
		o := h.object(t, "o", j)
		first := slowNotice{newInbound("first"), make(chan struct{}), make(chan struct{})}
		offered := make(chan why)
		go func() { offered <- o.offer(newRemote(first)) }()
		within(t, first.begun, "the notice")
		second := newInbound("second")
		if because := o.offer(newRemote(second)); because != whyNot {
			t.Fatal(because)
		}
		err := h.late(context.Background(), o, "third", 30*time.Millisecond) // a worker has looked by the time that it ends
		wantOutcome(t, err, outcome.DeadlineExceeded, outcome.Accepted)
		if len(j.entries()) != 0 {
			t.Errorf("%v ran before the notice", j.entries())
		}
		if drop {
			h.rt.drop(o, errClosed(o))
			wantOutcome(t, within(t, second.failed, "the second's end"), outcome.Unavailable, outcome.Accepted)
		}
		close(first.end)
		if because := within(t, offered, "the offer"); because != whyNot {
			t.Fatal(because)
		}
		if drop {
			wantOutcome(t, within(t, first.failed, "the first's end"), outcome.Unavailable, outcome.Accepted)
			if c := h.counts(); c.Accepted != 3 || c.Dropped != 3 {
				t.Errorf("counted %+v", c)
			}
			continue
		}
		within(t, first.replied, "the first reply")
		within(t, second.replied, "the second reply")
		if got := fmt.Sprint(j.entries()); got != "[first second]" {
			t.Errorf("ran %s", got)
		}
	}
}

// What was held until nobody waited for it any more is refused when the object opens, also a one-way message.
func TestHeldPastItsDeadline(t *testing.T) {
	t.Parallel()
	h := newHost(t, 10, Type{Name: "t"})
	j := &journal{}
	o := h.creating(t, "o")
	late, first := newInbound("late"), newInbound("first")
	for _, m := range []*inbound{late, first} {
		m.oneWay, m.deadline = true, time.Now().Add(500*time.Millisecond) // which the offer has to come before
	}
	if because := o.offer(newRemote(late)); because != whyNot {
		t.Fatal(because)
	}
	mail := newRemote(first)
	eventually(t, func() error {
		if !late.Past(time.Now()) || !first.Past(time.Now()) {
			return errors.New("not past")
		}
		return nil
	})
	o.open(j, 11, 1, h.lease.Load(), mail)
	for _, m := range []*inbound{late, first} {
		wantOutcome(t, within(t, m.failed, "the refusal"), outcome.DeadlineExceeded, outcome.NotAccepted)
		if m.accepted.Load() {
			t.Error("it was accepted")
		}
	}
	if _, err := h.request(context.Background(), o, "next"); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(j.entries()); got != "[next]" {
		t.Errorf("ran %s", got)
	}
	if c := h.counts(); c.RefusedPast != 2 || c.Accepted != 1 {
		t.Errorf("counted %+v", c)
	}
}
