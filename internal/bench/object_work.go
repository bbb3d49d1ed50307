package bench

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"natsfabric/internal/wire"
	"natsfabric/kvlocation"
	"natsfabric/objects"
)

// What a caller can do with objects.
const (
	doActor    = "actor"
	doHot      = "hot"    // all callers ask one object
	doStream   = "stream" // the same at a steady pace
	doOthers   = "others" // requests to many objects in turn, at a steady pace
	doCreate   = "create"
	doActivate = "activate"
)

// The pace of doStream and doOthers: requests per second of all callers together.
const (
	streamPace = 500
	othersPace = 1000
)

// pace is the time between two operations of one of so many callers.
func pace(callers, perSecond int) time.Duration {
	return time.Duration(callers) * time.Second / time.Duration(perSecond)
}

// createActors makes n Actors and returns their IDs.
func createActors(ctx context.Context, actors *objects.Actors, typ string, k sliceKey, n int, opts ...objects.CallOption) ([]string, error) {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprintf("%s-%d-%d-%d", k.Do, k.Payload, k.Callers, i)
		if _, _, err := actors.GetOrCreate(ctx, typ, ids[i], nil, opts...); err != nil {
			return nil, err
		}
	}
	return ids, nil
}

// actorWork has caller c ask the object ids[c].
func actorWork(actors *objects.Actors, ids []string, data []byte) work {
	return work{op: func(c int) error {
		reply, err := actors.Request(context.Background(), ids[c], data)
		if err != nil {
			return err
		}
		return sameSize(reply.Data, data)
	}}
}

// objectWork returns the caller's operations of a slice on objects.
func (r *callerRole) objectWork(ctx context.Context, k sliceKey) (work, error) {
	data := make([]byte, k.Payload)
	actors := r.node.Actors()
	switch k.Do {
	case doActor:
		ids, err := createActors(ctx, actors, echoType, k, k.Callers)
		return actorWork(actors, ids, data), err
	case doHot, doStream:
		ids, err := createActors(ctx, actors, echoType, k, 1)
		one := actorWork(actors, ids, data)
		w := work{op: func(int) error { return one.op(0) }}
		if k.Do == doStream {
			w.every = pace(k.Callers, streamPace)
		}
		return w, err
	case doOthers:
		return r.othersWork(ctx, k, data)
	case doCreate:
		n := make([]int, k.Callers)
		return work{op: func(c int) error {
			n[c]++
			_, err := actors.Create(context.Background(), echoType, freshID(k, c, n[c]), data)
			return err
		}}, nil
	case doActivate:
		n := make([]int, k.Callers)
		return work{op: func(c int) error {
			n[c]++
			reply, err := r.node.Spots().Request(context.Background(), freshID(k, c, n[c]), data, objects.WithInstance(echoType))
			if err != nil {
				return err
			}
			return sameSize(reply.Data, data)
		}}, nil
	}
	return work{}, unknownWork(k)
}

// othersWork has the callers ask all others in turn, each caller its own share of them.
func (r *callerRole) othersWork(ctx context.Context, k sliceKey, data []byte) (work, error) {
	ids, err := createActors(ctx, r.node.Actors(), echoType, k, k.Objects)
	if err != nil {
		return work{}, err
	}
	next := make([]int, k.Callers)
	for c := range next {
		next[c] = c % len(ids)
	}
	w := actorWork(r.node.Actors(), ids, data)
	ask := w.op
	w.op = func(c int) error {
		i := next[c]
		next[c] = (i + k.Callers) % len(ids)
		return ask(i)
	}
	w.every = pace(k.Callers, othersPace)
	return w, nil
}

// freshID names an object that nobody has named before.
func freshID(k sliceKey, caller, n int) string {
	b := append(make([]byte, 0, 48), k.Side...)
	for _, v := range []int{k.Payload, k.Callers, caller, n} {
		b = strconv.AppendInt(append(b, '-'), int64(v), 10)
	}
	return string(b)
}

// recordPair are the two values that one creation writes.
type recordPair struct{ creating, ready []byte }

// recordedSide names the creation that shows what a creation writes.
const recordedSide = "recorded"

// recordedPair is what a creation of the slice writes, so that the raw sides write as much.
func (r *callerRole) recordedPair(ctx context.Context, k sliceKey) (recordPair, error) {
	k.Side = recordedSide
	p, ok := r.recorded[k]
	if ok {
		return p, nil
	}
	p, err := r.record(ctx, k)
	if r.recorded == nil {
		r.recorded = make(map[sliceKey]recordPair)
	}
	r.recorded[k] = p
	return p, err
}

// record runs one creation and listens to its writes.
func (r *callerRole) record(ctx context.Context, k sliceKey) (p recordPair, err error) {
	w, err := r.objectWork(ctx, k)
	if err != nil {
		return p, err
	}
	kind := kvlocation.KindActor
	if k.Do == doActivate {
		kind = kvlocation.KindSpot
	}
	subject := "$KV." + wire.Mesh(r.start.Mesh).LocationBucket() + "." + string(kind) + "." + freshID(k, 0, 1)
	sub, err := r.ctl.SubscribeSync(subject)
	if err != nil {
		return p, err
	}
	defer func() { err = errors.Join(err, sub.Unsubscribe()) }()
	if err := r.ctl.Flush(); err != nil {
		return p, err
	}
	if err := w.op(0); err != nil {
		return p, err
	}
	for _, value := range []*[]byte{&p.creating, &p.ready} {
		m, err := sub.NextMsg(rawTimeout)
		if err != nil {
			return p, fmt.Errorf("a creation does not write %s twice: %w", subject, err)
		}
		*value = m.Data
	}
	return p, nil
}

// rawPairWork is a creation's two writes by hand. On casSide both change a key of the caller's that exists; on rawSide
// the first makes a key.
func (r *callerRole) rawPairWork(ctx context.Context, k sliceKey) (work, error) {
	p, err := r.recordedPair(ctx, k)
	if err != nil {
		return work{}, err
	}
	prefix := "$KV." + wire.Mesh(r.start.RawMesh).LocationBucket() + "." + k.Do + "."
	if k.Side == rawSide {
		n := make([]int, k.Callers)
		return work{op: func(c int) error {
			n[c]++
			key := prefix + freshID(k, c, n[c])
			revision, err := r.compareAndSet(key, p.creating, 0)
			if err == nil {
				_, err = r.compareAndSet(key, p.ready, revision)
			}
			return err
		}}, nil
	}
	keys, revisions := make([]string, k.Callers), make([]uint64, k.Callers)
	for c := range keys {
		keys[c] = prefix + freshID(k, c, 0)
		if revisions[c], err = r.compareAndSet(keys[c], p.ready, 0); err != nil {
			return work{}, err
		}
	}
	return work{op: func(c int) (err error) {
		for _, value := range [][]byte{p.creating, p.ready} {
			if revisions[c], err = r.compareAndSet(keys[c], value, revisions[c]); err != nil {
				return err
			}
		}
		return nil
	}}, nil
}

// createArgs says which idle objects to make.
type createArgs struct {
	From    int `json:"from"`
	To      int `json:"to"` // the first one that is not made
	Callers int `json:"callers"`
	// Member, if named, gets them all, and they carry so many bytes of state.
	Member string `json:"member,omitempty"`
	State  int    `json:"state,omitempty"`
}

// create makes idle objects, so many at a time.
func (r *callerRole) create(ctx context.Context, a createArgs) error {
	var next atomic.Int64
	next.Store(int64(a.From))
	typ, input, opts := echoType, []byte(nil), []objects.CallOption(nil)
	if a.Member != "" {
		typ, input, opts = carryType, []byte(strconv.Itoa(a.State)), []objects.CallOption{objects.AtNode(a.Member)}
	}
	var wg sync.WaitGroup
	errs := make([]error, a.Callers)
	for c := range a.Callers {
		wg.Go(func() {
			for {
				i := next.Add(1) - 1
				if i >= int64(a.To) || ctx.Err() != nil {
					return
				}
				if _, err := r.node.Actors().Create(ctx, typ, "idle-"+strconv.FormatInt(i, 10), input, opts...); err != nil {
					errs[c] = err
					return
				}
			}
		})
	}
	wg.Wait()
	return errors.Join(append(errs, context.Cause(ctx))...)
}
