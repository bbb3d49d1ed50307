package kvlocation

import (
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"natsfabric/fabrictest"
	"natsfabric/internal/monotime"
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
