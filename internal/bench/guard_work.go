package bench

import (
	"context"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"natsfabric/fence"
)

// What a caller can write through a guard: a key of a bucket, and a message of a stream.
const (
	doGuardKey    = "guard key"
	doGuardStream = "guard stream"
)

// guardWork has each caller write to a key, or a subject of a stream, of its own, with a guard or without.
func (r *callerRole) guardWork(ctx context.Context, k sliceKey) (work, error) {
	js, err := jetstream.New(r.raw)
	if err != nil {
		return work{}, err
	}
	data := make([]byte, k.Payload)
	guarded := fence.WithToken(context.Background(), fence.Token{Source: "bench/leader/one", Epoch: 1, Generation: 1})
	name := func(c int) string { return fmt.Sprintf("%s-%d-%d-%d", k.Side, k.Payload, k.Callers, c) }
	if k.Do == doGuardStream {
		const stream = "BENCH_GUARD"
		if _, err := js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{Name: stream, Subjects: []string{"bench.guard.>"}, Storage: jetstream.FileStorage, AllowDirect: true}); err != nil {
			return work{}, err
		}
		if k.Side == rawSide {
			return work{op: func(c int) error {
				_, err := js.PublishMsg(context.Background(), &nats.Msg{Subject: "bench.guard." + name(c), Data: data}, jetstream.WithMsgID(nuid.Next()))
				return err
			}}, nil
		}
		s, err := fence.OpenStream(ctx, js, stream)
		if err != nil {
			return work{}, err
		}
		guards := make([]*fence.StreamGuard, k.Callers)
		for c := range guards {
			guards[c] = s.Guard("bench.guard.record."+name(c), "")
		}
		return work{op: func(c int) error {
			_, err := guards[c].Publish(guarded, &nats.Msg{Subject: "bench.guard." + name(c), Data: data})
			return err
		}}, nil
	}
	const bucket = "bench_guard"
	kv, err := js.CreateOrUpdateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: bucket, Storage: jetstream.FileStorage})
	if err != nil {
		return work{}, err
	}
	if k.Side == rawSide {
		revisions := make([]uint64, k.Callers)
		for c := range revisions {
			if revisions[c], err = kv.Create(ctx, name(c), data); err != nil {
				return work{}, err
			}
		}
		return work{op: func(c int) (err error) {
			revisions[c], err = kv.Update(context.Background(), name(c), data, revisions[c])
			return err
		}}, nil
	}
	b, err := fence.OpenBucket(ctx, js, bucket)
	if err != nil {
		return work{}, err
	}
	guards := make([]*fence.KVGuard, k.Callers)
	for c := range guards {
		if guards[c], err = b.Guard(name(c), ""); err != nil {
			return work{}, err
		}
	}
	return work{op: func(c int) error {
		_, err := guards[c].Put(guarded, data)
		return err
	}}, nil
}

func runGuard(ctx context.Context, r *run) error {
	_, s, err := r.server(ctx, benchMesh, rawMesh)
	if err != nil {
		return err
	}
	if _, err := r.mover(ctx, s, 0); err != nil {
		return err
	}
	caller, c, err := r.caller(ctx, s, "caller", 1)
	if err != nil {
		return err
	}
	common := fmt.Sprintf("file storage, 1 replica, a key or a subject for each caller; one caller process, one connection: %s", c.Connection)
	r.setup("guard-key", s, common, "fence.KVGuard.Put with a token in its context", "jetstream.KeyValue.Update")
	r.setup("guard-stream", s, common, "fence.StreamGuard.Publish with a token in its context", "jetstream.JetStream.PublishMsg with a fresh message ID")
	if err := r.slices(ctx, caller, doGuardKey, against{name: "guard-key", raw: rawSide}); err != nil {
		return err
	}
	return r.slices(ctx, caller, doGuardStream, against{name: "guard-stream", raw: rawSide})
}
