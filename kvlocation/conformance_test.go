package kvlocation

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"natsfabric/fabrictest"
	"natsfabric/outcome"
)

// TestConformance runs the rules for object records on one server and on three, under the faults that they speak of.
func TestConformance(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, b *bed) {
		t.Run("each with a path of its own", func(t *testing.T) {
			t.Run("FO-7a", func(t *testing.T) {
				t.Parallel()
				for name, f := range map[string]func(*testing.T, *bed){
					"answer lost, applied":                         answerLost,
					"answer lost, applied, overwritten":            answerLostOverwritten,
					"answer lost, applied, overwritten many times": answerLostForgotten,
					"sending lost":                                 sendingLost,
					"sending lost, a rival wins":                   sendingLostToRival,
					"delayed duplicate":                            delayedDuplicate,
					"late create after a close":                    lateCreate,
					"another write of the key in flight, injected": keyInFlightInjected,
					"the same write in flight, injected":           idInFlightInjected,
					"no leader and nobody, injected":               refusalsInjected,
					"a leader that is behind, injected":            leaderBehindInjected,
					"stale answers to reads, injected":             staleInjected,
					"connection lost before the write":             cutBefore,
					"connection lost before the answer":            cutAfter,
					"store silent":                                 storeSilent,
					"store cut off":                                storeCutOff,
					"given up before it arrived":                   giveUpNotApplied,
					"given up after it was applied":                giveUpApplied,
					"given up over a record":                       giveUpOverRecord,
				} {
					t.Run(name, func(t *testing.T) {
						t.Parallel()
						f(t, b)
					})
				}
			})
			t.Run("FO-7e", func(t *testing.T) {
				t.Parallel()
				closedUntilReread(t, b, func(p party, key ObjectKey) (func(context.Context) (Change, error), Phase) {
					at := p.create(t, key).Entry
					return func(ctx context.Context) (Change, error) { return p.Ready(ctx, at, n1) }, PhaseReady
				})
			})
			t.Run("FO-10.16", func(t *testing.T) {
				t.Parallel()
				closedUntilReread(t, b, func(p party, key ObjectKey) (func(context.Context) (Change, error), Phase) {
					at := p.ready(t, key).Entry
					return func(ctx context.Context) (Change, error) { return p.Adopt(ctx, at, n1later) }, PhaseReady
				})
			})
			t.Run("FO-4.5", func(t *testing.T) {
				t.Parallel()
				activationServesCreation(t, b)
			})
			t.Run("FO-10.11", func(t *testing.T) {
				t.Parallel()
				leftoverActivation(t, b)
			})
			t.Run("CA-4", func(t *testing.T) {
				t.Parallel()
				recordsInKV(t, b)
			})
		})
		// These break the cluster for everybody.
		if b.replicas > 1 {
			t.Run("FO-7a/stale replica", func(t *testing.T) { staleReplica(t, b) })
			t.Run("FO-7a/writes in flight", func(t *testing.T) { inFlight(t, b) })
		}
		t.Run("FO-7a/no quorum", func(t *testing.T) { noQuorum(t, b) })
	})
}

func answerLost(t *testing.T, b *bed) {
	p, key := b.party(t), objectOf(t)
	heard := p.hears(b.pick(saysWrongSequence, saysDuplicate))
	lost := p.loseAnswer(t, key)
	ch := p.create(t, key)
	if !ch.Repeated || ch.Overwritten || lost.Count() != 1 {
		t.Fatalf("got %+v, %d answers lost", ch, lost.Count())
	}
	heard.Wait(t)
	e := p.mustRead(t, key)
	if e.Revision != ch.Entry.Revision || e.Record.Write != 1 || len(e.Record.Ops) != 1 || e.Generation() != ch.Entry.Generation() {
		t.Fatalf("the key holds %+v, the write returned %+v", e, ch.Entry)
	}
}

// overwrite loses the answer to a Ready and, before it is sent again, has other writes made over it.
func overwrite(t *testing.T, b *bed, times int) (p party, key ObjectKey, r result) {
	t.Helper()
	p, key = b.party(t), objectOf(t)
	creating := p.create(t, key).Entry
	lost := p.loseAnswer(t, key)
	again := p.arm(t, key, func(tr *fabrictest.Trigger) { tr.Nth, tr.Times, tr.Action = 2, -1, fabrictest.HoldAlone })
	done := async(func() (Change, error) { return p.Ready(testContext(t), creating, n1) })
	lost.Wait(t)
	other := b.party(t)
	at := other.mustRead(t, key)
	for i := range times {
		ch, err := other.Adopt(testContext(t), at, Owner{RID: n1.RID, Lifecycle: n1.Lifecycle, Lease: n1.Lease + uint64(i) + 1})
		at = mustChange(t, ch, err).Entry
	}
	again.Wait(t)
	again.Release()
	return p, key, await(t, done)
}

func answerLostOverwritten(t *testing.T, b *bed) {
	_, _, r := overwrite(t, b, 3)
	if r.err != nil || !r.ch.Overwritten || !r.ch.Repeated {
		t.Fatalf("got %+v, %v", r.ch, r.err)
	}
	if e := r.ch.Entry; e.Phase() != PhaseReady || e.Record.Owner.Lease != n1.Lease+3 {
		t.Fatalf("the entry is %+v, not what was read", e)
	}
}

// answerLostForgotten has the operation ID pushed out of the record: one server cannot tell any more and must say so,
// three still know the message ID.
func answerLostForgotten(t *testing.T, b *bed) {
	_, _, r := overwrite(t, b, maxOps)
	if b.replicas == 1 {
		wantPending(t, r.err)
		return
	}
	if r.err != nil || !r.ch.Overwritten {
		t.Fatalf("got %+v, %v", r.ch, r.err)
	}
}

func sendingLost(t *testing.T, b *bed) {
	p, key := b.party(t), objectOf(t)
	lost := p.arm(t, key, func(tr *fabrictest.Trigger) { tr.Action = fabrictest.Drop })
	ch := p.create(t, key)
	if !ch.Repeated || ch.Overwritten || lost.Count() != 1 {
		t.Fatalf("got %+v, %d sendings lost", ch, lost.Count())
	}
	if e := p.mustRead(t, key); e.Revision != ch.Entry.Revision || e.Record.Write != 1 {
		t.Fatalf("the key holds %+v", e)
	}
}

func sendingLostToRival(t *testing.T, b *bed) {
	p, rival, key := b.party(t), b.party(t), objectOf(t)
	lost := p.arm(t, key, func(tr *fabrictest.Trigger) { tr.Action = fabrictest.Drop })
	again := p.arm(t, key, func(tr *fabrictest.Trigger) { tr.Times, tr.Action = -1, fabrictest.HoldAlone })
	done := async(func() (Change, error) { return p.Create(testContext(t), room(key, n2, nil)) })
	lost.Wait(t)
	won := rival.create(t, key)
	again.Wait(t)
	again.Release()
	wantError(t, await(t, done).err, outcome.AlreadyExists, outcome.NotAccepted)
	if e := p.mustRead(t, key); e.Revision != won.Entry.Revision || !e.Record.Owner.Is(n1.RID, n1.Lifecycle) {
		t.Fatalf("the key holds %+v", e)
	}
}

func delayedDuplicate(t *testing.T, b *bed) {
	p, key := b.party(t), objectOf(t)
	twice := p.arm(t, key, func(tr *fabrictest.Trigger) { tr.Action = fabrictest.Duplicate })
	at := p.ready(t, key).Entry
	heard := p.hears(b.pick(saysWrongSequence, saysDuplicate))
	closed, err := p.CloseObject(testContext(t), at, n1)
	mustChange(t, closed, err)
	twice.Release()
	heard.Wait(t) // the copy of the create has been judged
	if e := p.mustRead(t, key); e.Phase() != PhaseMissing || e.Revision != closed.Entry.Revision {
		t.Fatalf("the key holds %+v", e)
	}
}

// lateCreate lets a create arrive after another incarnation has come and gone: the marker of the close is in its way.
func lateCreate(t *testing.T, b *bed) {
	p, other, key := b.party(t), b.party(t), objectOf(t)
	late := p.arm(t, key, func(tr *fabrictest.Trigger) { tr.Times, tr.Action = -1, fabrictest.HoldAlone })
	_, err := p.Create(briefly(t), room(key, n2, nil))
	pending := wantPending(t, err)

	closed, err := other.CloseObject(testContext(t), other.ready(t, key).Entry, n1)
	mustChange(t, closed, err)
	heard := p.hears(saysWrongSequence)
	late.Release()
	heard.Wait(t)
	if e := p.mustRead(t, key); e.Phase() != PhaseMissing || e.Revision != closed.Entry.Revision {
		t.Fatalf("the late create went through: %+v", e)
	}
	_, err = p.Resolve(testContext(t), pending)
	wantError(t, err, outcome.InvalidOperation, outcome.NotAccepted)
	if !errors.Is(err, ErrConflict) {
		t.Fatalf("%v is no conflict", err)
	}
	k, _ := key.key()
	m, err := p.get(testContext(t), p.location, k)
	if err != nil || !m.deleted() || first(m.header, "Nats-TTL") != "600" || first(m.header, "KV-Operation") != "PURGE" {
		t.Fatalf("the marker is %+v, %v", m, err)
	}
}

// keyInFlightInjected stands for what only a cluster answers by itself; see inFlight.
func keyInFlightInjected(t *testing.T, b *bed) {
	p, key := b.party(t), objectOf(t)
	said := p.arm(t, key, func(tr *fabrictest.Trigger) {
		tr.Times, tr.Action = 3, fabrictest.JetStreamError(400, 10164, "wrong last sequence")
	})
	ch := p.create(t, key)
	if said.Count() != 3 || ch.Overwritten || p.mustRead(t, key).Revision != ch.Entry.Revision {
		t.Fatalf("said %d times, got %+v", said.Count(), ch)
	}
	// It is the same write that is sent again, and not a new try after a conflict.
	p.proxy.Arm(fabrictest.Trigger{
		Subject: p.location.publish + "spot.raw", Times: 3, Action: fabrictest.JetStreamError(400, 10164, "wrong last sequence"),
	})
	if res, err := p.write(testContext(t), write{bucket: p.location, key: "spot.raw", value: []byte("{}"), opID: key.ID}); err != nil || !res.repeated {
		t.Fatalf("got %+v, %v", res, err)
	}
	// The context ends while it is said. Around a change of leaders another server may have stored it.
	p.arm(t, key, func(tr *fabrictest.Trigger) {
		tr.Times, tr.Action = -1, fabrictest.JetStreamError(400, 10164, "wrong last sequence")
	})
	_, err := p.Ready(briefly(t), ch.Entry, n1)
	wantPending(t, err)
}

// idInFlightInjected stands for what only a cluster answers by itself; see inFlight.
func idInFlightInjected(t *testing.T, b *bed) {
	p, key := b.party(t), objectOf(t)
	p.loseAnswer(t, key)
	said := p.arm(t, key, func(tr *fabrictest.Trigger) {
		tr.Nth, tr.Times, tr.Action = 2, 2, fabrictest.JetStreamError(409, 10158, "duplicate message id is in process")
	})
	ch := p.create(t, key)
	if said.Count() != 2 || !ch.Repeated || p.mustRead(t, key).Revision != ch.Entry.Revision {
		t.Fatalf("said %d times, got %+v", said.Count(), ch)
	}
}

func refusalsInjected(t *testing.T, b *bed) {
	p, key := b.party(t), objectOf(t)
	for _, a := range []fabrictest.Action{
		fabrictest.NoResponders,
		fabrictest.JetStreamError(507, 10047, "insufficient storage resources available"),
		fabrictest.JetStreamError(503, 10008, "JetStream system temporarily unavailable"),
		fabrictest.JetStreamError(429, 10167, "too many requests"),
		fabrictest.JetStreamError(503, 10077, "store failed"),
		fabrictest.Respond("not JSON"),
	} {
		p.arm(t, key, func(tr *fabrictest.Trigger) { tr.Action = a }) // one sending each
	}
	said := p.arm(t, key, func(tr *fabrictest.Trigger) { tr.Action = fabrictest.Signal })
	ch := p.create(t, key)
	if e := p.mustRead(t, key); said.Count() != 1 || e.Revision != ch.Entry.Revision || e.Record.Write != 1 {
		t.Fatalf("the key holds %+v", e)
	}
	// What repetition does not cure ends at once.
	p.arm(t, key, func(tr *fabrictest.Trigger) {
		tr.Action = fabrictest.JetStreamError(400, 10166, "message TTL disabled")
	})
	_, err := p.Ready(testContext(t), ch.Entry, n1)
	wantError(t, err, outcome.InternalFailure, outcome.NotAccepted)
	// Nobody there all the time: nothing was sent to anybody.
	p.arm(t, key, func(tr *fabrictest.Trigger) { tr.Times, tr.Action = -1, fabrictest.NoResponders })
	fabrictest.Eventually(t, time.Minute, "an end between two attempts", func() bool {
		_, err := p.Ready(briefly(t), ch.Entry, n1)
		if !errors.Is(err, outcome.Unavailable) {
			t.Fatalf("got %v", err)
		}
		return errors.Is(err, outcome.NotAccepted) // Unknown when the context ended before the last answer came
	})
}

// leaderBehindInjected has a deposed leader, which has not seen the last write, refuse the next one: the key is not at
// another revision, so nothing was lost.
func leaderBehindInjected(t *testing.T, b *bed) {
	p, key := b.party(t), objectOf(t)
	at := p.ready(t, key).Entry
	said := p.arm(t, key, func(tr *fabrictest.Trigger) {
		tr.Times, tr.Action = 2, fabrictest.JetStreamError(400, 10071, "wrong last sequence: 1")
	})
	k, _ := key.key()
	res, err := p.write(testContext(t), write{bucket: p.location, key: k, expect: at.Revision, value: []byte("{}"), opID: "once"})
	if err != nil || res.revision <= at.Revision || said.Count() != 2 {
		t.Fatalf("got %+v, %v", res, err)
	}
}

// staleInjected makes the answers to consistent reads look like those of a replica that is behind, and swallows one,
// as a frozen replica does. A real one: staleReplica.
func staleInjected(t *testing.T, b *bed) {
	p, key := b.party(t), objectOf(t)
	ch := p.create(t, key)
	p.proxy.Arm(fabrictest.Trigger{Subject: p.location.direct, Action: fabrictest.Drop})
	ends := func(m fabrictest.Message) bool { return m.Headers().Get("Nats-UpTo-Sequence") != "" }
	p.proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToClient, Match: ends, Action: fabrictest.Drop}) // the parts came, the end did not
	behind := p.proxy.Arm(fabrictest.Trigger{
		Dir: fabrictest.ToClient, Times: 3, Match: ends,
		Action: fabrictest.Replace(func(m fabrictest.Message) fabrictest.Message {
			s := string(m.Header)
			i := strings.Index(s, "Nats-UpTo-Sequence: ") + len("Nats-UpTo-Sequence: ")
			j := i + strings.Index(s[i:], "\r")
			m.Header = []byte(s[:i] + "1" + s[j:])
			return m
		}),
	})
	if _, err := p.Read(testContext(t), key); err != nil {
		t.Fatal(err)
	}
	if behind.Count() != 3 {
		t.Fatalf("%d old answers were given, 3 expected: an old one was taken", behind.Count())
	}
	if e, err := p.ReadSince(testContext(t), ch.Entry.Revision, key); err != nil || e[0].Revision != ch.Entry.Revision {
		t.Fatalf("got %+v, %v", e, err)
	}
}

// cutBefore and cutAfter give an attempt more time than the test: only the lost connection can end it.
func cutBefore(t *testing.T, b *bed) { cutAround(t, b, false) }
func cutAfter(t *testing.T, b *bed)  { cutAround(t, b, true) }

func cutAround(t *testing.T, b *bed, answer bool) {
	p, key := b.partyAt(t, 0, 5*time.Minute), objectOf(t)
	p.arm(t, key, func(tr *fabrictest.Trigger) { tr.Answer, tr.Action = answer, fabrictest.CutBefore })
	ch := p.create(t, key)
	if !ch.Repeated {
		t.Fatalf("got %+v", ch)
	}
	if e := p.mustRead(t, key); e.Record.Write != 1 || e.Revision != ch.Entry.Revision {
		t.Fatalf("the key holds %+v", e)
	}
}

func storeSilent(t *testing.T, b *bed) {
	p, key := b.party(t), objectOf(t)
	there, missing := p.ready(t, key).Entry, ObjectKey{Kind: KindSpot, ID: key.ID}
	p.proxy.Apply(fabrictest.HalfOpen)
	_, err := p.CloseObject(briefly(t), there, n1)
	pending := wantPending(t, err)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v hides the context's end", err)
	}
	for _, k := range []ObjectKey{key, missing} {
		_, err := p.Lookup(briefly(t), k)
		wantError(t, err, outcome.Unavailable, outcome.NotAccepted)
	}
	p.proxy.Heal()
	ch, err := p.Resolve(testContext(t), pending)
	if mustChange(t, ch, err); ch.Entry.Phase() != PhaseMissing {
		t.Fatalf("got %+v", ch)
	}
	fabrictest.Eventually(t, 10*time.Second, "the replica that answers a look-up knows it", func() bool {
		_, err = p.Lookup(testContext(t), key)
		return err != nil
	})
	wantError(t, err, outcome.NotFound, outcome.NotAccepted)
}

func storeCutOff(t *testing.T, b *bed) {
	p, key := b.party(t), objectOf(t)
	p.proxy.Apply(fabrictest.Cut, fabrictest.RefuseReconnect)
	fabrictest.Eventually(t, 10*time.Second, "the client notices", func() bool { return !p.nc.IsConnected() })
	at := Entry{Key: key, Record: Record{Phase: PhaseMissing}, read: true}
	_, err := p.change(briefly(t), at, Action{Verb: VerbCreate, Class: ClassActor, Type: "room", Owner: n1})
	wantError(t, err, outcome.Unavailable, outcome.NotAccepted)
	_, err = p.Lookup(briefly(t), key)
	wantError(t, err, outcome.Unavailable, outcome.NotAccepted)
	// Nothing may go out later.
	p.proxy.Heal()
	fabrictest.Eventually(t, 10*time.Second, "the client is back", p.nc.IsConnected)
	if e := p.mustRead(t, key); e.Revision != 0 {
		t.Fatalf("a write that was never sent has arrived: %+v", e)
	}
}

// closedUntilReread loses the answer to a write that would open an object. As long as the record was not read again,
// the operation must not return success; when its context ends first, it returns Unknown.
func closedUntilReread(t *testing.T, b *bed, prepare func(party, ObjectKey) (func(context.Context) (Change, error), Phase)) {
	p, key := b.party(t), objectOf(t)
	open, phase := prepare(p, key)
	p.loseAnswer(t, key)
	reads := p.proxy.Arm(fabrictest.Trigger{Subject: p.location.direct, Times: -1, Action: fabrictest.Drop})
	ctx, cancel := context.WithCancel(testContext(t))
	defer cancel()
	go func() {
		defer cancel()
		select {
		case <-reads.Reached(): // the record is read again
		case <-ctx.Done():
		}
	}()
	_, err := open(ctx)
	pending := wantPending(t, err)
	if reads.Count() == 0 {
		t.Fatal("the record was not read again")
	}
	done := async(func() (Change, error) { return p.Resolve(testContext(t), pending) })
	before := reads.Count()
	fabrictest.Eventually(t, 30*time.Second, "more reads", func() bool { return reads.Count() > before+2 })
	select {
	case r := <-done:
		t.Fatalf("it opened before the record was read again: %+v, %v", r.ch, r.err)
	default:
	}
	reads.Disarm()
	r := await(t, done)
	if r.err != nil || r.ch.Overwritten || r.ch.Entry.Phase() != phase {
		t.Fatalf("got %+v, %v", r.ch, r.err)
	}
}

// recordsInKV looks at the records with the stock client, and at every message with which they were written.
func recordsInKV(t *testing.T, b *bed) {
	p, key := b.party(t), ObjectKey{Kind: KindSpot, ID: "räum 1"}
	var (
		mu   sync.Mutex
		sent []nats.Header
	)
	p.proxy.Arm(fabrictest.Trigger{Subject: p.location.publish + "spot.>", Times: -1, Match: func(m fabrictest.Message) bool {
		mu.Lock()
		defer mu.Unlock()
		sent = append(sent, m.Headers())
		return true
	}})
	ctx := testContext(t)
	creating := p.create(t, key).Entry
	if string(creating.Record.Activation) != `{"input":1}` {
		t.Errorf("the Creating record holds %+v", creating)
	}
	ch, err := p.Ready(ctx, creating, n1)
	ready := mustChange(t, ch, err).Entry

	js, err := jetstream.New(connect(t, b.servers[0].URL()))
	if err != nil {
		t.Fatal(err)
	}
	kv, err := js.KeyValue(ctx, "FABRIC_m_LOCATION")
	if err != nil {
		t.Fatal(err)
	}
	var seen jetstream.KeyValueEntry
	fabrictest.Eventually(t, 10*time.Second, "any replica has the record", func() bool {
		seen, err = kv.Get(ctx, "spot.r=C3=A4um=201")
		return err == nil && seen.Revision() == ready.Revision
	})
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(seen.Value(), &fields); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"v", "phase", "kind", "type", "owner", "generation", "owner_generation", "write", "ops", "created", "updated"} {
		if fields[name] == nil {
			t.Errorf("the record has no field %s: %s", name, seen.Value())
		}
	}
	if string(fields["kind"]) != `"user_spot"` || fields["activation"] != nil {
		t.Errorf("the Ready record is %s", seen.Value())
	}
	// A field that this version does not know comes from outside, by the same compare-and-set.
	value := strings.Replace(string(seen.Value()), "{", `{"future":{"a":[1,2]},`, 1)
	value = strings.Replace(value, `"owner":{`, `"owner":{"zone":"z1",`, 1)
	if _, err := kv.Update(ctx, seen.Key(), []byte(value), seen.Revision()); err != nil {
		t.Fatal(err)
	}
	// The revision that the operation knows is not the last one any more: it reads again and keeps what it found.
	ch, err = p.Adopt(ctx, ready, n1later)
	mustChange(t, ch, err)
	e := p.mustRead(t, key)
	if string(e.Record.Unknown["future"]) != `{"a":[1,2]}` || string(e.Record.Owner.Unknown["zone"]) != `"z1"` || e.Record.Owner.Lease != n1later.Lease {
		t.Fatalf("the key holds %+v", e)
	}
	closed, err := p.CloseObject(ctx, e, n1later)
	mustChange(t, closed, err)
	fabrictest.Eventually(t, 10*time.Second, "the stock client finds the key deleted", func() bool {
		_, err := kv.Get(ctx, seen.Key())
		return errors.Is(err, jetstream.ErrKeyNotFound)
	})
	if _, err := kv.Update(ctx, seen.Key(), []byte("{}"), ready.Revision); err == nil {
		t.Error("an update with an old revision went through")
	}

	mu.Lock()
	defer mu.Unlock()
	expected := map[string]string{} // by operation ID: a write may be sent again, but is then the same
	for _, h := range sent {
		id, expect := h.Get(nats.MsgIdHdr), h.Get(nats.ExpectedLastSubjSeqHdr)
		if id == "" || expect == "" {
			t.Errorf("a write without expectation or operation ID: %v", h)
		}
		if earlier, ok := expected[id]; ok && earlier != expect {
			t.Errorf("one operation ID with two expectations: %v", h)
		}
		expected[id] = expect
	}
	if len(expected) < 5 {
		t.Fatalf("%d writes were seen, want create, ready, two tries to adopt, and close", len(expected))
	}
}
