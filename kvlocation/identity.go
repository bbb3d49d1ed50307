package kvlocation

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"natsfabric/internal/monotime"
	"natsfabric/outcome"
)

// Every process remembers, per bucket, the epoch that it found when it opened the store and the highest sequence
// that it has seen: the mark. A store that was restored from an older copy, or removed and made again, numbers its
// revisions anew, and a revision of the old numbering must fence nothing in the new one. No read can prove that,
// because any replica and even a deposed leader may be behind. So it is concluded from an own write alone: a write
// that was sent when the mark stood at M is stored above M in the same history, whoever answers.

// ErrRolledBack is in the chain of errors of a process that found that the store lost what it had acknowledged.
var ErrRolledBack = errors.New("the store was rolled back: it lost writes that it had acknowledged; " +
	"stop every node of the mesh, decide which copy of the store is to count, and start the nodes again")

// ErrMadeAgain is in the chain of errors of a process that found that the store's streams were removed and made again.
var ErrMadeAgain = errors.New("the store's streams were removed and made again since this process started: " +
	"stop every node of the mesh and start the nodes again; what the old streams held is lost")

// Audits and what is handed over rest on no revision: an entry is known by its operation ID, and a first message that
// is gone is DataLost. Their streams may be made again, or be new in a mesh that an older version made, while
// processes run.

// life is what this process knows of the present life of one bucket's stream.
type life struct {
	epoch uint64 // as found by Open; not changed afterwards
	mark  atomic.Uint64
}

// seen raises the mark to seq.
func (l *life) seen(seq uint64) {
	for {
		m := l.mark.Load()
		if seq <= m || l.mark.CompareAndSwap(m, seq) {
			return
		}
	}
}

// acknowledged judges the acknowledgement of an own write that was first sent when the mark stood at mark.
func (s *Store) acknowledged(b *bucket, mark, seq uint64) error {
	if seq > mark || !b.fences {
		b.life.seen(seq)
		return nil
	}
	s.refuse(fmt.Errorf("%w (bucket %s: a write was stored at sequence %d, and %d was known before)", ErrRolledBack, b.name, seq, mark))
	return s.refusal()
}

// refuse ends every further write of this process: the store is not the one it was. The first reason stays.
func (s *Store) refuse(why error) {
	if s.identity.refused.CompareAndSwap(nil, &why) {
		close(s.identity.lost)
	}
}

// refusal returns the error that ends every write once the store was found to be another one, else nil.
func (s *Store) refusal() error {
	why := s.identity.refused.Load()
	if why == nil {
		return nil
	}
	return outcome.Wrap("write", outcome.DataLost, outcome.NotAccepted, fmt.Sprintf("store of mesh %q", s.mesh), "", *why)
}

// identity is the store's answer to "still the same one?".
type identity struct {
	refused atomic.Pointer[error]
	lost    chan struct{} // closed with the first refusal
	missing atomic.Pointer[error]
}

// ErrStreamMissing is in the chain of a fault that says that a stream of the mesh was removed.
var ErrStreamMissing = errors.New("the stream does not exist: somebody removed it, and what it held is lost; " +
	"stop every node of the mesh, make it again (fabricnode init) and start the nodes")

// Fault says what is wrong with the store, as far as a lease that was acquired from it has noticed; nil when nothing
// is. It is an *outcome.Error: NotConfigured with ErrStreamMissing once the server has said that a stream that holds
// records or leases does not exist, which is noticed within a renewal interval and ends what waits for it; DataLost with
// ErrRolledBack or ErrMadeAgain, which are for good. Silence is none: the own connection may be what is broken.
func (s *Store) Fault() error {
	if err := s.refusal(); err != nil {
		return err
	}
	return s.missing()
}

// missing returns the fault that a stream is missing, if that is known: waiting for somebody to answer is then vain.
func (s *Store) missing() error {
	if why := s.identity.missing.Load(); why != nil {
		return *why
	}
	return nil
}

// setFault notes how a check ended, and logs the change. It reports whether a stream is missing that was there before.
// A check without an answer changes nothing.
func (s *Store) setFault(err error) bool {
	old := s.identity.missing.Load()
	switch {
	case err == nil && old != nil:
		s.identity.missing.Store(nil)
		s.log.Info("the store is as it should be again", zap.NamedError("was", *old))
	case errors.Is(err, ErrStreamMissing):
		s.identity.missing.Store(&err)
		if old == nil {
			s.log.Error("the store is not as it should be", zap.Error(err))
			return true
		}
	}
	return false
}

// bucketInfo is what the leader of a bucket's stream says about it. It may be deposed and behind.
type bucketInfo struct {
	epoch          uint64
	lastSeq        uint64
	replicas       int
	time           time.Time // the leader's clock
	sent, received monotime.Time
}

// info asks the leader of a bucket's stream.
func (s *Store) info(ctx context.Context, b *bucket) (bi bucketInfo, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.attempt)
	defer cancel()
	bi.sent = monotime.Now()
	m, err := s.nc.RequestWithContext(ctx, s.api+"STREAM.INFO."+b.stream, nil)
	bi.received = monotime.Now()
	if err != nil {
		return bi, unavailable("read", "stream "+b.stream, err)
	}
	var r struct {
		Error  *nats.APIError `json:"error"`
		Config struct {
			Metadata map[string]string `json:"metadata"`
			Replicas int               `json:"num_replicas"`
		} `json:"config"`
		State struct {
			LastSeq uint64 `json:"last_seq"`
		} `json:"state"`
		Time time.Time `json:"ts"`
	}
	if err := json.Unmarshal(m.Data, &r); err != nil {
		return bi, unavailable("read", "stream "+b.stream, err)
	}
	if r.Error != nil && r.Error.ErrorCode == nats.JSErrCodeStreamNotFound {
		return bi, notConfigured("check", "stream "+b.stream, ErrStreamMissing)
	}
	if r.Error != nil {
		return bi, unavailable("read", "stream "+b.stream, r.Error)
	}
	bi.epoch, _ = epochOf(r.Config.Metadata)
	bi.lastSeq, bi.time, bi.replicas = r.State.LastSeq, r.Time, r.Config.Replicas
	return bi, nil
}

// insist asks again while nobody answers, which passes when a stream elects a leader or its server is held up, within ctx
// or else the Store's timeout. It is for who begins; who holds a lease asks with every renewal anyway.
func (s *Store) insist(ctx context.Context, ask func(context.Context) error) error {
	ctx, cancel := s.bound(ctx)
	defer cancel()
	for try := 0; ; try++ {
		err := ask(ctx)
		if outcome.KindOf(err) != outcome.Unavailable || hopeless(err) || forbidden(s.nc) != nil || s.sleep(ctx, backoff(try)) != nil {
			return err
		}
	}
}

// checkIdentity compares identity and last sequence of every bucket with what is known, and feeds clock from the
// answer about the bucket whose leases it is to judge. A difference makes an own write, which decides. The cost
// without one is two requests, whatever the mesh holds.
func (s *Store) checkIdentity(ctx context.Context, clock *Clock) error {
	for _, b := range []*bucket{s.nodes, s.location} {
		bi, err := s.checkBucket(ctx, b)
		if err != nil {
			return err
		}
		if b == s.nodes && clock != nil {
			clock.Observe(bi.sent, bi.received, bi.time)
		}
	}
	return nil
}

func (s *Store) checkBucket(ctx context.Context, b *bucket) (bucketInfo, error) {
	if err := s.refusal(); err != nil {
		return bucketInfo{}, err
	}
	mark := b.life.mark.Load()
	bi, err := s.info(ctx, b)
	if err != nil {
		return bi, err
	}
	if bi.epoch == b.life.epoch && bi.lastSeq >= mark {
		b.life.seen(bi.lastSeq)
		return bi, nil
	}
	// Stale, rolled back or made again. The write refuses by itself when it is stored at or below the mark.
	seq, err := s.probe(ctx, b)
	if err != nil {
		return bi, err
	}
	if bi, err = s.info(ctx, b); err == nil && bi.lastSeq >= seq && bi.epoch != b.life.epoch {
		s.refuse(madeAgain(b, bi.epoch))
		err = s.refusal()
	}
	return bi, err
}

func madeAgain(b *bucket, epoch uint64) error {
	return fmt.Errorf("%w (bucket %s: epoch %d, was %d)", ErrMadeAgain, b.name, epoch, b.life.epoch)
}

// explainRefusal returns why the store is refused. That a write was stored below the mark does not tell a store that
// was rolled back from one that was made again; the epoch, read after it, does.
func (s *Store) explainRefusal(ctx context.Context) error {
	for _, b := range []*bucket{s.nodes, s.location} {
		if bi, err := s.info(ctx, b); err == nil && bi.epoch != b.life.epoch {
			why := madeAgain(b, bi.epoch)
			s.identity.refused.Store(&why)
		}
	}
	return *s.identity.refused.Load()
}
