package kvlocation

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"natsfabric/internal/wire"
)

const (
	// inboxHeartbeat is how often the server says that a pull is still waiting; a consumer that says nothing twice is
	// made again. inboxExpiry is how long a pull waits.
	inboxHeartbeat = 500 * time.Millisecond
	inboxExpiry    = 2 * time.Second
	// inboxBytes bounds what is read ahead; one message of the greatest size fits always.
	inboxBytes = 4 << 20
	// inboxInactive is how long the server keeps a consumer that nobody pulls from.
	inboxInactive = 30 * time.Second
	// inboxEnd is how long the client library gets to end the consumer.
	inboxEnd = time.Second
)

// RelayPart is a part of a move that came through the consumer.
type RelayPart struct {
	// From is the RID of the source, as the subject says: permissions can bind it.
	From string
	// Op is the move's operation ID, Part the name of the part.
	Op   string
	Part string
	Data []byte
	// Sequence is that of the part in the move stream.
	Sequence uint64
}

// RelayInbox receives what moves hand to one process run: through one standing ephemeral consumer for all moves, which
// exists before any of them begins (CA-5). It pulls what it has room for, keeps the order, and is made again from where
// it was when the server has lost it, and after a reconnect.
type RelayInbox struct {
	consumer jetstream.Consumer
	run      jetstream.ConsumeContext
	once     sync.Once

	taking sync.RWMutex // held while a part is taken
	over   bool         // nothing is taken any more; guarded by taking
}

// OpenRelay begins to receive the parts for a process run: take is called with one after the other, in the order of the
// stream, and must not block. What was relayed before and is still kept comes first.
//
// Errors are *outcome.Error: InvalidOperation for an RID that is not allowed, Unavailable when the consumer can't be
// made.
func (s *Store) OpenRelay(ctx context.Context, rid string, lifecycle uint64, take func(RelayPart)) (*RelayInbox, error) {
	target := fmt.Sprintf("node %q lifecycle %d", rid, lifecycle)
	if err := wire.CheckName("RID", rid); err != nil {
		return nil, refused("open relay", target, err)
	}
	ctx, cancel := s.bound(ctx)
	defer cancel()
	js, err := Setup{Domain: s.domain}.jetStream(s.nc)
	if err != nil {
		return nil, unavailable("open relay", target, err)
	}
	filter := s.moves.subject + inboxPrefix(rid, lifecycle) + ">"
	b := &RelayInbox{}
	b.consumer, err = patiently(ctx, s.nc, func(ctx context.Context) (jetstream.Consumer, error) {
		return js.OrderedConsumer(ctx, s.moves.stream, jetstream.OrderedConsumerConfig{
			FilterSubjects: []string{filter}, DeliverPolicy: jetstream.DeliverAllPolicy, InactiveThreshold: inboxInactive,
		})
	})
	if err == nil {
		b.run, err = b.consumer.Consume(func(m jetstream.Msg) {
			b.taking.RLock()
			defer b.taking.RUnlock()
			if p, ok := s.relayPartOf(m); ok && !b.over {
				take(p)
			}
		}, jetstream.PullMaxBytes(max(inboxBytes, 2*int(s.nc.MaxPayload()))), jetstream.PullHeartbeat(inboxHeartbeat), jetstream.PullExpiry(inboxExpiry),
			jetstream.ConsumeErrHandler(func(_ jetstream.ConsumeContext, err error) {
				s.log.Debug("the consumer of relayed moves is made again, or waits", zap.Error(err))
			}))
	}
	if err != nil {
		return nil, unavailable("open relay", target, setupError(ctx, s.nc, "make a consumer of the stream "+s.moves.stream, err))
	}
	return b, nil
}

// relayPartOf reads a message of the consumer; a marker is no part.
func (s *Store) relayPartOf(m jetstream.Msg) (RelayPart, bool) {
	p := RelayPart{Part: first(nats.Header(m.Headers()), wire.HeaderPart), Data: m.Data()}
	tokens := strings.Split(strings.TrimPrefix(m.Subject(), s.moves.subject), ".") // to, RID, lifecycle, from, op
	meta, err := m.Metadata()
	if p.Part == "" || len(tokens) != 5 || err != nil {
		return p, false
	}
	p.From, p.Op, p.Sequence = tokens[3], tokens[4], meta.Sequence.Stream
	return p, true
}

// Consumer returns the name of the consumer on the server, which changes when it is made again.
func (b *RelayInbox) Consumer() string {
	if info := b.consumer.CachedInfo(); info != nil {
		return info.Name
	}
	return ""
}

// Close ends the receiving and waits until take has returned for the last time, so take must not call it. The server
// drops the consumer when nobody has pulled from it for half a minute. Close may be called any number of times.
//
// It waits for the client library, too, but no longer than a second: one that is making the consumer anew lets nobody end it, and asks a
// server that does not answer for up to 20 s, or until the connection is closed.
func (b *RelayInbox) Close() {
	b.once.Do(func() {
		b.taking.Lock()
		b.over = true
		b.taking.Unlock()
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			b.run.Stop()
			<-b.run.Closed()
		}()
		select {
		case <-ended:
		case <-time.After(inboxEnd):
		}
	})
}
