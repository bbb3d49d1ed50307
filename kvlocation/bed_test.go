package kvlocation

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"natsfabric/fabrictest"
	"natsfabric/outcome"
)

// bed is where the tests of record operations run: one server, or three with replicas 3.
type bed struct {
	replicas int
	servers  []*fabrictest.Server
	cluster  *fabrictest.Cluster // nil on one server
}

func newBed(t *testing.T, replicas int) *bed {
	t.Helper()
	b := &bed{replicas: replicas}
	if replicas == 1 {
		b.servers = []*fabrictest.Server{fabrictest.StartServer(t)}
	} else {
		b.cluster = fabrictest.StartCluster(t, replicas, fabrictest.WithProxiedRoutes())
		b.servers = b.cluster.Servers()
	}
	nc := connect(t, b.servers[0].URL())
	if _, err := Init(testContext(t), nc, Setup{Mesh: "m", Replicas: replicas}); err != nil {
		t.Fatal(err)
	}
	return b
}

// onEach runs f on one server and on three.
func onEach(t *testing.T, f func(t *testing.T, b *bed)) {
	for _, replicas := range []int{1, 3} {
		t.Run(fmt.Sprintf("servers=%d", replicas), func(t *testing.T) {
			t.Parallel()
			f(t, newBed(t, replicas))
		})
	}
}

// pick returns what is expected on one server, or on three.
func (b *bed) pick(one, three string) string {
	if b.replicas == 1 {
		return one
	}
	return three
}

// leader returns the index of the server that leads the stream of the object records.
func (b *bed) leader(t *testing.T) int {
	t.Helper()
	leader := b.cluster.StreamLeader(t, "KV_FABRIC_m_LOCATION")
	for i, s := range b.servers {
		if s == leader {
			return i
		}
	}
	t.Fatalf("%v leads the stream and is none of the servers", leader)
	return -1
}

// party is one program: a store, and the path between it and its server.
type party struct {
	*Store
	proxy *fabrictest.Proxy
}

// shortAttempt lets a lost answer cost little.
const shortAttempt = 400 * time.Millisecond

// longAttempt lets nothing be sent twice because a busy machine answers late.
const longAttempt = 20 * time.Second

func (b *bed) party(t *testing.T) party { return b.partyAt(t, 0, shortAttempt) }

func (b *bed) partyAt(t *testing.T, server int, attempt time.Duration) party {
	t.Helper()
	proxy := fabrictest.NewProxy(t, b.servers[server].URL())
	return party{Store: openStore(t, connect(t, proxy.URL()), Config{Mesh: "m", AttemptTimeout: attempt}), proxy: proxy}
}

// writes selects the sendings of an object's record.
func (p party) writes(t *testing.T, key ObjectKey) fabrictest.Trigger {
	t.Helper()
	k, err := key.key()
	if err != nil {
		t.Fatal(err)
	}
	return fabrictest.Trigger{Subject: p.location.publish + k}
}

// arm arms a trigger on the sendings of a record, changed by f.
func (p party) arm(t *testing.T, key ObjectKey, f func(*fabrictest.Trigger)) *fabrictest.Armed {
	t.Helper()
	tr := p.writes(t, key)
	f(&tr)
	return p.proxy.Arm(tr)
}

// loseAnswer loses the answer to the next write of a record.
func (p party) loseAnswer(t *testing.T, key ObjectKey) *fabrictest.Armed {
	t.Helper()
	return p.arm(t, key, func(tr *fabrictest.Trigger) { tr.Answer, tr.Action = true, fabrictest.Drop })
}

// firstWriteOnly matches every sending of the write that comes first, and no other write.
func firstWriteOnly() func(fabrictest.Message) bool {
	var (
		mu    sync.Mutex
		first string
	)
	return func(m fabrictest.Message) bool {
		mu.Lock()
		defer mu.Unlock()
		id := m.Headers().Get(nats.MsgIdHdr)
		if first == "" {
			first = id
		}
		return id == first
	}
}

// hears tells when an answer with some text comes from the store.
func (p party) hears(text string) *fabrictest.Armed {
	return p.proxy.Arm(fabrictest.Trigger{
		Dir: fabrictest.ToClient, Times: -1, Action: fabrictest.Signal,
		Match: func(m fabrictest.Message) bool { return strings.Contains(string(m.Payload), text) },
	})
}

// What JetStream answers to a write that it has stored already.
const (
	saysWrongSequence = `"err_code":10071`
	saysKeyInFlight   = `"err_code":10164`
	saysIDInFlight    = `"err_code":10158`
	saysDuplicate     = `"duplicate": true`
)

// objectOf names an object after the test, so that tests can share a bucket.
func objectOf(t *testing.T) ObjectKey {
	name := strings.ReplaceAll(t.Name(), "/", ".")
	return ObjectKey{Kind: KindActor, ID: name[max(0, len(name)-200):]}
}

func mustChange(t *testing.T, ch Change, err error) Change {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	return ch
}

func (p party) mustRead(t *testing.T, key ObjectKey) Entry {
	t.Helper()
	e, err := p.Read(testContext(t), key)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// wantError fails unless err has this kind and acceptance.
func wantError(t *testing.T, err error, kind outcome.Kind, acc outcome.Acceptance) {
	t.Helper()
	var e *outcome.Error
	if !errors.As(err, &e) || e.Kind != kind || e.Acceptance != acc {
		t.Fatalf("got %v, want %v and %v", err, kind, acc)
	}
}

// wantPending fails unless err says Unavailable and Unknown, and returns what is to be resolved.
func wantPending(t *testing.T, err error) *Pending {
	t.Helper()
	wantError(t, err, outcome.Unavailable, outcome.Unknown)
	var p *Pending
	if !errors.As(err, &p) {
		t.Fatalf("no Pending in %v", err)
	}
	return p
}

// result is what an operation in another goroutine returns.
type result struct {
	ch  Change
	err error
}

func async(f func() (Change, error)) <-chan result {
	done := make(chan result, 1)
	go func() {
		ch, err := f()
		done <- result{ch, err}
	}()
	return done
}

func await(t *testing.T, done <-chan result) result {
	t.Helper()
	select {
	case r := <-done:
		return r
	case <-time.After(time.Minute):
		t.Fatal("the operation did not end within a minute")
		return result{}
	}
}

// briefly is a context that ends while an answer is awaited.
func briefly(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 700*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

// room is an object to create.
func room(key ObjectKey, owner Owner, activation json.RawMessage) NewObject {
	class := ClassActor
	if key.Kind == KindSpot {
		class = ClassUserSpot
	}
	return NewObject{Key: key, Class: class, Type: "room", Owner: owner, Activation: activation}
}

func (p party) create(t *testing.T, key ObjectKey) Change {
	t.Helper()
	ch, err := p.Create(testContext(t), room(key, n1, json.RawMessage(`{"input":1}`)))
	return mustChange(t, ch, err)
}

func (p party) ready(t *testing.T, key ObjectKey) Change {
	t.Helper()
	ch, err := p.Ready(testContext(t), p.create(t, key).Entry, n1)
	return mustChange(t, ch, err)
}
