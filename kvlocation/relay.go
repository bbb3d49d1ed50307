package kvlocation

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nuid"

	"natsfabric/internal/wire"
	"natsfabric/outcome"
)

const (
	// MaxRelayTTL bounds how long what a move hands over is kept that nobody clears: within it a part that is sent again
	// is still known to be the same.
	MaxRelayTTL = resolveLimit
	// MaxBulk is the greatest size of a unit's bulk state, in bytes.
	MaxBulk = 1 << 30

	// relaySlots bounds the parts that are under way at once, and slotSize what one of them counts for: 8 MiB together.
	relaySlots = 128
	slotSize   = 64 << 10

	// movePrefix begins the keys of parts that go through a target's consumer, bulkPrefix those that are fetched.
	movePrefix = "to."
	bulkPrefix = "bulk."
)

// Handover names what one move hands over, by the node that it comes from, the process run that it is for, and the
// move's operation ID. Subjects are spelled from it, so that permissions can bind a node to what comes from itself.
type Handover struct {
	// From is the RID of the source. Relay, RelayBulk and ClearRelay take the store's own, whatever stands here.
	From      string
	RID       string
	Lifecycle uint64
	Op        string
}

func (h Handover) String() string { return fmt.Sprintf("move %s from %s to %s", h.Op, h.From, h.RID) }

func (h Handover) check() error {
	if err := wire.CheckName("RID", h.From); err != nil {
		return err
	}
	if err := wire.CheckName("RID", h.RID); err != nil {
		return err
	}
	if h.Lifecycle == 0 {
		return errors.New("lifecycle 0 is no process run")
	}
	return wire.CheckName("operation ID", h.Op)
}

// key is the key of the parts that go through the target's consumer.
func (h Handover) key() string {
	return inboxPrefix(h.RID, h.Lifecycle) + h.From + "." + h.Op
}

// bulkKey is the key of the bulk state.
func (h Handover) bulkKey() string { return bulkPrefix + h.From + "." + h.Op }

// inboxPrefix begins the keys of all parts for a process run.
func inboxPrefix(rid string, lifecycle uint64) string {
	return movePrefix + rid + "." + strconv.FormatUint(lifecycle, 10) + "."
}

// Relaying is one part on its way to the move stream.
type Relaying struct {
	done chan struct{}
	seq  uint64
	err  error
}

// Wait waits until the stream has acknowledged the part, and returns its sequence there. It may be called by any number
// of goroutines, or never. Errors are those of Relay.
func (r *Relaying) Wait(ctx context.Context) (uint64, error) {
	select {
	case <-r.done:
		return r.seq, r.err
	case <-ctx.Done():
		return 0, outcome.FromContext(ctx, "relay", outcome.Unknown, "", "the part is still under way")
	}
}

// Done is closed when Wait would return at once.
func (r *Relaying) Done() <-chan struct{} { return r.done }

func relayed(err error) *Relaying {
	r := &Relaying{done: make(chan struct{}), err: err}
	close(r.done)
	return r
}

// Relay hands one part of a move to the target's consumer. part names it, once per move (a name of 1 to 64 characters);
// ttl (whole seconds, at most MaxRelayTTL) is how long it is kept. Parts are published in the order of the calls; what
// is not acknowledged is sent again, so that a part may be stored behind a later one, and never twice. Relay waits only
// while 128 parts of this store are under way, or 8 MiB. Sending goes on until ctx or ttl ends.
//
// Errors, which Relaying.Wait returns, are *outcome.Error: InvalidOperation, or CapacityExceeded above MaxSpill, with
// NotAccepted; Unavailable with NotAccepted when it was never sent, with Unknown when it may have been stored.
func (s *Store) Relay(ctx context.Context, to Handover, part string, data []byte, ttl time.Duration) *Relaying {
	to.From = s.rid
	err := to.check()
	if err == nil {
		err = wire.CheckName("part", part)
	}
	if err == nil {
		err = checkRelayTTL(ttl)
	}
	if err != nil {
		return relayed(refused("relay", to.String(), err))
	}
	return s.relayPart(ctx, &s.parts, to.key(), to.Op, part, data, ttl)
}

func checkRelayTTL(ttl time.Duration) error {
	if ttl < time.Second || ttl > MaxRelayTTL || ttl%time.Second != 0 {
		return fmt.Errorf("TTL %v is not allowed: it must be whole seconds, 1s to %v", ttl, MaxRelayTTL)
	}
	return nil
}

// relayPart publishes one part and lets a goroutine see to it that it is stored.
func (s *Store) relayPart(ctx context.Context, w *window, key, op, part string, data []byte, ttl time.Duration) *Relaying {
	sd := &sending{write: write{bucket: s.moves, key: key, blind: true, value: data, opID: op + "." + part, part: part, ttl: ttl}}
	if err := s.checkSize(sd); err != nil {
		return relayed(err)
	}
	slots, err := w.enter(ctx, s.ctx, len(data))
	if err != nil {
		return relayed(unavailable("relay", sd.name(), err))
	}
	if !s.begin() {
		w.leave(slots)
		return relayed(unavailable("relay", sd.name(), errStoreClosed))
	}
	r := &Relaying{done: make(chan struct{})}
	c := s.mux.take(false)
	sd.fill(c)
	first := s.nc.PublishMsg(&c.msg)
	ctx, cancel := context.WithTimeout(ctx, ttl)
	go func() {
		defer s.wg.Done()
		defer close(r.done)
		defer w.leave(slots)
		defer cancel()
		defer s.mux.put(c)
		var res writeResult
		res, r.err = s.pursue(ctx, sd, c, true, first)
		r.seq = res.revision
	}()
	return r
}

// ClearRelay removes what a move handed over, by its source: its parts, its bulk state, or both. A marker with a short life
// takes their place. What is not cleared goes by its TTL. Errors are those of Relay.
func (s *Store) ClearRelay(ctx context.Context, to Handover, parts, bulk bool) error {
	to.From = s.rid
	if err := to.check(); err != nil {
		return refused("clear", to.String(), err)
	}
	var keys []string
	if parts {
		keys = append(keys, to.key())
	}
	if bulk {
		keys = append(keys, to.bulkKey())
	}
	var errs []error
	for _, key := range keys {
		_, err := s.write(ctx, write{bucket: s.moves, key: key, blind: true, opID: nuid.Next(), marker: true, ttl: dropTTL})
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// window bounds what is under way at once. Whoever comes first enters first, however much room it needs.
type window struct {
	turn  chan struct{} // held by who waits for room
	slots chan struct{}
}

func newWindow(slots int) window {
	return window{turn: make(chan struct{}, 1), slots: make(chan struct{}, slots)}
}

// enter waits for room for size bytes, and returns what leave is to be given.
func (w *window) enter(ctx, closed context.Context, size int) (slots int, err error) {
	need := min(max(1, (size+slotSize-1)/slotSize), cap(w.slots))
	for i := -1; i < need; i++ {
		to := w.slots
		if i < 0 {
			to = w.turn
		}
		select {
		case to <- struct{}{}:
			continue
		case <-ctx.Done():
			err = ctx.Err()
		case <-closed.Done():
			err = errStoreClosed
		}
		if i >= 0 {
			w.leave(i)
			<-w.turn
		}
		return 0, err
	}
	<-w.turn
	return need, nil
}

func (w *window) leave(slots int) {
	for range slots {
		<-w.slots
	}
}

// chunkName names a chunk as a part.
func chunkName(i int) string { return "b" + strconv.Itoa(i) }

func parseChunk(name string) (int, bool) {
	i, err := strconv.Atoi(strings.TrimPrefix(name, "b"))
	return i, err == nil && chunkName(i) == name
}
