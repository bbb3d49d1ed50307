package kvlocation

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"natsfabric/fabrictest"
	"natsfabric/internal/monotime"
	"natsfabric/outcome"
)

// A store that is closed before the lease is released ends the lease. It once left the timer running, which sent on the
// closed channel of events when it came round.
func TestStoreClosedBeforeTheLease(t *testing.T) {
	t.Parallel()
	p := newMesh(t).program("n1")
	l := p.acquire(t, shortLease("n1"))
	lctx := l.Context()
	deadline := monotime.Time(l.deadline.Load())
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case _, open := <-l.Events():
		if open {
			t.Fatal("an event of a closed store's lease")
		}
	case <-time.After(readyIn):
		t.Fatal("the events are not closed")
	}
	wantLapsed(t, l, lctx)
	fabrictest.Eventually(t, readyIn, "the lease's own deadline", func() bool { return monotime.Now() > deadline.Add(maxTimer) })
}

// Around a change of leaders two servers may answer one sending. The one that is behind says first that the key's last
// sequence is an older one, and the other has stored the write: it was once reported as lost.
func TestLeaderBehindAnswersWhatAnotherStored(t *testing.T) {
	t.Parallel()
	p, key := newBed(t, 1).party(t), objectOf(t)
	at := p.create(t, key).Entry
	said := p.arm(t, key, func(tr *fabrictest.Trigger) {
		tr.Answer, tr.Action = true, fabrictest.Replace(func(m fabrictest.Message) fabrictest.Message {
			m.Payload = []byte(`{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 1"},"stream":"KV_x","seq":0}`)
			return m
		})
	})
	ch, err := p.Ready(testContext(t), at, n1)
	if err != nil || said.Count() != 1 {
		t.Fatalf("conflict %v: %v", errors.Is(err, ErrConflict), err)
	}
	if e := p.mustRead(t, key); e.Phase() != PhaseReady || e.Revision != ch.Entry.Revision || ch.Overwritten {
		t.Fatalf("got %+v, the key holds %+v", ch, e)
	}
}

// The answer to a create that assumes nothing there is lost, and the key holds the marker of an ID that came and went
// often: it was never possible, for the marker was there before. That was once not known for minutes.
func TestCreateLostBehindAnOldMarker(t *testing.T) {
	onEach(t, func(t *testing.T, b *bed) {
		p, q, key := b.party(t), b.party(t), objectOf(t)
		for range 4 { // more writes than a record names
			ch, err := p.CloseObject(testContext(t), p.ready(t, key).Entry, n1)
			mustChange(t, ch, err)
		}
		q.mustRead(t, key)
		lost := q.loseAnswer(t, key)
		object := room(key, n2, nil)
		object.AssumeMissing = true
		ch, err := q.Create(testContext(t), object)
		if mustChange(t, ch, err); lost.Count() != 1 || !ch.Entry.Record.Owner.Is(n2.RID, n2.Lifecycle) {
			t.Errorf("%+v after %d lost answers", ch.Entry, lost.Count())
		}
	})
}

// Such a create is lost for ever only once the key was written after it: the marker may expire, and then what is still on
// its way is applied. When the store goes away before that, nothing is certain.
func TestCreateBehindAMarkerThatMayExpire(t *testing.T) {
	t.Parallel()
	b := newBed(t, 1)
	p, q, key := b.party(t), b.party(t), objectOf(t)
	ch, err := p.CloseObject(testContext(t), p.ready(t, key).Entry, n1)
	mustChange(t, ch, err)
	q.mustRead(t, key)
	q.loseAnswer(t, key)
	// The first read tells what became of the write.
	q.proxy.Arm(fabrictest.Trigger{Subject: q.location.direct, Nth: 2, Times: -1, Action: fabrictest.Drop})
	object := room(key, n2, nil)
	object.AssumeMissing = true
	ctx, cancel := context.WithTimeout(testContext(t), 2*time.Second)
	defer cancel()
	_, err = q.Create(ctx, object)
	wantError(t, err, outcome.Unavailable, outcome.Unknown)
	if pending := (*Pending)(nil); !errors.As(err, &pending) || pending.sd.expect != 0 {
		t.Errorf("%v leads to %+v", err, pending)
	}
}

// A renewal whose acknowledgement is handled while the deadline passes: whoever was refused meanwhile waits for the events
// of a lapse, and once there were none.
func TestRenewedWhileTheDeadlinePasses(t *testing.T) {
	t.Parallel()
	p := newMesh(t).program("n1")
	l := p.acquire(t, LeaseConfig{RID: "n1", TTL: time.Minute})
	l.mu.Lock()
	l.timer.Stop()
	deadline := monotime.Now().Add(5 * time.Second) // long enough for a goroutine to start on any machine
	l.deadline.Store(int64(deadline))
	before, done := l.acked.Load(), make(chan bool, 1)
	go func() { done <- l.renewed(before.revision, monotime.Now()) }()
	fabrictest.Eventually(t, readyIn, "the acknowledgement", func() bool { return l.acked.Load() != before })
	if at := l.acked.Load().at; at >= deadline {
		t.Fatalf("this machine took until %v after the deadline to start a goroutine", at.Sub(deadline))
	}
	fabrictest.Eventually(t, readyIn, "the deadline", func() bool { return !l.Held() })
	l.mu.Unlock()
	if <-done {
		t.Error("held by a renewal that came in time only for those who had looked before")
	}
	if e := wantEvent(t, l, LeaseLapsed); e.Generation != l.Generation() || l.Held() {
		t.Errorf("%+v, held %v", e, l.Held())
	}
}

// Notices that find no room are dropped by the client library. Those of one key were noticed only with its next change,
// as long as later ones of other keys were heard.
func TestDroppedNoticesAreNoticed(t *testing.T) {
	t.Parallel()
	nc := connect(t, fabrictest.StartServer(t).URL())
	sub, err := nc.ChanSubscribe("x", make(chan *nats.Msg, 1))
	if err != nil {
		t.Fatal(err)
	}
	var d Directory
	d.subs = append(d.subs, sub)
	if d.lost() {
		t.Error("lost before anything came")
	}
	for range 3 {
		if err := nc.Publish("x", nil); err != nil {
			t.Fatal(err)
		}
	}
	fabrictest.Eventually(t, readyIn, "two are dropped", func() bool { n, _ := sub.Dropped(); return n == 2 })
	if !d.lost() || d.lost() {
		t.Error("seen not at all, or twice")
	}
}

// TestDescriptorWithABadWeight: a descriptor whose weight nobody could have published is not believed. Summed up with
// others it would overflow, and end every caller.
func TestDescriptorWithABadWeight(t *testing.T) {
	for weight, ok := range map[string]bool{"0": true, "256": true, "257": false, "-1": false, "9223372036854775807": false} {
		m := &storedMsg{key: descKey("a"), revision: 7, value: []byte(`{"v":1,"rid":"a","lifecycle":3,"state":"Serving","channels":[{"name":"c","kind":"route_mesh","weight":` + weight + `}]}`)}
		d, err := decodeDescriptor(m)
		if (err == nil) != ok {
			t.Errorf("weight %s: %+v, %v", weight, d.Channels, err)
		}
	}
}

// An error that says that a result is not known may be read by anybody, as it was when it was returned, while the write in it is
// asked for again. That was once a data race: it spoke of the last try.
func TestUnknownIsReadWhileItIsResolved(t *testing.T) {
	t.Parallel()
	b := newBed(t, 1)
	p := b.member(t, 0, "n1", shortAttempt)
	h, shared, key := p.Shared(BucketSupervise), "incident.read", objectOf(t)
	for _, c := range []struct {
		name, subject string
		write         func(ctx context.Context) error
		// again returns what asks again for the write that err is about.
		again func(t *testing.T, err error) func(context.Context) error
	}{
		{"of a record", p.location.publish + mustKey(t, key), func(ctx context.Context) error {
			_, err := p.Create(ctx, room(key, n1, nil))
			return err
		}, func(t *testing.T, err error) func(context.Context) error {
			pending := wantPending(t, err)
			return func(ctx context.Context) error { _, err := p.Resolve(ctx, pending); return err }
		}},
		{"of a shared key", h.b.publish + shared, func(ctx context.Context) error {
			_, err := h.Create(ctx, shared, []byte(`1`), 0)
			return err
		}, func(t *testing.T, err error) func(context.Context) error {
			var pending *SharedPending
			if !errors.As(err, &pending) {
				t.Fatalf("no pending write in %v", err)
			}
			return func(ctx context.Context) error { _, err := h.Resolve(ctx, pending); return err }
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			lost := p.proxy.Arm(fabrictest.Trigger{Subject: c.subject, Answer: true, Times: -1, Action: fabrictest.Drop})
			ctx, cancel := context.WithCancel(testContext(t))
			defer cancel()
			go func() {
				select {
				case <-lost.Reached():
					cancel()
				case <-ctx.Done():
				}
			}()
			err := c.write(ctx)
			wantError(t, err, outcome.Unavailable, outcome.Unknown)
			said := err.Error()
			if !errors.Is(err, context.Canceled) {
				t.Errorf("%q does not say why", said)
			}
			again := c.again(t, err)
			over := make(chan error, 1)
			go func() { over <- again(canceled()) }()
			for done := false; !done; {
				select {
				case err := <-over:
					wantError(t, err, outcome.Unavailable, outcome.Unknown)
					done = true
				default:
				}
				if now := err.Error(); now != said {
					t.Fatalf("%q became %q", said, now)
				}
			}
			lost.Disarm()
			if err := again(testContext(t)); err != nil {
				t.Error(err)
			}
		})
	}
}

// canceled returns a context that has ended.
func canceled() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

func mustKey(t *testing.T, key ObjectKey) string {
	t.Helper()
	k, err := key.key()
	if err != nil {
		t.Fatal(err)
	}
	return k
}
