package objects

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nuid"

	"natsfabric/fabrictest"
	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// ledgers is what the movable Actors of a test have run, by ID and over all nodes: "<rid>: <data>".
type ledgers struct {
	mu   sync.Mutex
	by   map[string][]string
	gate func(ctx context.Context, req *Request) error // of every turn; may be nil

	onCapture func(ctx context.Context, self *Self) error
	onRestore func(ctx context.Context, self *Self) error
	onFactory func(ctx context.Context, self *Self) error
	onActive  func(ctx context.Context, self *Self) error
	pad       int // bytes of state beside the count
	version   uint64
}

// tally is a movable object. It counts its turns, and answers "<count> <rid>".
type tally struct {
	all   *ledgers
	Count int
}

func (l *ledgers) typ(name string) Type {
	return Type{Name: name, Class: kvlocation.ClassActor, Move: MoveState, Mailbox: 2048, New: func(ctx context.Context, self *Self, input []byte) (Object, error) {
		if self.Moved() && input != nil {
			return nil, errors.New("input for an object that moves")
		}
		if f := l.hook(&l.onFactory); f != nil {
			if err := f(ctx, self); err != nil {
				return nil, err
			}
		}
		return &tally{all: l}, nil
	}}
}

func (y *tally) Activate(ctx context.Context, self *Self) error {
	if f := y.all.hook(&y.all.onActive); f != nil {
		return f(ctx, self)
	}
	return nil
}

func (y *tally) Handle(ctx context.Context, req *Request) (Reply, error) {
	if f := y.all.gate; f != nil {
		if err := f(ctx, req); err != nil {
			return Reply{}, err
		}
	}
	y.Count++
	what := string(req.Data())
	if name, ok := req.Timer(); ok {
		what = "timer " + name
	}
	y.all.note(req.Self().ID(), req.Self().RID()+": "+what)
	return Reply{Data: fmt.Appendf(nil, "%d %s", y.Count, req.Self().RID())}, nil
}

// set changes hooks.
func (l *ledgers) set(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f()
}

func (l *ledgers) hook(at *func(context.Context, *Self) error) func(context.Context, *Self) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return *at
}

func (l *ledgers) note(id, what string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.by[id] = append(l.by[id], what)
}

func (l *ledgers) of(id string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]string(nil), l.by[id]...)
}

func (y *tally) Capture(ctx context.Context, self *Self) (State, error) {
	if f := y.all.hook(&y.all.onCapture); f != nil {
		if err := f(ctx, self); err != nil {
			return State{}, err
		}
	}
	return State{Version: y.all.version, Data: append(strconv.AppendInt(nil, int64(y.Count), 10), make([]byte, y.all.pad)...)}, nil
}

func (y *tally) Restore(ctx context.Context, self *Self, s State) error {
	if f := y.all.hook(&y.all.onRestore); f != nil {
		if err := f(ctx, self); err != nil {
			return err
		}
	}
	if s.Version != 0 {
		return ErrStateVersion
	}
	count, _, _ := bytes.Cut(s.Data, []byte{0})
	n, err := strconv.Atoi(string(count))
	y.Count = n
	return err
}

// moveBed is a mesh with nodes a and b, between which the Actors of a type move, and a client.
type moveBed struct {
	*mesh
	t       *testing.T
	led     *ledgers
	a, b, c *meshNode
}

func newMoveBed(t *testing.T, opts ...nodeOption) *moveBed {
	t.Helper()
	w := &moveBed{mesh: newMesh(t), t: t, led: &ledgers{by: make(map[string][]string)}}
	opts = append([]nodeOption{types(w.led.typ("tally"))}, opts...)
	w.a, w.b, w.c = w.node("a", opts...), w.node("b", opts...), w.client()
	return w
}

// actor makes an Actor at node a.
func (w *moveBed) actor(id string) kvlocation.ObjectKey {
	w.t.Helper()
	w.taken(func() error { return second(w.c.Actors().Create(w.ctx(), "tally", id, nil, AtNode("a"))) })
	return kvlocation.ObjectKey{Kind: kvlocation.KindActor, ID: id}
}

// carriage is one move, step by step, with the cargo in memory.
type carriage struct {
	w        *moveBed
	from, to *meshNode
	op       string
	d        *Departure
	a        *Arrival
	at       kvlocation.Entry
	cargo    *Cargo
	h        uint64
	follow   time.Duration
}

func (w *moveBed) move(from, to *meshNode, key kvlocation.ObjectKey) *carriage {
	w.t.Helper()
	c := &carriage{w: w, from: from, to: to, op: nuid.Next(), follow: 2 * long}
	c.d = must[*Departure](w.t)(from.Depart(w.ctx(), key, 0))
	return c
}

// prepare reserves and writes preparing.
func (c *carriage) prepare() *carriage {
	t := c.w.t
	t.Helper()
	data := must[[]byte](t)(json.Marshal(c.d.Unit()))
	var u Unit
	if err := json.Unmarshal(data, &u); err != nil {
		t.Fatal(err)
	}
	c.a = must[*Arrival](t)(c.to.Expect(u, c.op, time.Now().Add(long)))
	e := must[kvlocation.Entry](t)(c.d.Entry(c.w.ctx()))
	ch := must[kvlocation.Change](t)(c.from.store.Prepare(c.w.ctx(), e, c.from.owner(), c.op, c.to.owner()))
	c.at = ch.Entry
	return c
}

// load seals, captures and loads.
func (c *carriage) load() *carriage {
	t := c.w.t
	t.Helper()
	if err := c.d.Seal(c.w.ctx()); err != nil {
		t.Fatal(err)
	}
	cargo := must[*Cargo](t)(c.d.Capture(c.w.ctx()))
	c.cargo = must[*Cargo](t)(ParseCargo(must[[]byte](t)(cargo.MarshalBinary())))
	if err := c.a.Load(c.w.ctx(), c.cargo); err != nil {
		t.Fatal(err)
	}
	return c
}

// accept writes the boundary.
func (c *carriage) accept() *carriage {
	c.w.t.Helper()
	ch := must[kvlocation.Change](c.w.t)(c.from.store.Accept(c.w.ctx(), c.at, c.from.owner(), c.op))
	c.at = ch.Entry
	c.d.Accepted()
	return c
}

// held hands the present hold over.
func (c *carriage) held() *carriage {
	t := c.w.t
	t.Helper()
	for _, h := range c.d.Held(maxHeld, maxHeldBytes) {
		h = must[Held](t)(ParseHeld(must[[]byte](t)(h.MarshalBinary())))
		for range 2 { // it may come twice
			if err := c.a.Feed(h); err != nil {
				t.Fatal(err)
			}
		}
	}
	c.h = c.a.Prefix()
	return c
}

// commit makes the unit the target's.
func (c *carriage) commit() *carriage {
	t := c.w.t
	t.Helper()
	ch := must[kvlocation.Change](t)(c.to.store.Commit(c.w.ctx(), c.at, c.to.owner(), c.op, c.h))
	c.at = ch.Entry
	if err := c.a.Open(c.at, c.h); err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *carriage) finish() *carriage {
	c.d.Finish(c.h, c.at.Record.Owner, c.at.Record.OwnerGeneration, c.follow)
	return c
}

// abort ends the move before the boundary, at both sides and in the record.
func (c *carriage) abort() {
	t := c.w.t
	t.Helper()
	must[kvlocation.Change](t)(c.from.store.Abort(c.w.ctx(), c.at, c.from.owner(), c.op))
	c.d.Abort(errors.New("given up by the test"))
	c.a.Abort(errors.New("given up by the test"))
}

func (c *carriage) whole() { c.w.t.Helper(); c.prepare().load().accept().held().commit().finish() }

// request is one request of the client's.
func (w *moveBed) request(n *meshNode, key kvlocation.ObjectKey, data string) string {
	w.t.Helper()
	r, err := n.Actors().Request(w.ctx(), key.ID, []byte(data))
	if err != nil {
		w.t.Fatalf("%s: %v", data, err)
	}
	return string(r.Data)
}

// later runs a request beside the test.
func (w *moveBed) later(n *meshNode, key kvlocation.ObjectKey, data string) <-chan answered {
	c := make(chan answered, 1)
	go func() {
		r, err := n.Actors().Request(w.ctx(), key.ID, []byte(data))
		c <- answered{string(r.Data), err}
	}()
	return c
}

type answered struct {
	data string
	err  error
}

func (w *moveBed) want(c <-chan answered, data string) {
	w.t.Helper()
	select {
	case got := <-c:
		if got.err != nil || got.data != data {
			w.t.Fatalf("got %q, %v; want %q", got.data, got.err, data)
		}
	case <-time.After(long):
		w.t.Fatalf("no answer, want %q", data)
	}
}

// waits waits until so many pieces of mail wait at the object.
func (w *moveBed) waits(n *meshNode, key kvlocation.ObjectKey, count int) {
	w.t.Helper()
	fabrictest.Eventually(w.t, long, fmt.Sprintf("%d messages wait", count), func() bool {
		o := n.rt.find(key.Kind, key.ID)
		if o == nil {
			return false
		}
		got, _ := o.waiting()
		return got == count
	})
}

// TestMove: state, work, held messages and what comes later, in one order, answered to callers at the source, the target
// and elsewhere.
func TestMove(t *testing.T) {
	w := newMoveBed(t)
	key := w.actor("one")
	begun, goOn := make(chan struct{}), make(chan struct{})
	w.led.gate = func(_ context.Context, req *Request) error {
		if string(req.Data()) == "slow" {
			close(begun)
			<-goOn
		}
		return nil
	}
	for _, n := range []*meshNode{w.a, w.b, w.c} {
		w.request(n, key, "before")
	}
	m := w.move(w.a, w.b, key).prepare()
	slow := w.later(w.c, key, "slow")
	<-begun
	var work []<-chan answered
	for i, n := range []*meshNode{w.a, w.b, w.c} {
		work = append(work, w.later(n, key, fmt.Sprintf("work %d", i)))
		w.waits(w.a, key, i+1)
	}
	sealed := make(chan error, 1)
	go func() { sealed <- m.d.Seal(w.ctx()) }()
	o := w.a.rt.find(key.Kind, key.ID)
	fabrictest.Eventually(t, long, "sealed", func() bool { return o.is() == objectSealed })
	var held []<-chan answered
	for i, n := range []*meshNode{w.a, w.b, w.c} {
		held = append(held, w.later(n, key, fmt.Sprintf("held %d", i)))
		w.waits(w.a, key, 4+i)
	}
	select {
	case err := <-sealed:
		t.Fatalf("sealed within a turn: %v", err)
	default:
	}
	close(goOn)
	if err := <-sealed; err != nil {
		t.Fatal(err)
	}
	w.want(slow, "4 a")
	cargo := must[*Cargo](t)(m.d.Capture(w.ctx()))
	if state, work, _, objects := cargo.Counts(); state == 0 || work != 3 || objects != 1 {
		t.Fatal(cargo.Counts())
	}
	m.cargo = must[*Cargo](t)(ParseCargo(must[[]byte](t)(cargo.MarshalBinary())))
	if err := m.a.Load(w.ctx(), m.cargo); err != nil {
		t.Fatal(err)
	}
	m.accept().held()
	if m.h != 3 {
		t.Fatalf("%d messages were handed over", m.h)
	}
	var rest []<-chan answered
	for i, n := range []*meshNode{w.a, w.b, w.c} {
		rest = append(rest, w.later(n, key, fmt.Sprintf("rest %d", i)))
		if at := []*meshNode{w.a, w.b, w.a}[i]; at == w.b { // where it arrives
			w.waits(w.b, key, 1)
		} else {
			w.waits(w.a, key, 1+i/2)
		}
	}
	m.commit()
	for i := range work {
		w.want(work[i], fmt.Sprintf("%d b", 5+i))
	}
	for i := range held {
		w.want(held[i], fmt.Sprintf("%d b", 8+i))
	}
	w.want(rest[1], "11 b")
	m.finish()
	w.want(rest[0], "12 b")
	w.want(rest[2], "13 b")
	w.request(w.a, key, "after")
	w.request(w.c, key, "after")
	e := w.entry(w.c, key.Kind, key.ID)
	if !e.Record.Owner.Is("b", w.b.cfg.Lifecycle) || e.Record.OwnerGeneration != 2 || e.Generation() != m.d.Unit().Generation {
		t.Fatalf("%+v", e.Record)
	}
	if w.a.rt.find(key.Kind, key.ID) != nil || w.a.rt.owned.Load() != 0 || w.b.rt.owned.Load() != 1 {
		t.Fatal("the source still has it")
	}
}

// TestMoveAborted: what was captured stands first again, then what was held, in order, and nothing runs at the target.
func TestMoveAborted(t *testing.T) {
	w := newMoveBed(t)
	key := w.actor("one")
	w.request(w.a, key, "before")
	begun, goOn := make(chan struct{}), make(chan struct{})
	w.led.gate = func(_ context.Context, req *Request) error {
		if string(req.Data()) == "slow" {
			close(begun)
			<-goOn
		}
		return nil
	}
	m := w.move(w.a, w.b, key).prepare()
	slow := w.later(w.a, key, "slow")
	<-begun
	var all []<-chan answered
	nodes := []*meshNode{w.a, w.b, w.c}
	for i := range 6 {
		all = append(all, w.later(nodes[i%3], key, fmt.Sprint(i)))
		w.waits(w.a, key, i+1)
	}
	sent := make(chan error, 1)
	o := w.a.rt.find(key.Kind, key.ID)
	go func() {
		fabrictest.Eventually(t, long, "sealed", func() bool { return o.is() == objectSealed })
		close(goOn)
	}()
	m.load()
	if _, work, _, _ := m.cargo.Counts(); work != 6 {
		t.Fatalf("%d pieces of work", work)
	}
	for i := range 6 {
		all = append(all, w.later([]*meshNode{w.a, w.c}[i%2], key, fmt.Sprint(6+i)))
		w.waits(w.a, key, i+1)
	}
	go func() { sent <- w.a.Actors().Send(w.ctx(), "one", []byte("12")) }()
	w.waits(w.a, key, 7)
	select {
	case err := <-sent:
		t.Fatalf("a held message was accepted: %v", err)
	default:
	}
	m.abort()
	w.want(slow, "2 a")
	for i := range all {
		w.want(all[i], fmt.Sprintf("%d a", 3+i))
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	w.request(w.c, key, "last")
	got := w.led.of("one")
	for i := range 13 {
		if got[2+i] != fmt.Sprintf("a: %d", i) {
			t.Fatal(got)
		}
	}
	if w.b.rt.owned.Load() != 0 || w.b.rt.find(key.Kind, key.ID) != nil {
		t.Fatal("the target still has it")
	}
	w.move(w.a, w.b, key).whole() // it can go all the same
	if got := w.request(w.c, key, "there"); got != "17 b" {
		t.Fatal(got)
	}
}

// TestMoveRest: what the target has not taken of the hold goes to it behind h, in order, before what comes later.
func TestMoveRest(t *testing.T) {
	w := newMoveBed(t)
	key := w.actor("one")
	w.request(w.c, key, "before")
	m := w.move(w.a, w.b, key).prepare().load().accept()
	var all []<-chan answered
	for i := range 6 {
		all = append(all, w.later([]*meshNode{w.a, w.c}[i%2], key, fmt.Sprint(i)))
		w.waits(w.a, key, i+1)
	}
	if got := m.d.Held(4, maxHeldBytes); len(got) != 4 || m.d.HeldCount() != 4 {
		t.Fatal(got)
	} else {
		for _, i := range []int{3, 0, 1} { // number 3 is lost
			if err := m.a.Feed(got[i]); err != nil {
				t.Fatal(err)
			}
		}
	}
	if m.h = m.a.Prefix(); m.h != 2 {
		t.Fatalf("prefix %d", m.h)
	}
	if err := m.a.Open(m.at, 3); !errors.Is(err, outcome.InvalidOperation) {
		t.Fatal(err)
	}
	m.commit()
	w.want(all[0], "2 b")
	w.want(all[1], "3 b")
	m.finish()
	for i := 2; i < 6; i++ {
		w.want(all[i], fmt.Sprintf("%d b", 2+i))
	}
	got := w.led.of("one")
	for i := range 6 {
		if got[1+i] != fmt.Sprintf("b: %d", i) {
			t.Fatal(got)
		}
	}
}
