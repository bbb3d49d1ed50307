package supervise

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// modelStore is the shared keys in virtual time: one sequence, compare-and-set, TTLs, replicas that are behind, answers that
// get lost, writes that come true late, and times in which nothing is answered.
type modelStore struct {
	now  func() time.Time
	seq  uint64
	keys map[string][]version // the latest few of each key, the newest last
	// down: nothing is answered until then.
	down time.Time
	// lost is the share of writes whose answer is lost, stale that of reads from a replica that is behind.
	lost, stale float64
	rnd         *rand.Rand
	later       func(after time.Duration, f func())
	// pause is called before each operation; it lets time pass, and may end the caller.
	pause func()
}

type version struct {
	e  kvlocation.SharedEntry
	at time.Time
}

// behind is how far a replica may be, far one that is cut off from the others and does not know.
const (
	behind = 2 * time.Second
	far    = 5 * time.Minute
)

func newModelStore() *modelStore {
	return &modelStore{keys: map[string][]version{}, pause: func() {}, rnd: rand.New(rand.NewPCG(1, 1))}
}

func (s *modelStore) Epoch() uint64 { return 1 }

var errDown = errors.New("the store does not answer")

// op lets time pass and fails while the store is down.
func (s *modelStore) op() error {
	s.pause()
	if s.now().Before(s.down) {
		return outcome.Wrap("model", outcome.Unavailable, outcome.NotAccepted, "store", "", errDown)
	}
	return nil
}

// read returns what a key held at a time.
func (s *modelStore) read(key string, at time.Time) kvlocation.SharedEntry {
	all := s.keys[key]
	for i := len(all) - 1; i >= 0; i-- {
		if v := all[i]; !v.at.After(at) {
			if v.e.Exists() && !v.e.Expires.IsZero() && !at.Before(v.e.Expires) {
				return kvlocation.SharedEntry{Key: key, Revision: v.e.Revision}
			}
			return v.e
		}
	}
	return kvlocation.SharedEntry{Key: key}
}

func (s *modelStore) replica() time.Time {
	if s.rnd.Float64() < s.stale {
		most := behind
		if s.rnd.IntN(10) == 0 {
			most = far
		}
		return s.now().Add(-time.Duration(s.rnd.Int64N(int64(most))))
	}
	return s.now()
}

func (s *modelStore) set(at kvlocation.SharedEntry, value []byte, ttl time.Duration) (kvlocation.SharedEntry, error) {
	now := s.now()
	if have := s.read(at.Key, now); have.Revision != at.Revision {
		return have, outcome.Wrap("model", outcome.InvalidOperation, outcome.NotAccepted, at.Key, "", kvlocation.ErrConflict)
	}
	s.seq++
	e := kvlocation.SharedEntry{Key: at.Key, Value: slices.Clone(value), Revision: s.seq, Time: now}
	if ttl > 0 {
		e.Expires = now.Add(ttl)
	}
	all := append(s.keys[at.Key], version{e, now})
	s.keys[at.Key] = all[max(0, len(all)-60):]
	e.Time, e.Expires = time.Time{}, time.Time{}
	return e, nil
}

var errLost = outcome.Wrap("model", outcome.Unavailable, outcome.Unknown, "store", "", errors.New("the answer was lost"))

func (s *modelStore) write(at kvlocation.SharedEntry, value []byte, ttl time.Duration) (kvlocation.SharedEntry, error) {
	if err := s.op(); err != nil {
		return kvlocation.SharedEntry{}, err
	}
	if s.rnd.Float64() < s.lost {
		switch s.rnd.IntN(3) {
		case 0: // applied
			_, _ = s.set(at, value, ttl)
		case 1: // applied late, or not if somebody wrote meanwhile
			s.later(time.Duration(s.rnd.Int64N(int64(2*time.Minute))), func() { _, _ = s.set(at, value, ttl) })
		}
		s.pause()
		return kvlocation.SharedEntry{}, errLost
	}
	e, err := s.set(at, value, ttl)
	s.pause()
	return e, err
}

func (s *modelStore) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (kvlocation.SharedEntry, error) {
	if err := s.op(); err != nil {
		return kvlocation.SharedEntry{}, err
	}
	if have := s.read(key, s.now()); have.Exists() {
		return have, outcome.New("create", outcome.AlreadyExists, outcome.NotAccepted, key, "")
	} else {
		return s.write(have, value, ttl)
	}
}

func (s *modelStore) Update(_ context.Context, at kvlocation.SharedEntry, value []byte, ttl time.Duration) (kvlocation.SharedEntry, error) {
	return s.write(at, value, ttl)
}

func (s *modelStore) Delete(_ context.Context, at kvlocation.SharedEntry) error {
	_, err := s.write(at, nil, 0)
	return err
}

func (s *modelStore) found(e kvlocation.SharedEntry) (kvlocation.SharedEntry, error) {
	if !e.Exists() {
		return e, outcome.New("read", outcome.NotFound, outcome.NotAccepted, e.Key, "")
	}
	return e, nil
}

func (s *modelStore) Get(_ context.Context, key string) (kvlocation.SharedEntry, error) {
	if err := s.op(); err != nil {
		return kvlocation.SharedEntry{}, err
	}
	return s.found(s.read(key, s.replica()))
}

func (s *modelStore) Confirm(_ context.Context, key string) (kvlocation.SharedEntry, error) {
	if err := s.op(); err != nil {
		return kvlocation.SharedEntry{}, err
	}
	return s.found(s.read(key, s.now()))
}

func (s *modelStore) ConfirmAll(_ context.Context, keys ...string) (all []kvlocation.SharedEntry, err error) {
	if err := s.op(); err != nil {
		return nil, err
	}
	for _, key := range keys {
		all = append(all, s.read(key, s.now()))
	}
	return all, nil
}

func (s *modelStore) List(_ context.Context, prefix string, f func(kvlocation.SharedEntry) bool) error {
	if err := s.op(); err != nil {
		return err
	}
	at := s.replica()
	var found []kvlocation.SharedEntry
	for key := range s.keys {
		if strings.HasPrefix(key, prefix) {
			if e := s.read(key, at); e.Exists() {
				found = append(found, e)
			}
		}
	}
	slices.SortFunc(found, func(a, b kvlocation.SharedEntry) int { return int(a.Revision) - int(b.Revision) })
	for _, e := range found {
		if !f(e) {
			return nil
		}
	}
	return nil
}

func (s *modelStore) Now(context.Context) (time.Time, time.Duration, error) {
	if err := s.op(); err != nil {
		return time.Time{}, 0, err
	}
	bound := time.Duration(s.rnd.Int64N(int64(20 * time.Millisecond)))
	return s.now().Add(time.Duration(s.rnd.Int64N(int64(2*bound)+1)) - bound), bound, nil
}
