package objects

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"natsfabric/fabrictest"
	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// isolate cuts a node off until its lease has lapsed and its Service knows.
func (n *meshNode) isolate() {
	n.m.t.Helper()
	n.proxy.Apply(fabrictest.RefuseReconnect, fabrictest.Cut)
	fabrictest.Eventually(n.m.t, long, "the lease lapses", func() bool { return n.lease.Admit() != nil && !n.held.Load() })
}

// member is what a node knows of another one.
func (n *meshNode) member(rid string) (*kvlocation.Member, error) {
	m, ok := n.dir.Members().Get(rid)
	if !ok {
		return nil, errors.New("it is not listed")
	}
	return &m, nil
}

// reunite lets the node back, and waits until it holds a lease of a new generation and serves under it.
func (n *meshNode) reunite() {
	n.m.t.Helper()
	old := n.lease.Generation()
	n.proxy.Heal()
	fabrictest.Eventually(n.m.t, long, "the lease is regained", func() bool {
		return n.lease.Generation() != old && n.lease.Admit() == nil && n.held.Load()
	})
}

// After a lapse each object opens only after a compare-and-set that puts the new lease generation into its record, lazily;
// its state in memory stays. While its owner is away nothing restores it elsewhere (FO-4.2c, FO-4.4d, FO-10.10).
func TestAdoption(t *testing.T) {
	t.Parallel()
	m, tp := newMesh(t), newTape()
	ty := types(tp.typ(kvlocation.ClassInstanceSpot, "room"), tp.typ(kvlocation.ClassActor, "user"))
	a := m.node("a", ty, shortLease)
	m.node("b", ty)
	c := m.client()
	room := m.homeID(a, kvlocation.ClassInstanceSpot, "room", "r")
	if _, err := c.Spots().Request(m.ctx(), room, []byte("1"), WithInstance("room")); err != nil {
		t.Fatal(err)
	}
	ref, err := c.Actors().Create(m.ctx(), "user", m.homeID(a, kvlocation.ClassActor, "user", "u"), nil)
	if err != nil {
		t.Fatal(err)
	}
	before := m.entry(c, kvlocation.KindSpot, room)

	a.isolate()
	for range 3 {
		_, err := c.Spots().Request(m.ctxFor(10*time.Second), room, []byte("away"), WithInstance("room"))
		wantError(t, err, outcome.Unavailable, outcome.NotAccepted)
		_, err = c.Actors().Request(m.ctxFor(10*time.Second), ref.ID, []byte("away"))
		wantError(t, err, outcome.Unavailable, outcome.NotAccepted)
		_, err = a.Spots().Request(m.ctxFor(time.Second), room, []byte("away"))
		wantError(t, err, outcome.Unavailable, outcome.NotAccepted)
	}
	if e := m.entry(c, kvlocation.KindSpot, room); e.Revision != before.Revision {
		t.Fatalf("the record changed while its owner was away: %+v", e.Record)
	}
	a.reunite()
	fabrictest.Eventually(t, long, "the spot answers again", func() bool {
		reply, err := c.Spots().Request(m.ctx(), room, []byte("2"), WithInstance("room"))
		return err == nil && string(reply.Data) == fmt.Sprintf("a %d 1 2", before.Generation())
	})
	after := m.entry(c, kvlocation.KindSpot, room)
	if after.Record.Owner.Lease != a.lease.Generation() || after.Record.Write != before.Record.Write+1 || tp.made(room) != 1 {
		t.Fatalf("the record after the adoption: %+v, %d factories", after.Record, tp.made(room))
	}
	if e := m.entry(c, kvlocation.KindActor, ref.ID); e.Record.Owner.Lease == a.lease.Generation() {
		t.Fatal("an object that was not asked was adopted")
	}
	mustAdopt := func(id string, kind kvlocation.ObjectKind) bool {
		e := must[Explanation](t)(c.Explain(m.ctx(), ExplainRequest{Kind: kind, ID: id}))
		if e.Object == nil {
			t.Fatalf("%+v", e)
		}
		return e.Object.MustAdopt
	}
	if !mustAdopt(ref.ID, kvlocation.KindActor) || mustAdopt(room, kvlocation.KindSpot) {
		t.Fatal("explain does not tell what was adopted from what is still to be")
	}
	if got, created, err := c.Actors().GetOrCreate(m.ctx(), "user", ref.ID, nil); err != nil || created || got != ref {
		t.Fatalf("%v, %v, %v", got, created, err)
	}
	// Close and membership work on what was not adopted yet.
	if err := c.Actors().Destroy(m.ctx(), ref); err != nil {
		t.Fatal(err)
	}
}

// An object that was released while its owner was away is dropped when the owner comes back and fails to adopt it, and the
// next incarnation answers.
func TestReleasedWhileAway(t *testing.T) {
	t.Parallel()
	m, tp := newMesh(t), newTape()
	ty := types(tp.typ(kvlocation.ClassInstanceSpot, "room"))
	a := m.node("a", ty, shortLease)
	b := m.node("b", ty)
	c := m.client()
	room := m.homeID(a, kvlocation.ClassInstanceSpot, "room", "r")
	if _, err := c.Spots().Request(m.ctx(), room, []byte("1"), WithInstance("room")); err != nil {
		t.Fatal(err)
	}
	e := m.entry(c, kvlocation.KindSpot, room)
	ref := SpotRef{ID: room, Generation: e.Generation()}

	err := c.Spots().Release(m.ctx(), ref)
	wantError(t, err, outcome.InvalidOperation, outcome.NotAccepted, "holds its lease until")
	if !errors.Is(err, kvlocation.ErrNodeAlive) {
		t.Fatalf("%v", err)
	}
	a.isolate()
	wantError(t, c.Spots().Release(m.ctx(), SpotRef{ID: room, Generation: ref.Generation + 1}), outcome.NotFound, outcome.NotAccepted, fmt.Sprint(ref.Generation))
	releaseWhenGone(t, func() error { return b.Spots().Release(m.ctx(), ref) })
	if p := m.entry(c, kvlocation.KindSpot, room).Phase(); p != kvlocation.PhaseMissing {
		t.Fatalf("the record is %s", p)
	}
	audits, err := b.store.Audits(m.ctx(), kvlocation.AuditFilter{})
	if err != nil || len(audits) != 1 || audits[0].ID != room || audits[0].Outcome != outcomeReleased || audits[0].By != "b" || audits[0].Owner.RID != "a" {
		t.Fatalf("the audit has %+v, %v", audits, err)
	}
	a.reunite()
	// The old owner still has it in memory, and must not run a turn.
	_, err = a.Spots().Request(m.ctx(), room, []byte("old"))
	if err == nil {
		t.Fatal("the released object served")
	}
	fabrictest.Eventually(t, long, "the old owner drops it", func() bool {
		_, _ = a.Spots().Request(m.ctx(), room, []byte("old"))
		return a.rt.find(kvlocation.KindSpot, room) == nil
	})
	var reply Reply
	fabrictest.Eventually(t, long, "a new incarnation answers", func() bool {
		reply, err = c.Spots().Request(m.ctx(), room, []byte("new"), WithInstance("room"))
		return err == nil
	})
	for _, r := range tp.ran(room) {
		if strings.HasSuffix(r, "old") {
			t.Fatalf("turns %v", tp.ran(room))
		}
	}
	if g := m.entry(c, kvlocation.KindSpot, room).Generation(); g <= ref.Generation || !strings.Contains(string(reply.Data), fmt.Sprint(g)) {
		t.Fatalf("generation %d after %d answered %q", g, ref.Generation, reply.Data)
	}
}

// releaseWhenGone releases as soon as the owner, which was cut off just now, is proven gone: a renewal that was on its way
// at the cut may still arrive, and ends the proof that had begun.
func releaseWhenGone(t *testing.T, release func() error) {
	t.Helper()
	fabrictest.Eventually(t, long, "the object is released", func() bool {
		err := release()
		if err != nil && !errors.Is(err, kvlocation.ErrNodeAlive) {
			t.Fatal(err)
		}
		return err == nil
	})
}

// An ID whose object was released while its owner was away can be made again at that owner, which drops the old one; and a
// release whose caller's time ends during the proof says that it did nothing.
func TestCreateAgainAtTheOldOwner(t *testing.T) {
	t.Parallel()
	m, tp := newMesh(t), newTape()
	a := m.node("a", types(tp.typ(kvlocation.ClassActor, "user")), shortLease)
	b := m.node("b")
	ref, err := a.Actors().Create(m.ctx(), "user", "x", nil)
	if err != nil {
		t.Fatal(err)
	}
	a.isolate()
	fabrictest.Eventually(t, long, "the proof begins", func() bool {
		err = b.Actors().Release(m.ctxFor(300*time.Millisecond), ref)
		return errors.Is(err, outcome.DeadlineExceeded) // else it lived, or the store took too long to say that it does not
	})
	wantError(t, err, outcome.DeadlineExceeded, outcome.NotAccepted, "proven gone")
	releaseWhenGone(t, func() error { return b.Actors().Release(m.ctx(), ref) })
	a.reunite()
	var again ActorRef
	fabrictest.Eventually(t, long, "the actor is made again", func() bool {
		var err error
		again, err = a.Actors().Create(m.ctx(), "user", "x", nil)
		return err == nil
	})
	if again.Generation <= ref.Generation || tp.made("x") != 2 {
		t.Fatalf("%v after %v, %d factories", again, ref, tp.made("x"))
	}
	if reply, err := b.Actors().Request(m.ctx(), "x", nil); err != nil || !strings.HasPrefix(string(reply.Data), fmt.Sprintf("a %d 1", again.Generation)) {
		t.Fatalf("%q, %v", reply.Data, err)
	}
	// The proof of before says nothing about the lease under which it was made again.
	err = b.Actors().Release(m.ctx(), again)
	if !errors.Is(err, kvlocation.ErrNodeAlive) {
		t.Fatal(err)
	}
	a.isolate()
	releaseWhenGone(t, func() error { return b.Actors().Release(m.ctx(), again) })
}

// An instance that was released while its node was away says nothing about its ID any more, not even at that node: what
// names the living incarnation, elsewhere, reaches it.
func TestOldInstanceSaysNothing(t *testing.T) {
	t.Parallel()
	m, tp := newMesh(t), newTape()
	ty := types(tp.typ(kvlocation.ClassActor, "user"), tp.typ(kvlocation.ClassUserSpot, "hall"), tp.typ(kvlocation.ClassInstanceSpot, "room"))
	core, logs := observer.New(zap.WarnLevel)
	logged := func(c *Config, _ *kvlocation.LeaseConfig) { c.Logger = zap.New(core) }
	a, b := m.node("a", ty, shortLease, logged), m.node("b", ty)
	actor := must[ActorRef](t)(a.Actors().Create(m.ctx(), "user", "x", nil, AtNode("a")))
	hall := must[SpotRef](t)(a.Spots().Create(m.ctx(), "hall", "h", nil, AtNode("a")))
	other := must[SpotRef](t)(a.Spots().Create(m.ctx(), "hall", "o", nil, AtNode("a")))
	if err := a.Actors().Join(m.ctx(), actor, hall); err != nil {
		t.Fatal(err)
	}
	a.isolate()
	releaseWhenGone(t, func() error { return b.Actors().Release(m.ctx(), actor) })
	releaseWhenGone(t, func() error { return b.Spots().Release(m.ctx(), hall) })
	releaseWhenGone(t, func() error { return b.Spots().Release(m.ctx(), other) })
	now := must[ActorRef](t)(b.Actors().Create(m.ctx(), "user", "x", nil, AtNode("b")))
	if _, err := b.Spots().Request(m.ctx(), "h", nil, WithInstance("room"), AtNode("b")); err != nil {
		t.Fatal(err)
	}
	a.reunite()
	fabrictest.Eventually(t, long, "the old node reaches others", func() bool {
		_, err := a.Actors().Find(m.ctx(), "x")
		return err == nil && a.router.PeerSelectable(must[*kvlocation.Member](t)(a.member("b")))
	})
	for _, n := range []*meshNode{a, b} {
		_, err := n.Spots().Members(m.ctx(), other)
		wantError(t, err, outcome.NotFound, outcome.NotAccepted)
		_, err = n.Spots().Broadcast(m.ctx(), hall, nil)
		wantError(t, err, outcome.NotFound, outcome.NotAccepted)
	}
	if _, err := a.Spots().Request(m.ctx(), "h", nil, WithInstance("room")); err != nil {
		t.Fatalf("an instance of another type in memory stood in the way: %v", err)
	}
	if err := a.Actors().Destroy(m.ctx(), now); err != nil {
		t.Fatal(err)
	}
	// What was lost is said, once a second at most.
	lines := logs.FilterMessageSnippet("was released while this node was away")
	a.rt.lost.mu.Lock()
	defer a.rt.lost.mu.Unlock()
	if a.rt.lost.n != 3 || lines.Len() < 1 || lines.Len() > 3 {
		t.Errorf("%d objects were lost, logged: %v", a.rt.lost.n, lines.All())
	}
}

// A bulk release takes one proof, changes nothing in a dry run, goes on where it was cut short, and leaves the others alone.
func TestBulkRelease(t *testing.T) {
	t.Parallel()
	m, tp := newMesh(t), newTape()
	ty := types(tp.typ(kvlocation.ClassActor, "user"), tp.typ(kvlocation.ClassActor, "clerk"))
	a := m.node("a", ty, shortLease)
	b := m.node("b", ty)
	const n = 40
	for i := range n {
		typ := "user"
		if i%4 == 0 {
			typ = "clerk"
		}
		if _, err := b.Actors().Create(m.ctx(), typ, fmt.Sprintf("a%d", i), nil, AtNode("a")); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := b.Actors().Create(m.ctx(), "user", "mine", nil, AtNode("b")); err != nil {
		t.Fatal(err)
	}
	owner := ReleaseRequest{RID: "a", Lifecycle: a.lease.Lifecycle(), Reason: "it burnt", By: "ops"}
	r, err := b.Release(m.ctx(), owner, nil)
	wantError(t, err, outcome.InvalidOperation, outcome.NotAccepted, "holds its lease until")
	if r.Released != 0 {
		t.Fatalf("%+v", r)
	}
	dry := owner
	dry.DryRun = true
	if r, err = b.Release(m.ctx(), dry, nil); err != nil || !r.Done || r.Released != 0 || r.Skipped != n || !strings.Contains(r.Objects[0].Why, "lives until") {
		t.Fatalf("dry run while the owner lives: %+v, %v", r, err)
	}
	for _, wrong := range []ReleaseRequest{{RID: "a", Lifecycle: 12345678}, {RID: "nobody", Lifecycle: 1}, {RID: "b", Lifecycle: b.lease.Lifecycle(), Type: "clerk", DryRun: true}} {
		_, err = b.Release(m.ctx(), wrong, nil)
		wantError(t, err, outcome.NotFound, outcome.NotAccepted, wrong.RID)
	}
	a.isolate()
	fabrictest.Eventually(t, long, "the dry run sees that the owner is gone", func() bool {
		r, err = b.Release(m.ctx(), dry, nil)
		return err == nil && r.Done && r.Released == n && !r.Waiting
	})
	var mu sync.Mutex
	waited := false
	clerks := owner
	clerks.Type = "clerk"
	fabrictest.Eventually(t, long, "the clerks are released", func() bool {
		r, err = b.Release(m.ctx(), clerks, func(p ReleaseReport) {
			mu.Lock()
			defer mu.Unlock()
			waited = waited || p.Waiting && !p.Until.IsZero()
		})
		return err == nil
	})
	if !r.Done || r.Released != n/4 || r.Waiting {
		t.Fatalf("%+v", r)
	}
	mu.Lock()
	defer mu.Unlock()
	if !waited {
		t.Fatal("nobody was told of the wait for the proof")
	}
	// The proof is known now; a slow release that is cut short goes on.
	slow := owner
	slow.Rate = 1
	ctx, cut := context.WithCancel(m.ctx())
	defer cut()
	before, ended := b.Metrics().Released, make(chan struct{})
	go func() {
		defer close(ended)
		r, err = b.Release(ctx, slow, nil)
	}()
	fabrictest.Eventually(t, long, "the first is released", func() bool { return b.Metrics().Released > before })
	cut()
	within(t, ended, "the end of the release")
	if err != nil || r.Done || r.Released == 0 || r.Released >= n*3/4 {
		t.Fatalf("cut short: %+v, %v", r, err)
	}
	rest := owner
	rest.Cursor = r.Cursor
	done := r.Released
	for !r.Done {
		if r, err = b.Release(m.ctx(), rest, nil); err != nil {
			t.Fatal(err)
		}
		done += r.Released
		rest.Cursor = r.Cursor
	}
	if done != n*3/4 {
		t.Fatalf("%d of %d were released", done, n*3/4)
	}
	page, err := b.List(m.ctx(), ListRequest{})
	if err != nil || len(page.Objects) != 1 || page.Objects[0].ID != "mine" || !page.Objects[0].Alive {
		t.Fatalf("left: %+v, %v", page, err)
	}
	audits, err := b.store.Audits(m.ctx(), kvlocation.AuditFilter{Limit: 1000})
	if err != nil || len(audits) != n || audits[0].Reason != "it burnt" || audits[0].By != "ops" {
		t.Fatalf("%d audit entries, %v", len(audits), err)
	}
	for name, bad := range map[string]ReleaseRequest{
		"no lifecycle": {RID: "a"}, "both": {Kind: "actor", ID: "x", Generation: 1, RID: "a"}, "no generation": {Kind: "actor", ID: "x"},
		"kind": {Kind: "x", ID: "x", Generation: 1}, "rate": {RID: "a", Lifecycle: 1, Rate: -1}, "nothing": {}, "entry": {Kind: "spot", ID: "entry:a", Generation: 1},
	} {
		_, err := b.Release(m.ctx(), bad, nil)
		if !errors.Is(err, outcome.InvalidOperation) {
			t.Fatalf("%s: %v", name, err)
		}
	}
}
