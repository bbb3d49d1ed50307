package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"natsfabric/internal/wire"
	"natsfabric/kvlocation"
)

// fullOps is the number of writes after which a record remembers as many operation IDs as it ever does, and has
// its final size.
const fullOps = 8

// storeWork prepares one key for each caller, and returns the compare-and-set of a side. Every side writes values of
// the size of the fabric's record.
func (r *callerRole) storeWork(ctx context.Context, k sliceKey) (work, error) {
	if k.Side == fabricSide {
		return r.recordWork(ctx, k)
	}
	value, err := r.recordValue(ctx, k)
	if err != nil {
		return work{}, err
	}
	js, err := jetstream.New(r.raw)
	if err != nil {
		return work{}, err
	}
	bucket := wire.Mesh(r.start.RawMesh).LocationBucket()
	kv, err := js.KeyValue(ctx, bucket)
	if err != nil {
		return work{}, err
	}
	keys, revisions := make([]string, k.Callers), make([]uint64, k.Callers)
	for c := range keys {
		keys[c] = "actor." + r.objectID(k, c)
		if revisions[c], err = kv.Create(ctx, keys[c], value); err != nil {
			return work{}, err
		}
	}
	if k.Side == kvSide {
		return work{op: func(c int) (err error) {
			revisions[c], err = kv.Update(context.Background(), keys[c], value, revisions[c])
			return err
		}}, nil
	}
	return work{op: func(c int) (err error) {
		revisions[c], err = r.compareAndSet("$KV."+bucket+"."+keys[c], value, revisions[c])
		return err
	}}, nil
}

// recordWork changes records through the Location Store's own operation: an adoption, which puts a new lease
// generation into a Ready record by one compare-and-set.
func (r *callerRole) recordWork(ctx context.Context, k sliceKey) (work, error) {
	store := r.node.Store()
	owner := kvlocation.Owner{RID: r.start.RID, Lifecycle: r.node.Lifecycle(), Lease: r.node.Lifecycle()}
	with, err := json.Marshal(strings.Repeat("x", k.Payload))
	if err != nil {
		return work{}, err
	}
	entries, owners := make([]kvlocation.Entry, k.Callers), make([]kvlocation.Owner, k.Callers)
	op := func(ctx context.Context, c int) error {
		owners[c].Lease++
		ch, err := store.Adopt(ctx, entries[c], owners[c])
		entries[c] = ch.Entry
		return err
	}
	for c := range entries {
		owners[c] = owner
		ch, err := store.Create(ctx, kvlocation.NewObject{
			Key: r.objectKey(k, c), Class: kvlocation.ClassActor, Type: "bench", Owner: owner, With: with,
		})
		if err != nil {
			return work{}, err
		}
		if ch, err = store.Ready(ctx, ch.Entry, owner); err != nil {
			return work{}, err
		}
		entries[c] = ch.Entry
		for range fullOps {
			if err := op(ctx, c); err != nil {
				return work{}, err
			}
		}
	}
	return work{op: func(c int) error { return op(context.Background(), c) }}, nil
}

// recordValue reads what a record of this slice looks like, so that the raw sides write as much.
func (r *callerRole) recordValue(ctx context.Context, k sliceKey) ([]byte, error) {
	k.Side = fabricSide
	if _, err := r.work(ctx, k); err != nil { // makes the records
		return nil, err
	}
	js, err := jetstream.New(r.raw)
	if err != nil {
		return nil, err
	}
	kv, err := js.KeyValue(ctx, wire.Mesh(r.start.Mesh).LocationBucket())
	if err != nil {
		return nil, err
	}
	e, err := kv.Get(ctx, "actor."+r.objectID(k, 0))
	if err != nil {
		return nil, err
	}
	return e.Value(), nil
}

func (r *callerRole) objectKey(k sliceKey, caller int) kvlocation.ObjectKey {
	return kvlocation.ObjectKey{Kind: kvlocation.KindActor, ID: r.objectID(k, caller)}
}

// objectID is an ID of this process alone.
func (r *callerRole) objectID(k sliceKey, caller int) string {
	return fmt.Sprintf("%s-%s-%d-%d-%d", r.start.RID, k.Side, k.Payload, k.Callers, caller)
}

// compareAndSet is the same write by hand: one message with the expected revision and an ID of its own.
func (r *callerRole) compareAndSet(subject string, value []byte, revision uint64) (uint64, error) {
	m, err := r.raw.RequestMsg(&nats.Msg{Subject: subject, Data: value, Header: nats.Header{
		nats.ExpectedLastSubjSeqHdr: {strconv.FormatUint(revision, 10)},
		nats.MsgIdHdr:               {nuid.Next()},
	}}, rawTimeout)
	if err != nil {
		return 0, err
	}
	return ackSequence(m.Data)
}

// ackSequence reads N of {"stream":"...","seq":N...} without reflection.
func ackSequence(b []byte) (uint64, error) {
	_, rest, ok := bytes.Cut(b, []byte(`"seq":`))
	if !ok || bytes.Contains(b, []byte(`"error"`)) {
		return 0, errors.New(string(b))
	}
	var n uint64
	for i := 0; i < len(rest) && rest[i] >= '0' && rest[i] <= '9'; i++ {
		n = n*10 + uint64(rest[i]-'0')
	}
	return n, nil
}
