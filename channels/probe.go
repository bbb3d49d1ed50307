package channels

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"natsfabric/internal/monotime"
	"natsfabric/internal/wire"
	"natsfabric/outcome"
)

// The times of peer liveness. They do not depend on the server's pings.
const (
	// probeAfter is how long an attempt stays unanswered before it makes a probe: a slow handler is no dead peer.
	probeAfter = 2 * time.Second
	// probeTry is how long one probe waits before the next is sent.
	probeTry = time.Second
	// suspectTries and notReadyTries are the unanswered probes after which a peer is suspect, and not ready.
	suspectTries  = 2
	notReadyTries = 5
	// goneTries bounds the probes of a peer that is gone but whose lease lives: it may be reconnecting.
	goneTries = 15
	// maxProbing bounds the probing of a peer that neither answers nor leaves: beyond it the server's own pings at
	// their defaults have dropped it.
	maxProbing = 15 * time.Minute
	// helloTimeout bounds the handshake before direct use.
	helloTimeout = 2 * time.Second
	// clockTicks is how often a client that is no node reads the store's clock from a node's hello.
	clockTicks = uint32(30 * time.Second / tickEvery)
	// clockCheckTicks is how often it looks whether it must.
	clockCheckTicks = 4
)

// hello is the handshake and the probe, asked and answered in JSON.
type hello struct {
	Protocol  int    `json:"protocol"`
	RID       string `json:"rid"`
	Lifecycle uint64 `json:"lifecycle"`
	Epoch     uint64 `json:"epoch"`
	// StoreTime is the answerer's reading of the store's clock in Unix nanoseconds, and Bound its greatest error in
	// nanoseconds; both are 0 when it does not know.
	StoreTime int64 `json:"store_time,omitempty"`
	Bound     int64 `json:"bound,omitempty"`
}

var (
	errNobody    = errors.New("nothing listens on the node's inbox")
	errNoAnswer  = errors.New("no answer to a hello")
	errNotOnline = errors.New("this process is not connected")
	errIdentity  = errors.New("another process answered")
)

// answerHello answers a greeting or a probe of this process run.
func (r *Router) answerHello(m *nats.Msg) {
	if m.Reply == "" || !wire.Answerable(m.Reply) {
		return
	}
	h := hello{Protocol: wire.ProtocolVersion, RID: r.cfg.RID, Lifecycle: r.cfg.Lifecycle, Epoch: r.Epoch()}
	if c := r.cfg.Clock; c != nil {
		if now, bound, ok := c.Now(); ok {
			h.StoreTime, h.Bound = now.UnixNano(), int64(bound)
		}
	}
	data, err := json.Marshal(h)
	if err == nil {
		err = r.nc.Publish(m.Reply, data)
	}
	if err != nil {
		r.log.Debug("answering a hello", zap.Error(err))
	}
}

// hello greets a peer once, checks its identity and says in which epoch it answered.
func (r *Router) hello(ctx context.Context, l *link, timeout time.Duration) (hello, *epoch, error) {
	w, e, token, refused := r.waiters.acquire(r.pulse.tick(), "", nil, false)
	if refused != refusedNot {
		return hello{}, nil, errNotOnline
	}
	data, err := json.Marshal(hello{Protocol: wire.ProtocolVersion, RID: r.cfg.RID, Lifecycle: r.cfg.Lifecycle, Epoch: e.n})
	if err != nil {
		return hello{}, nil, err
	}
	r.counters.hellos.Add(1)
	sent := monotime.Now()
	reply := string(wire.AppendReply(nil, e.prefix, wire.ReplyBlob{Token: token}))
	err = r.nc.PublishRequest(r.cfg.Mesh.NodeHello(l.rid, l.lifecycle), reply, data)
	var got answer
	if err == nil {
		t := time.NewTimer(timeout)
		select {
		case got = <-w.done:
		case <-t.C:
			err = errNoAnswer
		case <-ctx.Done():
			err = ctx.Err()
		}
		t.Stop()
	} else {
		err = fmt.Errorf("%w: %w", errNotOnline, err)
	}
	if err != nil {
		if ok, _ := r.waiters.abandon(w); !ok {
			got, err = <-w.done, nil
		}
	}
	r.waiters.release(w)
	switch {
	case err != nil:
		return hello{}, nil, err
	case got.msg == nil:
		return hello{}, nil, errNotOnline
	case len(got.msg.Data) == 0 && got.msg.Header.Get("Status") == "503":
		return hello{}, nil, errNobody
	}
	var h hello
	if err := json.Unmarshal(got.msg.Data, &h); err != nil {
		return hello{}, nil, fmt.Errorf("%w: %w", errIdentity, err)
	}
	if h.Protocol != wire.ProtocolVersion || h.RID != l.rid || h.Lifecycle != l.lifecycle {
		return h, nil, fmt.Errorf("%w: node %q, lifecycle %d, protocol %d, instead of %q, %d, %d",
			errIdentity, h.RID, h.Lifecycle, h.Protocol, l.rid, l.lifecycle, wire.ProtocolVersion)
	}
	if h.StoreTime != 0 && r.cfg.Lifecycle == 0 && r.cfg.Clock != nil {
		// The answerer's error widens the interval in which the reading was taken.
		r.cfg.Clock.Observe(sent.Add(-time.Duration(h.Bound)), monotime.Now().Add(time.Duration(h.Bound)), time.Unix(0, h.StoreTime))
	}
	return h, e, nil
}

// greeting is a handshake under way, shared by all who wait for it.
type greeting struct {
	done chan struct{}
	err  error
}

// greet makes a peer ready for direct use: one handshake serves all who wait (FO-3.2c).
func (r *Router) greet(ctx context.Context, op *operation, l *link) error {
	r.links.mu.Lock()
	g := l.greeting
	if g == nil {
		g = &greeting{done: make(chan struct{})}
		if r.spawn(func() { r.handshake(l, g) }) {
			l.greeting = g
		} else {
			g.err = errNotOnline
			close(g.done)
		}
	}
	r.links.mu.Unlock()
	t := time.NewTimer(max(0, time.Until(op.deadline)))
	defer t.Stop()
	select {
	case <-g.done:
	case <-ctx.Done():
		return outcome.FromContext(ctx, op.call.Op, outcome.NotAccepted, directName(op), errNoAnswer.Error())
	case <-t.C:
		return outcome.Wrap(op.call.Op, outcome.DeadlineExceeded, outcome.NotAccepted, directName(op), errNoAnswer.Error(), context.DeadlineExceeded)
	}
	switch {
	case errors.Is(g.err, errIdentity):
		return outcome.Wrap(op.call.Op, outcome.ProtocolError, outcome.NotAccepted, directName(op), "the handshake failed", g.err)
	case errors.Is(g.err, errNobody):
		return nobody(op)
	case g.err != nil:
		return outcome.Wrap(op.call.Op, outcome.Unavailable, outcome.NotAccepted, directName(op), "", g.err)
	}
	return nil
}

func (r *Router) handshake(l *link, g *greeting) {
	h, e, err := r.hello(r.ctx, l, helloTimeout)
	g.err = err
	r.links.mu.Lock()
	l.greeting = nil
	switch {
	case g.err == nil:
		l.epoch = h.Epoch
		r.answeredLocked(l, e)
	case errors.Is(g.err, errNobody):
		r.links.setLocked(l, PeerGone)
	}
	r.links.mu.Unlock()
	close(g.done)
}

// answered notes that an answer came from a peer in epoch e: it lives. In a later epoch that says nothing.
func (r *Router) answered(l *link, e *epoch) {
	if l == nil || l.is() == PeerReady {
		return
	}
	r.links.mu.Lock()
	defer r.links.mu.Unlock()
	r.answeredLocked(l, e)
}

// answeredLocked returns false when the answer is of an earlier epoch.
func (r *Router) answeredLocked(l *link, e *epoch) bool {
	// The epoch ends before the peers are forgotten, so what is noted here while it lasts is forgotten with it.
	if !r.waiters.present(e) {
		return false
	}
	r.links.setLocked(l, PeerReady)
	return true
}

// noResponders notes a 503. On a peer's own subject it says that the peer is gone, at once (FO-3.2a). For a queue
// group it says that no member is in it just now: a probe of each tells why.
func (r *Router) noResponders(channel string, l *link) {
	if l != nil {
		r.links.set(l, PeerGone)
		return
	}
	r.probeChannel(channel)
}

// maxAbandoned bounds the channels and the peers that are remembered for a probe until the next tick.
const maxAbandoned = 1024

// abandoned are the channels and peers of attempts that were given up without an answer since the last tick. Without
// it a caller whose deadlines are shorter than probeAfter would never find out that a member is frozen.
type abandoned struct {
	mu       sync.Mutex
	channels map[string]bool // with true: a deadline passed; with false: the caller lost its patience
	peers    map[*link]bool
}

func (a *abandoned) note(channel string, l *link, timedOut bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.channels == nil {
		a.channels, a.peers = make(map[string]bool), make(map[*link]bool)
	}
	switch {
	case l != nil && len(a.peers) < maxAbandoned:
		a.peers[l] = true
	case l == nil && len(a.channels) < maxAbandoned:
		a.channels[channel] = a.channels[channel] || timedOut
	}
}

// take returns what was noted since the last call, in maps that the caller owns.
func (a *abandoned) take() (map[string]bool, map[*link]bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	channels, peers := a.channels, a.peers
	a.channels, a.peers = nil, nil
	if channels == nil {
		channels, peers = make(map[string]bool), make(map[*link]bool)
	}
	return channels, peers
}

// probeOverdue probes every peer that may hold an attempt which has been unanswered for long, or was given up so.
func (r *Router) probeOverdue() {
	channels, peers := r.abandoned.take()
	vanished := maps.Clone(channels)
	maps.DeleteFunc(vanished, func(_ string, timedOut bool) bool { return !timedOut })
	r.links.detourAround(vanished)
	r.links.endDetours()
	r.waiters.overdue(r.pulse.tick(), uint32(probeAfter/tickEvery), func(channel string, l *link) {
		if l != nil {
			peers[l] = true
		} else {
			channels[channel] = true
		}
	})
	for l := range peers {
		r.probe(l)
	}
	for channel := range channels {
		r.probeChannel(channel)
	}
}

func (r *Router) probeChannel(channel string) {
	members := r.cfg.Directory.Members().Channel(channel)
	for i := range members {
		if m := &members[i]; share(m, channel) > 0 && r.links.stateOf(m).selectable() {
			r.probe(r.links.of(m))
		}
	}
}

// probe starts to probe a peer, unless that is under way or was begun a moment ago, or nobody keeps its link.
func (r *Router) probe(l *link) {
	r.links.mu.Lock()
	defer r.links.mu.Unlock()
	now := monotime.Now()
	if r.links.all[l.linkKey] != l || l.probing || l.probed != 0 && now.Sub(l.probed) < probeAfter {
		return
	}
	l.probed = now
	l.probing = r.spawn(func() {
		r.probeUntilClear(l)
		r.links.mu.Lock()
		defer r.links.mu.Unlock()
		l.probing = false
	})
}

// probeUntilClear probes a peer until it answers, or has left for certain.
func (r *Router) probeUntilClear(l *link) {
	began := monotime.Now()
	silent, nobody := 0, 0
	for monotime.Since(began) < maxProbing {
		tried := time.Now()
		h, e, err := r.hello(r.ctx, l, probeTry)
		switch {
		case r.ctx.Err() != nil:
			return
		case err == nil:
			r.links.mu.Lock()
			l.epoch = h.Epoch
			clear := r.answeredLocked(l, e)
			r.links.mu.Unlock()
			if clear {
				return
			}
		case errors.Is(err, errNobody):
			r.links.set(l, PeerGone)
			if nobody++; nobody >= goneTries || !r.leaseLives(l) {
				return
			}
		case errors.Is(err, errNotOnline):
			began = monotime.Now() // our own connection is down: that says nothing about the peer
		default:
			silent++
			r.suspect(l, silent)
		}
		pause := probeTry
		if silent > notReadyTries || nobody > 0 {
			pause = 2 * probeTry
		}
		t := time.NewTimer(max(0, pause-time.Since(tried)))
		select {
		case <-t.C:
		case <-r.ctx.Done():
			t.Stop()
			return
		}
	}
	r.links.set(l, PeerGone)
}

// suspect draws the conclusion from unanswered probes.
func (r *Router) suspect(l *link, silent int) {
	switch {
	case silent >= notReadyTries:
		r.links.set(l, PeerNotReady)
	case silent == suspectTries:
		r.links.set(l, PeerSuspect)
		if !r.leaseLives(l) {
			r.links.set(l, PeerNotReady)
		}
	}
}

// leaseLives reads a suspect's lease. What cannot be read proves nothing, so the lease counts as alive then.
func (r *Router) leaseLives(l *link) bool {
	if r.cfg.LeaseOf == nil {
		return true
	}
	ctx, cancel := context.WithTimeout(r.ctx, probeTry)
	defer cancel()
	state, err := r.cfg.LeaseOf(ctx, l.rid)
	return err != nil || state.Live && state.Lifecycle == l.lifecycle
}

// refreshClock lets a client that is no node read the store's clock from some ready node's hello.
func (r *Router) refreshClock() {
	if r.cfg.Lifecycle != 0 || r.cfg.Clock == nil {
		return
	}
	if _, _, ok := r.cfg.Clock.Now(); ok && r.pulse.tick()%clockTicks >= clockCheckTicks {
		return
	}
	all := r.cfg.Directory.Members().All()
	for i := range all {
		if m := &all[i]; m.State.Serves() && r.links.stateOf(m).selectable() {
			r.probe(r.links.of(m))
			return
		}
	}
}
