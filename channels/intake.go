package channels

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"natsfabric/internal/wire"
	"natsfabric/outcome"
)

const (
	// intakePending and intakePendingBytes bound what the client library holds for one subscription. The callback
	// never blocks on a handler, so more than a few waiting messages mean that this process does not get the CPU.
	intakePending      = 65536
	intakePendingBytes = 64 << 20
)

// intake is one subscription through which requests come in.
type intake struct {
	r    *Router
	take taker
	sub  *nats.Subscription

	// seen counts the messages that the callback has begun with, and clear is the freeze that the intake has got
	// over. Both belong to the callback.
	seen  uint64
	clear uint64
	// mark says up to which message the freeze of that generation reaches.
	mark atomic.Pointer[thawMark]

	// left is one more than the number of reconnects at the moment at which the intake began to leave; 0 before.
	left atomic.Uint64

	closed chan struct{} // closed when the subscription has handled its last message
}

// leave drains the subscription: the server sends it no more, and what it was given is handled. nats.go's Drain relies
// on one connection: when the connection is replaced before the draining has ended, the subscription is announced to
// the new server and then forgotten here, and what that server sends to it vanishes. So a subscription that leaves
// without a connection is given up at once: what it holds cannot be answered any more.
func (in *intake) leave() error {
	nc := in.r.nc
	if !nc.IsConnected() {
		return in.sub.Unsubscribe()
	}
	in.left.Store(nc.Stats().Reconnects + 1)
	return in.sub.Drain()
}

// abandon gives up an intake whose connection was lost while it left.
func (in *intake) abandon() {
	if in.left.Swap(0) != 0 {
		in.r.unsubscribe(in.sub)
	}
}

// ended is called when the subscription has handled its last message.
func (in *intake) ended() {
	in.r.intakes.remove(in)
	close(in.closed)
	if left := in.left.Load(); left != 0 && left != in.r.nc.Stats().Reconnects+1 && !in.r.nc.IsClosed() {
		in.r.replaceConnection("a subscription was draining while the connection was replaced")
	}
}

// isClosed reports whether the subscription has handled its last message.
func (in *intake) isClosed() bool {
	select {
	case <-in.closed:
		return true
	default:
		return false
	}
}

// taker is what an intake's messages are for: it takes one into a queue or refuses it, and does not block.
type taker func(*intake, *nats.Msg)

type thawMark struct{ gap, upTo uint64 }

// intakes is the set of open intakes.
type intakes struct {
	mu  sync.Mutex
	all map[*intake]bool
}

// subscribe opens an intake. group is empty for the subjects of this process run. Under the lock, so that no freeze is marked between
// the reading of its number and the entry among those that are marked: the intake would never get over it.
func (r *Router) subscribe(subject, group string, take taker) (*intake, error) {
	r.intakes.mu.Lock()
	defer r.intakes.mu.Unlock()
	in := &intake{r: r, take: take, clear: r.pulse.gaps.Load(), closed: make(chan struct{})}
	var err error
	if group == "" {
		in.sub, err = r.nc.Subscribe(subject, in.message)
	} else {
		in.sub, err = r.nc.QueueSubscribe(subject, group, in.message)
	}
	if err != nil {
		return nil, err
	}
	in.sub.SetClosedHandler(func(string) { in.ended() })
	if err := in.sub.SetPendingLimits(intakePending, intakePendingBytes); err != nil {
		return nil, err
	}
	if r.intakes.all == nil {
		r.intakes.all = make(map[*intake]bool)
	}
	r.intakes.all[in] = true
	return in, nil
}

func (s *intakes) remove(in *intake) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, in)
}

// abandonLeaving gives up every intake that was leaving on a connection that is lost now.
func (s *intakes) abandonLeaving() {
	s.mu.Lock()
	all := slices.Collect(maps.Keys(s.all))
	s.mu.Unlock()
	for _, in := range all {
		in.abandon()
	}
}

func (s *intakes) has(sub *nats.Subscription) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for in := range s.all {
		if in.sub == sub {
			return true
		}
	}
	return false
}

// mark tells every intake that what it has received until now may be from before the end of freeze number gap.
func (s *intakes) mark(gap uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for in := range s.all {
		in.mark.Store(&thawMark{gap: gap, upTo: in.received()})
	}
}

// received is the number of messages that the subscription has been given, handled or not. nats.go counts a message
// that is being handled in both numbers, so it may be one too many: one more refusal, not one too few.
func (in *intake) received() uint64 {
	for {
		before, err1 := in.sub.Delivered()
		pending, _, err2 := in.sub.Pending()
		after, err3 := in.sub.Delivered()
		switch {
		case err1 != nil || err2 != nil || err3 != nil:
			return 0 // closed: it will see no message any more
		case before == after:
			return uint64(before) + uint64(pending)
		}
	}
}

// suspicious reports whether the message that the callback has just begun with may have been sent before the end of a
// freeze.
func (in *intake) suspicious(now time.Time) bool {
	if b := in.r.pulse.frozen(now); b != nil {
		in.r.noticeFreeze(b)
	}
	gap := in.r.pulse.gaps.Load()
	if gap == in.clear {
		return false
	}
	if m := in.mark.Load(); m != nil && m.gap == gap && in.seen > m.upTo {
		in.clear = gap
		return false
	}
	return true
}

// why is the reason of a refusal.
type why uint8

const (
	whyNot why = iota
	whyFull
	whyTooLarge
	whyDraining
	whyNotServing
	whyGate
	whyPast
	whyThawing
	whyNamed
	whyUnknown
	whyCount
)

// message is the subscription's callback. What wants its answer where none may go is not taken, and nobody is told.
func (in *intake) message(m *nats.Msg) {
	in.seen++
	if !wire.Answerable(m.Reply) {
		in.r.log.Debug("a message whose reply subject is no inbox", zap.String("subject", m.Subject), zap.String("reply", m.Reply))
		return
	}
	in.take(in, m)
}

// screen says why a message must not even be offered to whom it is for.
func (in *intake) screen(blob *wire.ReplyBlob) why {
	r := in.r
	switch {
	case !r.serving.Load():
		return whyNotServing
	case r.cfg.Gate != nil && r.cfg.Gate.Admit() != nil:
		return whyGate
	}
	now := time.Now()
	if !blob.Deadline.IsZero() {
		if r.pulse.past(now, blob.Deadline) {
			return whyPast
		}
	} else if in.suspicious(now) {
		return whyThawing
	}
	return whyNot
}

// takeDirect takes a message on the node's own channel subjects, where the subject names the channel.
func (r *Router) takeDirect(in *intake, m *nats.Msg) {
	s := (*r.servers.Load())[m.Subject[strings.LastIndexByte(m.Subject, '.')+1:]]
	if s == nil {
		r.counters.unknownChannel.Add(1)
		r.refuse(m, r.noServer())
		return
	}
	s.receive(in, m, true)
}

// take takes a message of the channel's queue group.
func (s *Server) take(in *intake, m *nats.Msg) { s.receive(in, m, false) }

func (s *Server) receive(in *intake, m *nats.Msg, direct bool) {
	s.stats.received.Add(1)
	blob, _ := wire.ParseReply(m.Reply)
	req := &Request{channel: s.spec.Name, msg: m, blob: blob, direct: direct}
	if because := s.admit(in, req); because != whyNot {
		s.stats.refused[because].Add(1)
		s.r.refuse(m, s.refusals[because])
	}
}

// admit takes a request into the queue, or says why not.
func (s *Server) admit(in *intake, req *Request) why {
	r, m := s.r, req.msg
	if len(m.Header) > 0 && names(m.Header.Get(wire.HeaderRefused), r.cfg.RID) {
		return whyNamed
	}
	if because := in.screen(&req.blob); because != whyNot {
		return because
	}
	if req.blob.Flags&wire.FlagNotice == 0 {
		return s.queue.offer(req)
	}
	// The place in the queue is taken before the notice goes out, and the request runs only after it, so that the
	// notice is true and comes before the reply.
	if because := s.queue.reserve(req); because != whyNot {
		return because
	}
	r.notice(m.Reply)
	s.stats.notices.Add(1)
	s.queue.commit(req)
	return whyNot
}

// notice sends the acceptance notice of what was asked with the given reply subject.
func (r *Router) notice(replyTo string) {
	if err := r.nc.Publish(replyTo+wire.NoticeSuffix, r.ridBytes); err != nil {
		r.log.Debug("sending an acceptance notice", zap.Error(err))
	}
}

// names reports whether a comma-separated list holds rid.
func names(list, rid string) bool {
	for list != "" {
		var one string
		one, list, _ = strings.Cut(list, ",")
		if one == rid {
			return true
		}
	}
	return false
}

// refuse answers a request that was not accepted.
func (r *Router) refuse(m *nats.Msg, h nats.Header) {
	if m.Reply == "" {
		return
	}
	if err := r.nc.PublishMsg(&nats.Msg{Subject: m.Reply, Header: h}); err != nil {
		r.log.Debug("sending a refusal", zap.Error(err))
	}
}

// refusal makes the headers of a refusal; they are shared by all that are sent, and not changed.
func (r *Router) refusal(kind outcome.Kind, detail string) nats.Header {
	h := nats.Header(outcome.New("", kind, outcome.NotAccepted, "", detail).Headers(outcome.NotAccepted))
	h[wire.HeaderFrom] = []string{r.cfg.RID}
	return h
}

// noServer refuses a direct request for a channel that is not served here, or no longer.
func (r *Router) noServer() nats.Header {
	if !r.serving.Load() {
		return r.refusal(outcome.Unavailable, "not serving at node "+r.cfg.RID)
	}
	return r.refusal(outcome.NotFound, "node "+r.cfg.RID+" does not serve the channel")
}

// makeRefusals makes the refusals that are the same for every server and service.
func (r *Router) makeRefusals() {
	at := " at node " + r.cfg.RID
	r.refusals = [whyCount]nats.Header{
		whyDraining:   r.refusal(outcome.Unavailable, "shutting down"+at),
		whyNotServing: r.refusal(outcome.Unavailable, "not serving"+at),
		whyGate:       r.refusal(outcome.Unavailable, "no valid lease"+at),
		whyPast:       r.refusal(outcome.DeadlineExceeded, "the deadline had passed when it arrived"+at),
		whyThawing:    r.refusal(outcome.Unavailable, "frozen until a moment ago, and the request has no deadline"+at),
		whyNamed:      r.refusal(outcome.Unavailable, "refused before"+at),
	}
}

// makeRefusals makes the refusals of one server. Those of kind Unavailable make the caller select again.
func (s *Server) makeRefusals() {
	at := " at node " + s.r.cfg.RID
	s.refusals = s.r.refusals
	s.refusals[whyFull] = s.r.refusal(outcome.Unavailable, "the queue is full"+at)
	s.refusals[whyTooLarge] = s.r.refusal(outcome.CapacityExceeded, "the request is larger than the whole queue may be ("+strconv.Itoa(s.spec.QueueBytes)+" bytes)"+at)
	s.refusals[whyDraining] = s.r.refusal(outcome.Unavailable, "the channel is draining"+at)
}
