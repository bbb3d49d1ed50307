package kvlocation

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nuid"

	"natsfabric/outcome"
)

// probeTTL is how long a probe key outlives its last use.
const probeTTL = time.Minute

// confirmer lets the reads of one bucket that need "no older than now" share the writes that tell what now is.
//
// A write serves a read only when the read began before the write was first sent: only then does every change that
// was acknowledged before the read began stand below the write's sequence. So at most one write is under way, and
// those who come meanwhile wait together for the next one.
type confirmer struct {
	mu      sync.Mutex
	next    *probeWrite // not yet sent; new readers join it
	running bool
	closed  bool
}

// close lets nobody begin a probe any more.
func (cf *confirmer) close() {
	cf.mu.Lock()
	defer cf.mu.Unlock()
	cf.closed = true
}

// probeWrite is one write of the probe key and those who wait for it.
type probeWrite struct {
	done    chan struct{} // closed when seq or err is set
	seq     uint64
	err     error
	waiting int                     // under the confirmer's mutex
	cancel  context.CancelCauseFunc // ends the write when nobody waits any more
	ctx     context.Context
}

func (s *Store) probeKey() string { return "probe." + s.rid }

// probe returns the sequence of a write of an own key that was sent after probe was called. It needs the quorum.
func (s *Store) probe(ctx context.Context, b *bucket) (uint64, error) {
	cf := &b.confirm
	cf.mu.Lock()
	if cf.closed {
		cf.mu.Unlock()
		return 0, unavailable("confirm", b.name, errStoreClosed)
	}
	if cf.next == nil {
		p := &probeWrite{done: make(chan struct{})}
		p.ctx, p.cancel = context.WithCancelCause(s.ctx)
		cf.next = p
	}
	p := cf.next
	p.waiting++
	if !cf.running {
		cf.running = true
		s.wg.Add(1)
		go s.runProbes(b)
	}
	cf.mu.Unlock()

	select {
	case <-p.done:
		return p.seq, p.err
	case <-ctx.Done():
		cf.mu.Lock()
		p.waiting--
		last, sent := p.waiting == 0, cf.next != p
		if last {
			p.cancel(ctx.Err())
			if !sent {
				cf.next = nil
			}
		}
		cf.mu.Unlock()
		if last && sent {
			<-p.done // it ends at once, and knows what the store said
			if p.err == nil {
				return p.seq, nil
			}
			return 0, p.err
		}
		return 0, s.unconfirmed(b, ctx.Err())
	}
}

// unconfirmed is the error of a read that has to know what now is while the store takes no write.
func (s *Store) unconfirmed(b *bucket, why error) error {
	return outcome.Wrap("confirm", outcome.Unavailable, outcome.NotAccepted, b.name,
		fmt.Sprintf("the store does not take writes (stream %s)", b.stream), why)
}

// runProbes sends one probe after the other while somebody waits.
func (s *Store) runProbes(b *bucket) {
	defer s.wg.Done()
	cf := &b.confirm
	for {
		cf.mu.Lock()
		p := cf.next
		cf.next = nil
		if p == nil {
			cf.running = false
			cf.mu.Unlock()
			return
		}
		cf.mu.Unlock()
		// No decision is ever based on the key's value, so it needs no expectation: whoever wrote last, a write's
		// own sequence lies above everything acknowledged before.
		res, err := s.write(p.ctx, write{bucket: b, key: s.probeKey(), blind: true, opID: nuid.Next(), ttl: probeTTL})
		var e *outcome.Error
		if errors.As(err, &e) && e.Kind == outcome.Unavailable {
			err = s.unconfirmed(b, e.Cause)
		}
		p.seq, p.err = res.revision, err
		p.cancel(nil)
		close(p.done)
	}
}
