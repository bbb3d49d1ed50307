package objects

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"natsfabric/channels"
	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// long bounds every wait of a test that goes as it should.
const long = 60 * time.Second

// host is what stands around a runtime in its tests: a lease that the test turns on and off, and records that can
// always be written unless the test says otherwise.
type host struct {
	rt *runtime

	lapsed   atomic.Bool
	lease    atomic.Uint64
	admitted atomic.Int64

	mu      sync.Mutex
	onAdopt func(ctx context.Context, o *object) error
	onClose func(ctx context.Context, o *object, why CloseReason) error
	adopted map[string]int
	closed  map[string]CloseReason
}

var errNoLease = outcome.New("admit", outcome.Unavailable, outcome.NotAccepted, "node", "the lease has lapsed")

func (h *host) admit() error {
	h.admitted.Add(1)
	if h.lapsed.Load() {
		return errNoLease
	}
	return nil
}

func (h *host) leaseGeneration() uint64 { return h.lease.Load() }

func (h *host) adopt(ctx context.Context, o *object) error {
	h.mu.Lock()
	f := h.onAdopt
	h.adopted[o.id]++
	h.mu.Unlock()
	if f != nil {
		return f(ctx, o)
	}
	return nil
}

func (h *host) closeObject(ctx context.Context, o *object, why CloseReason) error {
	h.mu.Lock()
	f := h.onClose
	h.mu.Unlock()
	if f != nil {
		if err := f(ctx, o, why); err != nil {
			return err
		}
	}
	if err := o.callClosing(ctx, why); err != nil {
		return err
	}
	h.mu.Lock()
	h.closed[o.id] = why
	h.mu.Unlock()
	h.rt.drop(o, errClosed(o))
	return nil
}

func errClosed(o *object) *outcome.Error {
	return outcome.New("close", outcome.Unavailable, outcome.Accepted, o.target(), "the object was closed")
}

func (h *host) abortHeld(from origin, err error) { from.Fail(err) }

func (h *host) endMembers(*object, error, error)  {}
func (h *host) endSpotLater(*object, CloseReason) {}

func (h *host) admitMarked(*object, *envelope) error   { return nil }
func (h *host) endCompanion(*object, any, CloseReason) {}
func (h *host) selfMembers(*object) []ActorRef         { return nil }
func (h *host) selfSpot(*object) (SpotRef, bool)       { return SpotRef{}, false }
func (h *host) Actors() *Actors                        { return nil }
func (h *host) Spots() *Spots                          { return nil }
func (h *host) channel(string) *channels.Channel       { return nil }
func (h *host) selfBroadcast(context.Context, *object, []byte) (BroadcastResult, error) {
	return BroadcastResult{}, nil
}

// lapse and regain are what the fabric does at the events of the lease.
func (h *host) lapse() {
	h.lapsed.Store(true)
	h.rt.lapse()
}

func (h *host) regain() {
	h.lease.Add(1)
	h.lapsed.Store(false)
	h.rt.regained()
}

// closedWhy returns why an object was closed; ok is false when it was not.
func (h *host) closedWhy(id string) (why CloseReason, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	why, ok = h.closed[id]
	return why, ok
}

func (h *host) adoptions(id string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.adopted[id]
}

// newHost returns a runtime with the given types, which are Actors unless they say otherwise. It is stopped at the end.
func newHost(tb testing.TB, maxTurns int, types ...Type) *host {
	tb.Helper()
	h := &host{adopted: map[string]int{}, closed: map[string]CloseReason{}}
	h.lease.Store(100)
	for i := range types {
		if types[i].Class == "" {
			types[i].Class = kvlocation.ClassActor
		}
		if types[i].New == nil {
			types[i].New = func(context.Context, *Self, []byte) (Object, error) { return nil, errors.New("not used here") }
		}
	}
	rt, err := newRuntime(runtimeConfig{mesh: "m", rid: "n1", lifecycle: 7, epoch: 3, types: types, capacity: 10_000_000,
		maxTurns: maxTurns, defaultTimeout: long, maxTimeout: 8 * time.Minute}, h)
	if err != nil {
		tb.Fatal(err)
	}
	h.rt = rt
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), long)
		defer cancel()
		if err := rt.stop(ctx); err != nil {
			tb.Errorf("stop: %v", err)
		}
	})
	return h
}

// creating returns an object of the first type that is being created.
func (h *host) creating(tb testing.TB, id string) *object {
	tb.Helper()
	reg := h.rt.order[0]
	if err := h.rt.reserve(reg); err != nil {
		tb.Fatal(err)
	}
	o := h.rt.newObject(reg, id)
	if h.rt.insert(o) != nil {
		tb.Fatalf("%s is there already", id)
	}
	return o
}

// object returns an open object of the first type.
func (h *host) object(tb testing.TB, id string, inst Object) *object {
	tb.Helper()
	o := h.creating(tb, id)
	o.open(inst, 11, 1, h.lease.Load(), nil)
	return o
}

func (h *host) request(ctx context.Context, o *object, data string) (string, error) {
	r, err := h.rt.request(ctx, o, opRequest, []byte(data), nil, false)
	return string(r.Data), err
}

// late makes a request that waits at the object when its time, at first d, ends, and returns its error. One whose time was
// over before it was offered is made again, with more.
func (h *host) late(ctx context.Context, o *object, data string, d time.Duration) error {
	for ; ; d *= 2 {
		brief, cancel := context.WithTimeout(ctx, d)
		_, err := h.request(brief, o, data)
		cancel()
		if !errors.Is(err, outcome.NotAccepted) || d > long {
			return err
		}
	}
}

func (h *host) send(o *object, data string) error {
	_, err := h.rt.request(context.Background(), o, opSend, []byte(data), nil, true)
	return err
}

// counts returns the counters of the first type.
func (h *host) counts() TypeSnapshot { return h.rt.snapshot().Types[0] }

// inbound is a message from another process.
type inbound struct {
	data     []byte
	header   nats.Header
	oneWay   bool
	deadline time.Time
	accepted atomic.Bool
	replied  chan Reply
	failed   chan error
}

func newInbound(data string) *inbound {
	return &inbound{data: []byte(data), replied: make(chan Reply, 2), failed: make(chan error, 2)}
}

func (m *inbound) Data() []byte        { return m.data }
func (m *inbound) Header() nats.Header { return m.header }
func (m *inbound) OneWay() bool        { return m.oneWay }
func (m *inbound) Sender() (channels.Sender, bool) {
	return channels.Sender{RID: "n2", Lifecycle: 9}, true
}
func (m *inbound) LocalDeadline() (time.Time, bool) {
	return m.deadline, !m.deadline.IsZero()
}
func (m *inbound) Past(now time.Time) bool          { return !m.deadline.IsZero() && now.After(m.deadline) }
func (m *inbound) Accept()                          { m.accepted.Store(true) }
func (m *inbound) Reply(data []byte, h nats.Header) { m.replied <- Reply{Data: data, Header: h} }
func (m *inbound) Fail(err error)                   { m.failed <- err }

// within receives from c, or fails the test.
func within[T any](tb testing.TB, c <-chan T, what string) (v T) {
	tb.Helper()
	select {
	case v = <-c:
	case <-time.After(long):
		tb.Fatalf("%s did not come", what)
	}
	return v
}

func wantOutcome(tb testing.TB, err error, kind outcome.Kind, acc outcome.Acceptance) {
	tb.Helper()
	if outcome.KindOf(err) != kind || outcome.AcceptanceOf(err) != acc {
		tb.Fatalf("got %v, want %v and %v", err, kind, acc)
	}
}

// eventually waits until cond says nothing against it.
func eventually(tb testing.TB, cond func() error) {
	tb.Helper()
	deadline := time.Now().Add(long)
	err := cond()
	if err == nil {
		return
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for ; err != nil; err = cond() {
		if time.Now().After(deadline) {
			tb.Fatal(err)
		}
		<-tick.C
	}
}

// waitRunning waits until a turn of o runs.
func waitRunning(tb testing.TB, o *object) {
	tb.Helper()
	eventually(tb, func() error {
		if _, ok := o.running(); !ok {
			return errors.New("no turn runs")
		}
		return nil
	})
}
