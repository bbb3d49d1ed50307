package bench

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"natsfabric/objects"
)

// What a member can do with objects in its own process.
const (
	doLocalRequest = "local-request"
	doLocalSend    = "local-send"
)

// sendWindow is how many messages a sender has under way: it stays below a mailbox, so that nothing is refused.
const sendWindow = 512

// localWork prepares one object for each caller, or one goroutine on the raw side.
func (r *memberRole) localWork(ctx context.Context, k sliceKey) (work, error) {
	data := make([]byte, k.Payload)
	switch {
	case k.Do == doLocalRequest && k.Side == fabricSide:
		ids, err := createActors(ctx, r.node.Actors(), echoType, k, k.Callers, objects.AtNode(r.node.RID()))
		if err != nil {
			return work{}, err
		}
		w := actorWork(r.node.Actors(), ids, data)
		w.pairs = true
		return w, nil
	case k.Do == doLocalRequest && k.Side == rawSide:
		actors, answers := r.plainActors(k.Callers), make([]chan []byte, k.Callers)
		for c := range answers {
			answers[c] = make(chan []byte, 1)
		}
		return work{pairs: true, op: func(c int) error {
			actors[c].mail <- plainMessage{data, answers[c]}
			return sameSize(<-answers[c], data)
		}}, nil
	case k.Do == doLocalSend && k.Side == fabricSide:
		return r.localSends(ctx, k, data)
	case k.Do == doLocalSend && k.Side == rawSide:
		actors := r.plainActors(k.Callers)
		return pairsOfSenders(func(c int) error {
			actors[c].mail <- plainMessage{data: data}
			return nil
		}, func() (n int64) {
			for _, a := range actors {
				n += a.turns.Load()
			}
			return n
		}), nil
	}
	return work{}, unknownWork(k)
}

// localSends has each caller send to an object of its own, as fast as that takes it.
func (r *memberRole) localSends(ctx context.Context, k sliceKey, data []byte) (work, error) {
	actors := r.node.Actors()
	ids, err := createActors(ctx, actors, countType, k, k.Callers, objects.AtNode(r.node.RID()))
	if err != nil {
		return work{}, err
	}
	type sender struct {
		to         *counter
		sent, seen int64
		_          [40]byte // senders share no cache line
	}
	senders := make([]sender, k.Callers)
	for c := range senders {
		senders[c].to = r.counters.get(ids[c])
	}
	return pairsOfSenders(func(c int) error {
		s := &senders[c]
		if s.sent-s.seen >= sendWindow {
			if s.seen = s.to.turns.Load(); s.sent-s.seen >= sendWindow {
				s.seen = s.sent - sendWindow/2
				s.to.await(s.seen)
			}
		}
		s.sent++
		return actors.Send(context.Background(), ids[c], data)
	}, func() (n int64) {
		for c := range senders {
			n += senders[c].to.turns.Load()
		}
		return n
	}), nil
}

// pairsOfSenders is work whose operations end at the receivers, which have taken turns of it so far.
func pairsOfSenders(op func(int) error, turns func() int64) work {
	var base int64
	return work{
		pairs:  true,
		op:     op,
		before: func(context.Context) error { base = turns(); return nil },
		flush:  func(context.Context) error { return nil },
		settle: func(ctx context.Context, sent int64) (int64, time.Time, error) {
			for turns()-base < sent {
				if ctx.Err() != nil {
					return 0, time.Time{}, fmt.Errorf("%d turns of %d: %w", turns()-base, sent, context.Cause(ctx))
				}
				runtime.Gosched()
			}
			return sent, time.Now(), nil
		},
	}
}

// plainActors starts goroutines that end with the role.
func (r *memberRole) plainActors(n int) []*plainActor {
	out := make([]*plainActor, n)
	for i := range out {
		out[i] = newPlainActor()
	}
	r.plain = append(r.plain, out...)
	return out
}
