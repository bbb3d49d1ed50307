package objects

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"natsfabric/fabrictest"
	"natsfabric/internal/wire"
	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// writesOf is the subject of an object's record.
func (m *mesh) writesOf(kind kvlocation.ObjectKind, id string) string {
	return "$KV.FABRIC_" + m.name + "_LOCATION." + string(kind) + "." + id
}

// The answer to each write of an object's record is lost, once and until the connection is replaced: nothing opens, and
// nothing is dropped, before the store has said what became of it (FO-7a, FO-7e, FO-10.16), and nothing is done twice.
func TestLostAnswers(t *testing.T) {
	t.Parallel()
	m, tp := newMesh(t), newTape()
	a := m.node("a", types(tp.typ(kvlocation.ClassInstanceSpot, "room"), tp.typ(kvlocation.ClassActor, "user")))
	c := m.client()
	actions := map[string]fabrictest.Action{"lost": fabrictest.Drop, "cut": fabrictest.CutBefore}
	for _, how := range []string{"lost", "cut"} {
		for nth, write := range []string{"creating", "ready", "close"} {
			for _, answer := range []bool{true, false} {
				name := fmt.Sprintf("%s-%s-%v", how, write, answer)
				t.Run(name, func(t *testing.T) {
					armed := a.proxy.Arm(fabrictest.Trigger{
						Dir: fabrictest.ToServer, Subject: m.writesOf(kvlocation.KindSpot, name), Nth: nth + 1, Answer: answer, Action: actions[how],
					})
					var reply Reply
					fabrictest.Eventually(t, long, "the spot answers", func() bool {
						var err error
						reply, err = c.Spots().Request(m.ctx(), name, []byte("x"), WithInstance("room"))
						if err != nil && how == "lost" {
							t.Fatalf("a lost answer reached the caller: %v", err)
						}
						return err == nil
					})
					e := m.entry(c, kvlocation.KindSpot, name)
					if !strings.HasPrefix(string(reply.Data), fmt.Sprintf("a %d 1 ", e.Generation())) {
						t.Fatalf("the spot with generation %d answered %q", e.Generation(), reply.Data)
					}
					if e.Phase() != kvlocation.PhaseReady || tp.made(name) != 1 {
						t.Fatalf("%d factories, record %+v", tp.made(name), e.Record)
					}
					ref := SpotRef{ID: name, Generation: e.Generation()}
					fabrictest.Eventually(t, long, "the spot is closed", func() bool {
						err := c.Spots().Close(m.ctxFor(10*time.Second), ref)
						if err != nil && how == "lost" {
							t.Fatalf("a lost answer reached the caller: %v", err)
						}
						return m.entry(c, kvlocation.KindSpot, name).Phase() == kvlocation.PhaseMissing
					})
					if armed.Count() != 1 {
						t.Fatalf("the fault struck %d times", armed.Count())
					}
					fabrictest.Eventually(t, long, "the spot is gone from memory", func() bool { return a.rt.find(kvlocation.KindSpot, name) == nil })
				})
			}
		}
	}
	if n := a.Metrics().Types[0].Owned; n != 0 {
		t.Fatalf("%d slots are taken", n)
	}
}

// A write whose answer is lost beyond its caller's time is pursued all the same: the caller hears Unknown, and the creation
// or the close that was begun comes to its end without anybody asking again.
func TestUnknownIsPursued(t *testing.T) {
	t.Parallel()
	m, tp := newMesh(t), newTape()
	a := m.node("a", types(tp.typ(kvlocation.ClassActor, "user")))
	c := m.node("b") // which says its deadline, as a client without the store's clock does not
	// create makes an Actor in a time that ends while the fault strikes its writes.
	create := func(name string, tr fabrictest.Trigger) (armed *fabrictest.Armed, id string) {
		t.Helper()
		return m.reached(func(ctx context.Context, try int) *fabrictest.Armed {
			id = fmt.Sprint(name, try)
			tr.Dir, tr.Subject, tr.Times, tr.Action = fabrictest.ToServer, m.writesOf(kvlocation.KindActor, id), -1, fabrictest.Drop
			armed := a.proxy.Arm(tr)
			_, err := c.Actors().Create(ctx, "user", id, []byte("mine"))
			if armed.Count() > 0 {
				wantError(t, err, outcome.DeadlineExceeded, outcome.Unknown)
			}
			return armed
		}), id
	}
	for nth, step := range []string{"creating", "ready"} {
		armed, id := create(step, fabrictest.Trigger{Nth: nth + 1, Answer: true})
		fabrictest.Eventually(t, long, "the node pursues it", func() bool { return armed.Count() > 1 })
		armed.Disarm()
		fabrictest.Eventually(t, long, "the actor is Ready", func() bool {
			o := a.rt.find(kvlocation.KindActor, id)
			return o != nil && !o.isCreating() && m.entry(c, kvlocation.KindActor, id).Phase() == kvlocation.PhaseReady
		})
		if tp.made(id) != 1 {
			t.Fatalf("%d factories", tp.made(id))
		}
	}
	// It was lost for ever, because somebody else was faster: the order ends, and the other's record is made on by the
	// next one.
	armed, lost := create("lost", fabrictest.Trigger{})
	_, err := c.store.Create(m.ctx(), kvlocation.NewObject{
		Key: kvlocation.ObjectKey{Kind: kvlocation.KindActor, ID: lost}, Class: kvlocation.ClassActor, Type: "user",
		Owner: kvlocation.Owner{RID: "dead", Lifecycle: 1, Lease: 1}, Activation: []byte(`{"input":"b2xk"}`),
	})
	if err != nil {
		t.Fatal(err)
	}
	armed.Disarm()
	fabrictest.Eventually(t, long, "the order ends", func() bool { return a.Metrics().Creating == 0 })
	if _, created, err := c.Actors().GetOrCreate(m.ctx(), "user", lost, []byte("mine")); err != nil || created {
		t.Fatalf("%v, %v", created, err)
	}
	e := m.entry(c, kvlocation.KindActor, lost)
	if e.Phase() != kvlocation.PhaseReady || e.Record.OwnerGeneration != 2 || tp.input(lost) != "old" {
		t.Fatalf("input %q, record %+v", tp.input(lost), e.Record)
	}
}

// An object whose close was sent and not answered neither serves nor is dropped until the store has answered.
func TestUnknownCloseServesNobody(t *testing.T) {
	t.Parallel()
	m, tp := newMesh(t), newTape()
	a := m.node("a", types(tp.typ(kvlocation.ClassActor, "user")))
	c := m.client()
	ref, err := c.Actors().Create(m.ctx(), "user", "x", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Actors().Request(m.ctx(), "x", nil); err != nil {
		t.Fatal(err)
	}
	armed := a.proxy.Arm(fabrictest.Trigger{
		Dir: fabrictest.ToServer, Subject: m.writesOf(kvlocation.KindActor, "x"), Answer: true, Times: -1, Action: fabrictest.Drop,
	})
	closed := make(chan error, 1)
	go func() { closed <- c.Actors().Destroy(m.ctx(), ref) }()
	armed.Wait(t)
	err = m.late(func(ctx context.Context) error { return second(c.Actors().Request(ctx, "x", []byte("late"))) })
	wantError(t, err, outcome.DeadlineExceeded, outcome.Unknown)
	_, err = a.Actors().Request(m.ctxFor(300*time.Millisecond), "x", []byte("late"))
	wantError(t, err, outcome.DeadlineExceeded, outcome.NotAccepted)
	if a.rt.find(kvlocation.KindActor, "x") == nil {
		t.Fatal("the object was dropped")
	}
	armed.Disarm()
	if err := <-closed; err != nil {
		t.Fatal(err)
	}
	if got := tp.ran("x"); len(got) != 1 {
		t.Fatalf("turns ran: %v", got)
	}
}

// What ends at its caller's deadline is not answered: the caller gives up by itself, and would see by luck which of the two was
// first.
func TestNoAnswerAtTheDeadline(t *testing.T) {
	t.Parallel()
	m, tp := newMesh(t), newTape()
	a := m.node("a", types(tp.typ(kvlocation.ClassActor, "user")))
	// A caller that hears whatever is said to it, however late.
	nc := m.connect(m.server.URL(), "caller", nil)
	defer nc.Close()
	var answers *nats.Subscription
	id := ""
	armed := m.reached(func(ctx context.Context, try int) *fabrictest.Armed {
		id = fmt.Sprint("x", try)
		ref := must[ActorRef](t)(a.Actors().Create(m.ctx(), "user", id, nil))
		armed := a.proxy.Arm(fabrictest.Trigger{
			Dir: fabrictest.ToServer, Subject: m.writesOf(kvlocation.KindActor, id), Answer: true, Times: -1, Action: fabrictest.Drop,
		})
		inbox := fmt.Sprint("fab.m.client.test", try)
		var err error
		if answers, err = nc.SubscribeSync(inbox + ".>"); err != nil {
			t.Fatal(err)
		}
		local, _ := ctx.Deadline()
		reply := wire.AppendReply(nil, inbox, wire.ReplyBlob{Token: uint64(try), Deadline: a.router.StoreDeadline(local)})
		subject := a.subject("a", a.lease.Lifecycle(), verbEnd, kvlocation.KindActor, id)
		if err := nc.PublishRequest(subject, string(reply), fmt.Appendf(nil, `{"generation":%d}`, ref.Generation)); err != nil {
			t.Fatal(err)
		}
		<-ctx.Done()
		return armed
	})
	fabrictest.Eventually(t, long, "the operation ends", func() bool { return a.working.Load() == 0 })
	for _, c := range []*nats.Conn{a.nc, nc} {
		if err := c.FlushTimeout(long); err != nil {
			t.Fatal(err)
		}
	}
	if n, _, err := answers.Pending(); n != 0 || err != nil {
		said, _ := answers.NextMsg(long)
		t.Errorf("it was told: %v (%v)", said.Header, err)
	}
	armed.Disarm()
	fabrictest.Eventually(t, long, "the actor is closed all the same", func() bool { return a.rt.find(kvlocation.KindActor, id) == nil })
}

// The store is away at each step: what was certainly not written is NotAccepted, and what may have been is Unknown; when it
// is back, nothing is left half done.
func TestStoreAway(t *testing.T) {
	t.Parallel()
	m, tp := newMesh(t), newTape()
	a := m.node("a", types(tp.typ(kvlocation.ClassActor, "user")))
	c := m.client()
	away := func(id string, nth int) *fabrictest.Armed {
		return a.proxy.Arm(fabrictest.Trigger{
			Dir: fabrictest.ToServer, Subject: m.writesOf(kvlocation.KindActor, id), Nth: nth, Times: -1,
			Action: fabrictest.JetStreamError(503, 10008, "JetStream system temporarily unavailable"),
		})
	}
	for nth, step := range []string{"creating", "ready"} {
		id := ""
		m.reached(func(ctx context.Context, try int) *fabrictest.Armed {
			id = fmt.Sprint(step, try)
			armed := away(id, nth+1)
			_, err := c.Actors().Create(ctx, "user", id, nil)
			if err == nil {
				t.Fatal("it was created without a store")
			}
			if nth == 1 && armed.Count() > 0 {
				wantError(t, err, outcome.DeadlineExceeded, outcome.Unknown)
			}
			return armed
		}).Disarm()
		fabrictest.Eventually(t, long, "it is there, or can be made", func() bool {
			_, _, err := c.Actors().GetOrCreate(m.ctx(), "user", id, nil)
			return err == nil
		})
		if _, err := c.Actors().Request(m.ctx(), id, nil); err != nil {
			t.Fatal(err)
		}
	}
}

// A creator dies between Creating and Ready. The next operation takes the record over: same ObjectGeneration, next owner
// generation, the stored input; the stored first message runs at the head, once, and its caller gets the answer
// (FO-4.3, FO-4.4b). When the creator comes back, what it had is void.
func TestTakeover(t *testing.T) {
	t.Parallel()
	m, tp := newMesh(t), newTape()
	inFactory := make(chan string, 10)
	release := make(chan struct{})
	tp.onFactory = func(ctx context.Context, self *Self, _ []byte) error {
		if self.RID() != "a" {
			return nil
		}
		inFactory <- self.ID()
		select { // a frozen process does not see that its context has ended
		case <-release:
		case <-time.After(long):
		}
		return nil
	}
	ty := types(tp.typ(kvlocation.ClassInstanceSpot, "room"), tp.typ(kvlocation.ClassActor, "user"))
	a := m.node("a", ty, shortLease)
	m.node("b", ty)
	c := m.client()
	spot := m.homeID(a, kvlocation.ClassInstanceSpot, "room", "s")
	actor := m.homeID(a, kvlocation.ClassActor, "user", "u")

	type result struct {
		reply Reply
		err   error
	}
	first, created := make(chan result, 1), make(chan error, 1)
	go func() {
		reply, err := c.Spots().Request(m.ctx(), spot, []byte("first"), WithInstance("room"))
		first <- result{reply, err}
	}()
	<-inFactory
	go func() {
		_, err := c.Actors().Create(m.ctx(), "user", actor, []byte("input"))
		created <- err
	}()
	<-inFactory
	before := m.entry(c, kvlocation.KindSpot, spot)
	if before.Phase() != kvlocation.PhaseCreating || !strings.Contains(string(before.Record.Activation), "first") {
		t.Fatalf("the record is %+v", before.Record)
	}
	// While the creator's lease lives nobody takes over from it: who cannot reach it hears that.
	token := must[string](t)(wire.EscapeID(spot))
	unreached := c.proxy.Arm(fabrictest.Trigger{
		Dir: fabrictest.ToServer, Subject: a.subject("a", a.cfg.Lifecycle, "*", kvlocation.KindSpot, token), Times: -1, Action: fabrictest.NoResponders,
	})
	_, err := c.Spots().Request(m.ctx(), spot, []byte("early"), WithInstance("room"))
	wantError(t, err, outcome.Unavailable, outcome.NotAccepted)
	if unreached.Count() == 0 {
		t.Fatal("the creator was not asked")
	}
	unreached.Disarm()
	a.vanish()
	var reply Reply
	fabrictest.Eventually(t, long, "the record is taken over", func() bool {
		var err error
		reply, err = c.Spots().Request(m.ctx(), spot, []byte("second"), WithInstance("room"))
		return err == nil
	})
	if want := fmt.Sprintf("b %d 2 second", before.Generation()); string(reply.Data) != want {
		t.Fatalf("got %q, want %q", reply.Data, want)
	}
	got := <-first
	if want := fmt.Sprintf("b %d 2 first", before.Generation()); got.err != nil || string(got.reply.Data) != want {
		t.Fatalf("the first caller got %q, %v, want %q", got.reply.Data, got.err, want)
	}
	if ran := tp.ran(spot); ran[0] != "b/2: first" || ran[len(ran)-1] != "b/2: second" {
		t.Fatalf("turns %v", ran)
	}
	// An ordinary message does the same for an Actor, whose own creator never answers.
	reply, err = c.Actors().Request(m.ctx(), actor, []byte("hello"))
	if err != nil || !strings.HasPrefix(string(reply.Data), "b ") || tp.input(actor) != "input" {
		t.Fatalf("%q, %v, input %q", reply.Data, err, tp.input(actor))
	}
	if e := m.entry(c, kvlocation.KindActor, actor); e.Record.OwnerGeneration != 2 || len(e.Record.Activation) != 0 {
		t.Fatalf("the record is %+v", e.Record)
	}

	// The creator thaws.
	a.proxy.Heal()
	close(release)
	fabrictest.Eventually(t, long, "the creator gives up", func() bool { return a.Metrics().Overtaken == 2 && a.Metrics().Creating == 0 })
	for _, k := range []kvlocation.ObjectKey{{Kind: kvlocation.KindSpot, ID: spot}, {Kind: kvlocation.KindActor, ID: actor}} {
		if a.rt.find(k.Kind, k.ID) != nil {
			t.Fatalf("%v is still at its creator", k)
		}
	}
	for _, r := range tp.ran(spot) {
		if strings.HasPrefix(r, "a/") {
			t.Fatalf("a turn ran at the creator: %v", tp.ran(spot))
		}
	}
	if n := len(tp.ran(spot)); n != 2 {
		t.Fatalf("%d turns: %v", n, tp.ran(spot))
	}
}

// A first message whose deadline has passed does not run where its record is taken over, and a record whose input is gone
// is cancelled, which is DataLost.
func TestTakeoverOfWhatIsGone(t *testing.T) {
	t.Parallel()
	m, tp := newMesh(t), newTape()
	ty := types(tp.typ(kvlocation.ClassInstanceSpot, "room"), tp.typ(kvlocation.ClassActor, "user"))
	b := m.node("b", ty)
	c := m.client()
	// A process run that never was anybody's has certainly no lease.
	dead := kvlocation.Owner{RID: "dead", Lifecycle: 1, Lease: 1}
	secure := func(kind kvlocation.ObjectKind, class Class, typ, id, activation string) kvlocation.Entry {
		t.Helper()
		var doc []byte
		if activation != "" {
			doc = []byte(activation)
		}
		ch, err := c.store.Create(m.ctx(), kvlocation.NewObject{Key: kvlocation.ObjectKey{Kind: kind, ID: id}, Class: class, Type: typ, Owner: dead, Activation: doc})
		if err != nil {
			t.Fatal(err)
		}
		return ch.Entry
	}
	past := time.Now().Add(-time.Minute).UnixMilli()
	e := secure(kvlocation.KindSpot, kvlocation.ClassInstanceSpot, "room", "late", fmt.Sprintf(`{"first":{"op":"o","data":"Zmlyc3Q=","deadline":%d}}`, past))
	reply, err := c.Spots().Request(m.ctx(), "late", []byte("x"), WithInstance("room"))
	if want := fmt.Sprintf("b %d 2 x", e.Generation()); err != nil || string(reply.Data) != want {
		t.Fatalf("%q, %v, want %q", reply.Data, err, want)
	}
	if ran := tp.ran("late"); len(ran) != 1 || b.Metrics().FirstPast != 1 {
		t.Fatalf("turns %v", ran)
	}
	for name, activation := range map[string]string{
		"none": "", "junk": `"junk"`, "gone": `{"spilled":{"name":"first.actor.gone.abc","revision":1,"size":10}}`,
	} {
		secure(kvlocation.KindActor, kvlocation.ClassActor, "user", name, activation)
		_, err := c.Actors().Request(m.ctx(), name, nil)
		wantError(t, err, outcome.DataLost, outcome.NotAccepted)
		if e := m.entry(c, kvlocation.KindActor, name); e.Phase() != kvlocation.PhaseMissing {
			t.Fatalf("%s: the record is %+v", name, e.Record)
		}
		if _, err := c.Actors().Create(m.ctx(), "user", name, nil); err != nil {
			t.Fatalf("%s: the ID is not free: %v", name, err)
		}
	}
	// Create and GetOrCreate make on from it, too, with the stored input; Destroy cancels exactly it.
	secure(kvlocation.KindActor, kvlocation.ClassActor, "user", "c1", `{"input":"b2xk"}`)
	secure(kvlocation.KindActor, kvlocation.ClassActor, "user", "c2", `{"input":"b2xk"}`)
	e = secure(kvlocation.KindActor, kvlocation.ClassActor, "user", "c3", `{}`)
	if _, err := c.Actors().Create(m.ctx(), "user", "c1", []byte("new")); err != nil {
		wantError(t, err, outcome.AlreadyExists, outcome.NotAccepted)
	} else {
		t.Fatal("a creation of somebody else's became this one's")
	}
	if _, created, err := c.Actors().GetOrCreate(m.ctx(), "user", "c2", []byte("new")); err != nil || created {
		t.Fatalf("%v, %v", created, err)
	}
	if tp.input("c1") != "old" || tp.input("c2") != "old" {
		t.Fatalf("inputs %q, %q", tp.input("c1"), tp.input("c2"))
	}
	if err := b.Actors().Destroy(m.ctx(), ActorRef{ID: "c3", Generation: e.Generation()}); err != nil {
		t.Fatal(err)
	}
	if p := m.entry(c, kvlocation.KindActor, "c3").Phase(); p != kvlocation.PhaseMissing || tp.made("c3") != 0 {
		t.Fatalf("the record is %s", p)
	}
}

// A creator whose lease has ended on the store, while it still reaches everybody, has its record taken over. Its own writes
// lose, it runs nothing, and it tells the first caller nothing: that one hears the answer of who took over. What only
// waited in its mailbox was never stored: it is refused, and its caller goes on to the other node.
func TestOvertakenCreatorIsSilent(t *testing.T) {
	t.Parallel()
	m, tp := newMesh(t), newTape()
	begun := map[string]chan struct{}{"a": make(chan struct{}), "b": make(chan struct{})}
	release := map[string]chan struct{}{"a": make(chan struct{}), "b": make(chan struct{})}
	tp.onFactory = func(_ context.Context, self *Self, _ []byte) error {
		close(begun[self.RID()])
		<-release[self.RID()]
		return nil
	}
	ty := types(tp.typ(kvlocation.ClassInstanceSpot, "room"))
	a := m.node("a", ty, shortLease)
	b := m.node("b", ty)
	c := m.client()
	id := m.homeID(a, kvlocation.ClassInstanceSpot, "room", "s")
	type result struct {
		reply Reply
		err   error
	}
	first, waiting, second := make(chan result, 1), make(chan error, 1), make(chan error, 1)
	go func() {
		reply, err := c.Spots().Request(m.ctx(), id, []byte("first"), WithInstance("room"))
		first <- result{reply, err}
	}()
	<-begun["a"]
	o := a.rt.find(kvlocation.KindSpot, id)
	// While the flight is under way no other begins at this node.
	if f, own, err := a.begin(&order{key: o.key(), reg: o.reg}); err != nil || own || f == nil || f.o != o {
		t.Fatalf("a second flight: %v, %v, %v", f, own, err)
	}
	go func() {
		_, err := c.Spots().Request(m.ctx(), id, []byte("waiting"), WithInstance("room"))
		waiting <- err
	}()
	fabrictest.Eventually(t, long, "the second message waits", func() bool { n, _ := o.waiting(); return n == 2 })
	// The cancel that the lapse brings about comes too late: it is kept back until b has taken the record over.
	renewals := a.proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: "$KV.FABRIC_m_NODES.lease.a", Times: -1, Action: fabrictest.Drop})
	late := a.proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: m.writesOf(kvlocation.KindSpot, id), Times: -1, Action: fabrictest.HoldAlone})
	late.Wait(t)
	e := m.entry(c, kvlocation.KindSpot, id)
	go func() {
		ctx, err := m.ctx(), errors.New("not yet")
		for err != nil && ctx.Err() == nil { // b cannot take over while the lease lives
			_, err = b.Spots().Request(ctx, id, []byte("second"), WithInstance("room"), AtNode("b"))
		}
		second <- err
	}()
	<-begun["b"]
	late.Release()
	renewals.Disarm()
	fabrictest.Eventually(t, long, "a gives up", func() bool { return a.Metrics().Overtaken == 1 && a.Metrics().Creating == 0 })
	close(release["b"])
	got := <-first
	if want := fmt.Sprintf("b %d 2 first", e.Generation()); got.err != nil || string(got.reply.Data) != want {
		t.Fatalf("the first caller got %q, %v, want %q", got.reply.Data, got.err, want)
	}
	if err := <-waiting; err != nil {
		t.Fatalf("what nobody had accepted was not taken elsewhere: %v", err)
	}
	if err := <-second; err != nil {
		t.Fatal(err)
	}
	close(release["a"])
	ran := tp.ran(id)
	for i, r := range ran {
		if !strings.HasPrefix(r, "b/2: ") || (i == 0) != (r == "b/2: first") {
			t.Fatalf("turns %v", ran)
		}
	}
	if len(ran) != 3 || m.entry(c, kvlocation.KindSpot, id).Record.Owner.RID != "b" {
		t.Fatalf("turns %v", ran)
	}
}

// Callers who leave at any step of a cold activation hear Unknown, never NotAccepted, for the message that stands in the
// record; what waits behind it is refused for certain.
func TestCallersWhoLeave(t *testing.T) {
	t.Parallel()
	m, tp := newMesh(t), newTape()
	a := m.node("a", types(tp.typ(kvlocation.ClassInstanceSpot, "room"), tp.typ(kvlocation.ClassActor, "user")))
	c := m.client()
	for nth, step := range []string{"creating", "ready"} {
		for _, from := range []*meshNode{a, c} {
			id := step + "-" + from.rid
			armed := a.proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: m.writesOf(kvlocation.KindSpot, id), Nth: nth + 1, Answer: true, Action: fabrictest.HoldAlone})
			ctx, cancel := context.WithCancel(m.ctx())
			done := make(chan error, 1)
			go func() {
				_, err := from.Spots().Request(ctx, id, []byte("first"), WithInstance("room"))
				done <- err
			}()
			armed.Wait(t)
			cancel()
			err := <-done
			wantError(t, err, outcome.DeadlineExceeded, outcome.Unknown)
			armed.Release()
			fabrictest.Eventually(t, long, "the spot is there", func() bool {
				_, err := from.Spots().Request(m.ctx(), id, []byte("second"), WithInstance("room"))
				return err == nil
			})
			if tp.made(id) != 1 {
				t.Fatalf("%d factories", tp.made(id))
			}
		}
	}
}
