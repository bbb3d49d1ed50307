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
	chunkSize = 128 << 10
	// bulkSlots bounds what one RelayBulk has under way, and fetchBytes what FetchBulk asks for at once: 1 MiB.
	bulkSlots  = 1 << 20 / slotSize
	fetchBytes = 1 << 20
	// fetchPatience is how long the next chunk may take to come.
	fetchPatience = 10 * time.Second
)

// BulkRef says how a unit's bulk state is cut into chunks. Its JSON form travels from source to target, while the chunks are still
// being written.
type BulkRef struct {
	// Chunks is their number, Chunk the size of each but the last, in bytes; Size that of all.
	Chunks int `json:"chunks"`
	Chunk  int `json:"chunk"`
	Size   int `json:"size"`
}

func (r BulkRef) check() error {
	if r.Chunks < 1 || r.Chunk < 1 || r.Size < 0 || r.Size > MaxBulk || r.Chunks != max(1, (r.Size+r.Chunk-1)/r.Chunk) {
		return fmt.Errorf("%+v is nothing that BulkOf returned", r)
	}
	return nil
}

// BulkOf says how RelayBulk cuts a state of so many bytes.
func (s *Store) BulkOf(size int) BulkRef {
	ref := BulkRef{Chunk: min(chunkSize, s.MaxSpill()), Size: size}
	ref.Chunks = max(1, (size+ref.Chunk-1)/ref.Chunk)
	return ref
}

// RelayBulk writes a unit's bulk state beside the parts that go through the target's consumer, cut as BulkOf says, and returns when
// all of it is acknowledged. The target may fetch it meanwhile. At most 1 MiB of it is under way at once. before
// is called before each chunk, and may wait. Errors are those of Relay; CapacityExceeded above MaxBulk.
func (s *Store) RelayBulk(ctx context.Context, to Handover, data []byte, ttl time.Duration, before func(context.Context)) error {
	to.From = s.rid
	err := to.check()
	if err == nil {
		err = checkRelayTTL(ttl)
	}
	if err != nil {
		return refused("relay", to.String(), err)
	}
	if len(data) > MaxBulk {
		return outcome.New("relay", outcome.CapacityExceeded, outcome.NotAccepted, to.String(),
			fmt.Sprintf("the state has %d bytes, at most %d are allowed", len(data), MaxBulk))
	}
	ctx, cancel := context.WithCancel(ctx) // the first error ends the rest
	defer cancel()
	ref := s.BulkOf(len(data))
	w := newWindow(bulkSlots)
	under := make([]*Relaying, 0, ref.Chunks)
	for i := range ref.Chunks {
		chunk := data[min(i*ref.Chunk, len(data)):min((i+1)*ref.Chunk, len(data))]
		before(ctx)
		r := s.relayPart(ctx, &w, to.bulkKey(), to.Op, chunkName(i), chunk, ttl)
		under = append(under, r)
		select {
		case <-r.done: // refused
			if r.err != nil {
				return r.err
			}
		default:
		}
	}
	for _, r := range under {
		if _, err := r.Wait(ctx); err != nil {
			return err
		}
	}
	return nil
}

// FetchBulk reads a unit's bulk state, all of it, as its chunks come; whether it is what was written is for the caller's checksum to
// say. Any replica may answer, at most 1 MiB at a time; before is called before each of these answers is asked for, and may wait.
//
// Errors are *outcome.Error with NotAccepted: InvalidOperation for a reference that is none, DataLost when chunks were cleared or are of
// another size, or when none has come for 10 s, Unavailable when the store does not answer.
func (s *Store) FetchBulk(ctx context.Context, from Handover, ref BulkRef, before func(context.Context)) ([]byte, error) {
	err := from.check()
	if err == nil {
		err = ref.check()
	}
	if err != nil {
		return nil, refused("fetch", from.String(), err)
	}
	ctx, cancel := s.bound(ctx)
	read := make(chan bulkBatch, 1) // of the one read that is under way, if any
	under := false
	defer func() {
		if cancel(); under {
			<-read
		}
	}()
	var (
		data    = make([]byte, ref.Size)
		have    = make([]bool, ref.Chunks)
		missing = ref.Chunks
		came    = monotime.Now() // the last chunk
		lost    = func(why string) error {
			return outcome.New("fetch", outcome.DataLost, outcome.NotAccepted, from.String(), fmt.Sprintf("%d of %d chunks are missing: %s", missing, ref.Chunks, why))
		}
		begin = func(at uint64) {
			under = true
			go func() {
				before(ctx)
				b := bulkBatch{next: at}
				b.msgs, b.more, b.err = s.readBatch(ctx, s.moves, s.moves.subject+from.bulkKey(), at, fetchBytes)
				if n := len(b.msgs); n > 0 {
					b.next = b.msgs[n-1].revision + 1
				}
				read <- b
			}()
		}
	)
	begin(1)
	for try := 0; ; {
		b := <-read
		if under = false; b.err != nil {
			return nil, b.err
		}
		if b.more && missing > len(b.msgs) { // the next ones come while these are copied
			begin(b.next)
		}
		for _, m := range b.msgs {
			i, ok := parseChunk(first(m.header, wire.HeaderPart))
			switch {
			case m.deleted():
				return nil, lost("they were cleared")
			case !ok || i < 0 || i >= ref.Chunks || have[i]:
				continue
			case len(m.value) != min(ref.Chunk, ref.Size-i*ref.Chunk):
				return nil, lost(fmt.Sprintf("chunk %d has %d bytes", i, len(m.value)))
			}
			copy(data[i*ref.Chunk:], m.value)
			have[i] = true
			missing--
			try, came = 0, monotime.Now()
		}
		switch {
		case missing == 0:
			return data, nil
		case under:
		case b.more: // among them were some that had come before
			begin(b.next)
		case monotime.Since(came) > fetchPatience:
			return nil, lost(fmt.Sprintf("none has come for %v", fetchPatience))
		default: // they are still being written, or the replica is behind
			if err := s.sleep(ctx, backoff(try)); err != nil {
				return nil, unavailable("fetch", from.String(), errors.Join(err, errors.New("not all chunks have come")))
			}
			try++
			begin(b.next)
		}
	}
}

// bulkBatch is one answer of the store to FetchBulk, and from which revision on it reads next.
type bulkBatch struct {
	msgs []*storedMsg
	more bool
	next uint64
	err  error
}
