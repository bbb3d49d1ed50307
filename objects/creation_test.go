package objects

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"natsfabric/fabrictest"
	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// 1,000 callers at 10 nodes make one ID: one factory runs, and each caller gets a definite result (FO-4.3, FO-10.6).
func TestStampede(t *testing.T) {
	t.Parallel()
	const nodes, callers = 10, 1000
	m, tp := newMesh(t), newTape()
	all := make([]*meshNode, nodes)
	for i := range all {
		all[i] = m.start(fmt.Sprintf("n%d", i), types(tp.typ(kvlocation.ClassActor, "user"), tp.typ(kvlocation.ClassInstanceSpot, "room")))
		m.nodes = append(m.nodes, all[i])
		all[i].publish(kvlocation.StateServing)
		if err := all[i].router.SetServing(true); err != nil {
			t.Fatal(err)
		}
	}
	m.settle()
	storm := func(f func(n *meshNode) error) (ok int, errs []error) {
		var mu sync.Mutex
		var wg sync.WaitGroup
		start := make(chan struct{})
		for i := range callers {
			wg.Go(func() {
				<-start
				err := f(all[i%nodes])
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					errs = append(errs, err)
				} else {
					ok++
				}
			})
		}
		close(start)
		wg.Wait()
		return ok, errs
	}
	ctx := m.ctx()
	t.Run("create", func(t *testing.T) {
		ok, errs := storm(func(n *meshNode) error {
			_, err := n.Actors().Create(ctx, "user", "one", nil)
			return err
		})
		for _, err := range errs {
			wantError(t, err, outcome.AlreadyExists, outcome.NotAccepted)
		}
		if ok != 1 || tp.made("one") != 1 {
			t.Fatalf("%d callers made it, %d factories ran", ok, tp.made("one"))
		}
	})
	t.Run("get or create", func(t *testing.T) {
		var made atomic.Int64
		var mu sync.Mutex
		refs := map[ActorRef]bool{}
		ok, errs := storm(func(n *meshNode) error {
			ref, created, err := n.Actors().GetOrCreate(ctx, "user", "two", nil)
			if created {
				made.Add(1)
			}
			mu.Lock()
			defer mu.Unlock()
			refs[ref] = true
			return err
		})
		if ok != callers || made.Load() != 1 || tp.made("two") != 1 || len(refs) != 1 {
			t.Fatalf("%d callers succeeded, %d made it, %d factories, references %v, errors %v", ok, made.Load(), tp.made("two"), refs, errs)
		}
	})
	t.Run("activate", func(t *testing.T) {
		ok, errs := storm(func(n *meshNode) error {
			_, err := n.Spots().Request(ctx, "three", []byte("x"), WithInstance("room"))
			return err
		})
		if ok != callers || tp.made("three") != 1 || len(tp.ran("three")) != callers {
			t.Fatalf("%d callers succeeded, %d factories, %d turns, errors %v", ok, tp.made("three"), len(tp.ran("three")), errs)
		}
	})
}

// What waits at a node for a creation that another node was faster with goes there, whoever asked here: with instance intent
// or without it, for an answer or not. Nothing has begun for it.
func TestWaitingForALostCreation(t *testing.T) {
	t.Parallel()
	m, tp := newMesh(t), newTape()
	ty := types(tp.typ(kvlocation.ClassInstanceSpot, "room"))
	a, b := m.node("a", ty), m.node("b", ty)
	held := a.proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: m.writesOf(kvlocation.KindSpot, "r"), Times: -1, Action: fabrictest.HoldAlone})
	calls := map[string]func() error{
		"first": func() error {
			return second(a.Spots().Request(m.ctx(), "r", []byte("first"), WithInstance("room"), AtNode("a")))
		},
		"intent":  func() error { return second(a.Spots().Request(m.ctx(), "r", []byte("intent"), WithInstance("room"))) },
		"request": func() error { return second(a.Spots().Request(m.ctx(), "r", []byte("request"))) },
		"send":    func() error { return a.Spots().Send(m.ctx(), "r", []byte("send")) },
		"elsewhere": func() error {
			return second(b.Spots().Request(m.ctx(), "r", []byte("elsewhere"), WithInstance("room"), AtNode("a")))
		},
	}
	errs := map[string]chan error{}
	for i, name := range []string{"first", "intent", "request", "send", "elsewhere"} {
		c, call := make(chan error, 1), calls[name]
		errs[name] = c
		go func() { c <- call() }()
		fabrictest.Eventually(t, long, name+" waits", func() bool {
			o := a.rt.find(kvlocation.KindSpot, "r")
			if o == nil {
				return false
			}
			n, _ := o.waiting()
			return n == i+1
		})
	}
	// A message for exactly this process run goes nowhere else, and hears where the object is.
	way := must[*Way](t)(a.Way(Place{RID: "a", Lifecycle: a.cfg.Lifecycle, Generation: 1}, kvlocation.ObjectKey{Kind: kvlocation.KindSpot, ID: "r"}, ""))
	exact := map[bool]chan error{}
	for n, oneWay := range []bool{false, true} {
		c := make(chan error, 1)
		exact[oneWay] = c
		go func() {
			_, _, err := a.CallAt(m.ctx(), way, &Message{Op: "relay", OneWay: oneWay})
			c <- err
		}()
		fabrictest.Eventually(t, long, "a message for this process run waits", func() bool {
			waiting, _ := a.rt.find(kvlocation.KindSpot, "r").waiting()
			return waiting == len(calls)+n+1
		})
	}
	held.Wait(t)
	if _, err := b.Spots().Request(m.ctx(), "r", []byte("faster"), WithInstance("room"), AtNode("b")); err != nil {
		t.Fatal(err)
	}
	held.Release()
	for name, c := range errs {
		if err := within(t, c, name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for oneWay, c := range exact {
		err := within(t, c, "a message for this process run")
		if at, ok := RouteOf(err); !ok || at.RID != "b" || outcome.KindOf(err) != outcome.Unavailable || outcome.AcceptanceOf(err) != outcome.NotAccepted {
			t.Errorf("for exactly this process run, one-way %t: %v, route %v", oneWay, err, at)
		}
		var r *refusal
		if errors.As(err, &r) {
			t.Errorf("an error of the package's inside: %#v", err)
		}
		var e *outcome.Error
		if !errors.As(err, &e) || e.Op != "relay" {
			t.Errorf("the error does not say what was asked for: %v", err)
		}
	}
	fabrictest.Eventually(t, long, "all have run at the other node", func() bool { return len(tp.ran("r")) == 1+len(calls) })
	for _, turn := range tp.ran("r") {
		if !strings.HasPrefix(turn, "b/1: ") {
			t.Errorf("a turn ran as %q", turn)
		}
	}
}

// Races on the last slot lose cleanly, and a slot that is given back can be used again.
func TestCapacity(t *testing.T) {
	t.Parallel()
	m, tp := newMesh(t), newTape()
	small := tp.typ(kvlocation.ClassActor, "small")
	small.Capacity = 2
	a, b := m.node("a", types(small)), m.node("b", types(small))
	c := m.client()
	var mu sync.Mutex
	var refs []ActorRef
	var wg sync.WaitGroup
	for i := range 30 {
		wg.Go(func() {
			ref, err := []*meshNode{a, b, c}[i%3].Actors().Create(m.ctx(), "small", fmt.Sprintf("s%d", i), nil)
			if err == nil {
				mu.Lock()
				refs = append(refs, ref)
				mu.Unlock()
				return
			}
			wantError(t, err, outcome.Unavailable, outcome.NotAccepted, "no free slot")
		})
	}
	wg.Wait()
	if len(refs) != 4 {
		t.Fatalf("%d were made on 4 slots", len(refs))
	}
	for _, n := range []*meshNode{a, b} {
		select {
		case <-n.TypesChanged():
		case <-time.After(long):
			t.Fatal("nobody was told that the type is full")
		}
		if ts := n.Types(); len(ts) != 1 || !ts[0].Full {
			t.Fatalf("the types are %+v", ts)
		}
		n.publish(kvlocation.StateServing)
	}
	m.settle()
	_, err := c.Actors().Create(m.ctx(), "small", "late", nil)
	wantError(t, err, outcome.Unavailable, outcome.NotAccepted, "no free slot")
	if err := c.Actors().Destroy(m.ctx(), refs[0]); err != nil {
		t.Fatal(err)
	}
	for _, n := range []*meshNode{a, b} {
		n.publish(kvlocation.StateServing)
	}
	m.settle()
	if _, err := c.Actors().Create(m.ctx(), "small", "late", nil); err != nil {
		t.Fatal(err)
	}
}

// What a factory does wrong ends the creation, which is undone before anybody hears NotAccepted.
func TestFactoryFailures(t *testing.T) {
	t.Parallel()
	m := newMesh(t)
	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	var runs atomic.Int64
	bad := func(name string, made Factory, timeout time.Duration) []Type {
		f := func(ctx context.Context, self *Self, input []byte) (Object, error) {
			runs.Add(1)
			return made(ctx, self, input)
		}
		return []Type{
			{Name: name, Class: kvlocation.ClassActor, New: f, CreateTimeout: timeout},
			{Name: name, Class: kvlocation.ClassInstanceSpot, New: f, CreateTimeout: timeout},
		}
	}
	const stuckFor = 2 * time.Second // which the record's first write has to come before
	var all []Type
	cases := []struct {
		name  string
		kind  outcome.Kind
		words string
		f     Factory
	}{
		{"error", outcome.InternalFailure, "no luck", func(context.Context, *Self, []byte) (Object, error) { return nil, errors.New("no luck") }},
		{"ours", outcome.Rejected, "not you", func(context.Context, *Self, []byte) (Object, error) {
			return nil, outcome.New("check", outcome.Rejected, outcome.Unknown, "", "not you")
		}},
		{"away", outcome.Unavailable, "elsewhere", func(context.Context, *Self, []byte) (Object, error) {
			return nil, outcome.New("check", outcome.Unavailable, outcome.NotAccepted, "", "try elsewhere")
		}},
		{"panic", outcome.InternalFailure, "oh dear", func(context.Context, *Self, []byte) (Object, error) { panic("oh dear") }},
		{"nothing", outcome.InternalFailure, "no object", func(context.Context, *Self, []byte) (Object, error) { return nil, nil }},
		{"stuck", outcome.InternalFailure, stuckFor.String(), func(context.Context, *Self, []byte) (Object, error) { <-release; return HandlerFunc(nil), nil }},
	}
	for _, c := range cases {
		timeout := time.Duration(0)
		if c.name == "stuck" {
			timeout = stuckFor
		}
		all = append(all, bad(c.name, c.f, timeout)...)
	}
	a, b := m.node("a", types(all...)), m.node("b", types(all...))
	client := m.client()
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			for i, from := range []*meshNode{a, b, client} {
				id := fmt.Sprintf("%s-%d", c.name, i)
				before := runs.Load()
				_, err := from.Actors().Create(m.ctx(), c.name, id, nil)
				wantError(t, err, c.kind, outcome.NotAccepted, c.words, id)
				_, err = from.Spots().Request(m.ctx(), id, []byte("first"), WithInstance(c.name))
				wantError(t, err, c.kind, outcome.NotAccepted, c.words)
				err = from.Spots().Send(m.ctx(), id, []byte("first"), WithInstance(c.name))
				wantError(t, err, c.kind, outcome.NotAccepted, c.words)
				if n := runs.Load() - before; n != 3 {
					t.Fatalf("3 operations ran %d factories", n)
				}
				for _, k := range []kvlocation.ObjectKind{kvlocation.KindActor, kvlocation.KindSpot} {
					if e := m.entry(a, k, id); e.Phase() != kvlocation.PhaseMissing {
						t.Fatalf("the record is %+v", e.Record)
					}
				}
			}
		})
	}
	for _, n := range []*meshNode{a, b} {
		for _, ty := range n.Metrics().Types {
			if ty.Owned != 0 {
				t.Fatalf("node %s still has %d slots of %s taken", n.rid, ty.Owned, ty.Name)
			}
		}
	}
}

// What is refused before anything begins, and how that reads.
func TestRefusedCreations(t *testing.T) {
	t.Parallel()
	m, tp := newMesh(t), newTape()
	a := m.node("a", types(tp.typ(kvlocation.ClassActor, "user"), tp.typ(kvlocation.ClassActor, "other"),
		tp.typ(kvlocation.ClassUserSpot, "hall"), tp.typ(kvlocation.ClassInstanceSpot, "room"), tp.typ(kvlocation.ClassInstanceSpot, "hall")))
	m.node("b")
	c := m.client()
	create := func(typ, id string, opts ...CallOption) error {
		_, err := c.Actors().Create(m.ctx(), typ, id, nil, opts...)
		return err
	}
	if err := create("user", "x"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Spots().Create(m.ctx(), "hall", "h", nil); err != nil {
		t.Fatal(err)
	}
	wantError(t, create("nobody", "y"), outcome.NotConfigured, outcome.NotAccepted, "nobody", "no node")
	wantError(t, create("other", "x"), outcome.TypeMismatch, outcome.NotAccepted, "user", "other")
	wantError(t, create("user", "y", AtNode("b")), outcome.NotConfigured, outcome.NotAccepted, `"b"`)
	wantError(t, create("user", "y", AtNode("z")), outcome.NotFound, outcome.NotAccepted, `"z"`)
	for name, id := range map[string]string{"empty": "", "long": strings.Repeat("x", 256), "no UTF-8": "a\xff"} {
		wantError(t, create("user", id), outcome.InvalidOperation, outcome.NotAccepted, "1 to 255 bytes")
		_, err := c.Actors().Request(m.ctx(), id, nil)
		wantError(t, err, outcome.InvalidOperation, outcome.NotAccepted, "1 to 255 bytes")
		_, err = c.Actors().Find(m.ctx(), id)
		wantError(t, err, outcome.InvalidOperation, outcome.NotAccepted, "1 to 255 bytes")
		_ = name
	}
	wantError(t, create("us er", "y"), outcome.InvalidOperation, outcome.NotAccepted, "us er")
	for _, id := range []string{"a.b", "a b", "*", ">", "a.*.>", "käse/日本", strings.Repeat("ü", 127), "=41"} {
		if err := create("user", id); err != nil {
			t.Fatalf("ID %q: %v", id, err)
		}
		if reply, err := c.Actors().Request(m.ctx(), id, []byte("x")); err != nil {
			t.Fatalf("ID %q: %q, %v", id, reply.Data, err)
		}
	}
	_, err := c.Spots().Create(m.ctx(), "hall", "entry:a", nil)
	wantError(t, err, outcome.InvalidOperation, outcome.NotAccepted, "Entry Spot")
	_, err = c.Spots().Request(m.ctx(), "h", nil, WithInstance("hall"))
	wantError(t, err, outcome.TypeMismatch, outcome.NotAccepted, "user_spot", "instance_spot")
	_, err = a.Spots().Request(m.ctx(), "h", nil, WithInstance("hall"))
	wantError(t, err, outcome.TypeMismatch, outcome.NotAccepted, "user_spot", "instance_spot")
	_, err = c.Actors().Request(m.ctx(), "x", nil, WithInstance("user"))
	wantError(t, err, outcome.InvalidOperation, outcome.NotAccepted)
	_, err = c.Actors().Request(m.ctx(), "x", nil, WithHeader(map[string][]string{"fabric-Kind": {"x"}}))
	wantError(t, err, outcome.InvalidOperation, outcome.NotAccepted, "reserved")
	_, err = c.Actors().Create(m.ctx(), "user", "big", make([]byte, 1<<20))
	wantError(t, err, outcome.CapacityExceeded, outcome.NotAccepted)
	if e := m.entry(a, kvlocation.KindActor, "big"); e.Phase() != kvlocation.PhaseMissing {
		t.Fatalf("the record is %+v", e.Record)
	}
	a.publish(kvlocation.StateDraining)
	fabrictest.Eventually(t, long, "the client knows", func() bool {
		got, _ := c.dir.Members().Get("a")
		return got.State == kvlocation.StateDraining
	})
	wantError(t, create("user", "y"), outcome.Unavailable, outcome.NotAccepted, "Draining")
}

// Input and first message above 64 KiB stand in the relay stream until the object is Ready, and reach it whole.
func TestLargeInput(t *testing.T) {
	t.Parallel()
	m, tp := newMesh(t), newTape()
	var during kvlocation.Entry
	var a *meshNode
	tp.onFactory = func(_ context.Context, self *Self, _ []byte) error {
		kind := kvlocation.KindSpot
		if self.Class() == kvlocation.ClassActor {
			kind = kvlocation.KindActor
		}
		during = m.entry(a, kind, self.ID())
		return nil
	}
	ty := []Type{tp.typ(kvlocation.ClassActor, "user"), tp.typ(kvlocation.ClassInstanceSpot, "room")}
	a = m.node("a", types(ty...))
	c := m.client()
	spilled := func(n int) *kvlocation.Spilled {
		t.Helper()
		doc, err := a.decodeDoc(m.ctx(), kvlocation.Entry{Key: during.Key, Record: kvlocation.Record{Activation: during.Record.Activation}})
		if n == 0 {
			if err != nil || doc.spill != nil {
				t.Fatalf("the activation is %+v, %v", doc, err)
			}
			return nil
		}
		if !strings.Contains(string(during.Record.Activation), `"spilled"`) {
			t.Fatalf("%d bytes stand in the record", n)
		}
		if !errors.Is(err, outcome.DataLost) {
			t.Fatalf("what no record points to any more is still there: %+v, %v", doc, err)
		}
		return nil
	}
	for _, size := range []int{100, 64 << 10, 64<<10 + 1, 500_000} {
		input := bytes.Repeat([]byte("i"), size)
		id := fmt.Sprintf("a%d", size)
		if _, err := c.Actors().Create(m.ctx(), "user", id, input); err != nil {
			t.Fatal(err)
		}
		if tp.input(id) != string(input) {
			t.Fatalf("the factory got %d bytes of %d", len(tp.input(id)), size)
		}
		large := size > 64<<10
		if large {
			spilled(size)
		} else {
			spilled(0)
		}
		reply, err := c.Spots().Request(m.ctx(), id, input, WithInstance("room"))
		if err != nil || !strings.HasSuffix(string(reply.Data), " "+string(input)) {
			t.Fatalf("%d bytes, %v", len(reply.Data), err)
		}
	}
}
