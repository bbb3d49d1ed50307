package kvlocation

import (
	"context"
	"errors"
	"fmt"
	"time"

	"natsfabric/internal/monotime"
	"natsfabric/internal/wire"
	"natsfabric/outcome"
)

const (
	// chunkSize is how much of a bulk state one message carries.
	chunkSize = 256 << 10
	// bulkSlots bounds what one RelayBulk has under way: 1 MiB.
	bulkSlots = 1 << 20 / slotSize
	// fetchPatience is how long replicas may be behind when chunks are fetched.
	fetchPatience = 10 * time.Second
)

// RelayBulk writes a unit's bulk state beside the parts that go through the target's consumer, and returns where it is
// once all of it is acknowledged. At most 1 MiB of it is under way at once. Errors are those of Relay; CapacityExceeded
// above MaxBulk.
func (s *Store) RelayBulk(ctx context.Context, to Handover, data []byte, ttl time.Duration) (BulkRef, error) {
	to.From = s.rid
	err := to.check()
	if err == nil {
		err = checkRelayTTL(ttl)
	}
	if err != nil {
		return BulkRef{}, refused("relay", to.String(), err)
	}
	if len(data) > MaxBulk {
		return BulkRef{}, outcome.New("relay", outcome.CapacityExceeded, outcome.NotAccepted, to.String(),
			fmt.Sprintf("the state has %d bytes, at most %d are allowed", len(data), MaxBulk))
	}
	ctx, cancel := context.WithCancel(ctx) // the first error ends the rest
	defer cancel()
	ref := BulkRef{Chunk: min(chunkSize, s.MaxSpill()), Size: len(data)}
	ref.Chunks = max(1, (len(data)+ref.Chunk-1)/ref.Chunk)
	w := newWindow(bulkSlots)
	under := make([]*Relaying, 0, ref.Chunks)
	for i := range ref.Chunks {
		chunk := data[min(i*ref.Chunk, len(data)):min((i+1)*ref.Chunk, len(data))]
		r := s.relayPart(ctx, &w, to.bulkKey(), to.Op, chunkName(i), chunk, ttl)
		under = append(under, r)
		select {
		case <-r.done: // refused
			if r.err != nil {
				return BulkRef{}, r.err
			}
		default:
		}
	}
	for _, r := range under {
		seq, err := r.Wait(ctx)
		if err != nil {
			return BulkRef{}, err
		}
		ref.Last = max(ref.Last, seq)
		if ref.First == 0 || seq < ref.First {
			ref.First = seq
		}
	}
	return ref, nil
}

// FetchBulk reads a unit's bulk state, all of it; whether it is what was written is for the caller's checksum to say. Any
// replica may answer, at most 1 MiB at a time.
//
// Errors are *outcome.Error with NotAccepted: InvalidOperation for a reference that is none, DataLost when chunks are
// gone (or no replica has them for 10 s), Unavailable when the store does not answer.
func (s *Store) FetchBulk(ctx context.Context, from Handover, ref BulkRef) ([]byte, error) {
	err := from.check()
	if err == nil {
		err = ref.check()
	}
	if err != nil {
		return nil, refused("fetch", from.String(), err)
	}
	ctx, cancel := s.bound(ctx)
	defer cancel()
	var (
		data    = make([]byte, ref.Size)
		have    = make([]bool, ref.Chunks)
		missing = ref.Chunks
		at      = ref.First
		begun   = monotime.Now()
		lost    = func(why string) error {
			return outcome.New("fetch", outcome.DataLost, outcome.NotAccepted, from.String(), fmt.Sprintf("%d of %d chunks are missing: %s", missing, ref.Chunks, why))
		}
	)
	for try := 0; missing > 0; {
		msgs, more, err := s.readBatch(ctx, s.relay, s.relay.subject+from.bulkKey(), at)
		if err != nil {
			return nil, err
		}
		for _, m := range msgs {
			at = m.revision + 1
			i, ok := parseChunk(first(m.header, wire.HeaderPart))
			switch {
			case m.deleted():
				return nil, lost("they were cleared")
			case !ok || i >= ref.Chunks || have[i]:
				continue
			case copy(data[i*ref.Chunk:], m.value) != len(m.value) || len(m.value) != min(ref.Chunk, ref.Size-i*ref.Chunk):
				return nil, lost(fmt.Sprintf("chunk %d has %d bytes", i, len(m.value)))
			}
			have[i] = true
			missing--
		}
		switch {
		case missing == 0 || more:
		case at > ref.Last:
			return nil, lost("the rest is gone")
		case monotime.Since(begun) > fetchPatience:
			return nil, lost("no replica has the rest")
		default: // by a replica that is behind
			if err := s.sleep(ctx, backoff(try)); err != nil {
				return nil, unavailable("fetch", from.String(), errors.Join(err, errors.New("the replica that answered is behind")))
			}
			try++
		}
	}
	return data, nil
}
