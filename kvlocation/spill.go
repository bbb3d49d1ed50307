package kvlocation

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nuid"

	"natsfabric/internal/wire"
	"natsfabric/outcome"
)

// MaxInline is how many bytes of creation input and first message together stand in the Creating record itself. What
// is larger is spilled to the relay stream and pointed to.
const MaxInline = 64 << 10

const (
	// spillTTL is how long spilled data lives that no record points to. No Creating attempt lives longer.
	spillTTL = markerTTL
	// dropTTL is how long the marker stays that takes the place of data that is dropped.
	dropTTL = 10 * time.Second
	// spillPrefix begins the keys of spilled data in the relay stream.
	spillPrefix = "first."
)

// Spilled points to data in the relay stream. Its JSON form stands in records.
type Spilled struct {
	// Name is the data's key in the relay stream. It has the object and the operation ID in it.
	Name string `json:"name"`
	// Revision is the sequence at which the data was written first.
	Revision uint64 `json:"revision"`
	// Size is the number of bytes.
	Size int `json:"size"`

	data []byte // what was written, where it was
}

func (p Spilled) String() string { return fmt.Sprintf("spilled data %s (%d bytes)", p.Name, p.Size) }

func (p Spilled) check() error {
	parts := strings.Split(p.Name, ".")
	ok := len(parts) == 4 && strings.HasPrefix(p.Name, spillPrefix) && p.Revision > 0 && wire.CheckName("operation ID", parts[3]) == nil
	if ok {
		_, err := wire.UnescapeID(parts[2])
		ok = err == nil && (parts[1] == string(KindActor) || parts[1] == string(KindSpot))
	}
	if !ok {
		return fmt.Errorf("%q at revision %d is no name of spilled data", p.Name, p.Revision)
	}
	return nil
}

// MaxSpill is how many bytes Spill takes: what the server accepts as one message, less the headers.
func (s *Store) MaxSpill() int { return int(s.nc.MaxPayload()) - maxHeader }

// Spill writes what a record of the object is going to point to, once per operation ID. Nobody has to remove it: it
// goes away after 10 minutes unless KeepSpilled is called.
//
// Errors are *outcome.Error: CapacityExceeded above MaxSpill, InvalidOperation for a key or operation ID that is not
// allowed, Unavailable when the store does not answer (Unknown when the data may have been written).
func (s *Store) Spill(ctx context.Context, key ObjectKey, opID string, data []byte) (Spilled, error) {
	name, err := key.key()
	if err == nil {
		err = wire.CheckName("operation ID", opID)
	}
	if err != nil {
		return Spilled{}, refused("spill", key.String(), err)
	}
	p := Spilled{Name: spillPrefix + name + "." + opID, Size: len(data), data: data}
	res, err := s.write(ctx, write{bucket: s.relay, key: p.Name, value: data, opID: opID, ttl: spillTTL})
	if err != nil {
		return Spilled{}, err
	}
	p.Revision = res.revision
	return p, nil
}

// KeepSpilled makes data stay until DropSpilled is called: to be done once the record points to it. It may be called
// any number of times, by whoever has read the record.
//
// Errors are *outcome.Error: NotFound when the data was dropped or has gone away, InvalidOperation for a pointer that
// Spill did not make, Unavailable when the store does not answer.
func (s *Store) KeepSpilled(ctx context.Context, p Spilled) error {
	if err := p.check(); err != nil {
		return refused("keep", p.String(), err)
	}
	ctx, cancel := s.bound(ctx)
	defer cancel()
	data := p.data
	if data == nil {
		m, err := s.spilled(ctx, p)
		if err != nil || kept(m) {
			return err
		}
		data = m.value
	}
	// The rollup frees the first copy, which would stay until its time is over.
	_, err := s.write(ctx, write{bucket: s.relay, key: p.Name, expect: p.Revision, value: data, opID: nuid.Next(), rollup: true, applied: keepJudge{}})
	if errors.Is(err, ErrConflict) {
		_, err = s.spilled(ctx, p) // kept by another already, or gone
	}
	return err
}

// keepJudge tells what became of a write that keeps data: once the data is gone it stays so, and whoever keeps it
// writes the same.
type keepJudge struct{}

func (keepJudge) judge(m *storedMsg) verdict {
	switch {
	case m == nil || m.deleted():
		return wasLost
	case kept(m):
		return wasApplied
	}
	return cannotTell
}

// kept reports whether the data has no TTL.
func kept(m *storedMsg) bool { return first(m.header, "Nats-TTL") == "" }

// FetchSpilled reads the data. Its errors are those of KeepSpilled; NotFound is definite.
func (s *Store) FetchSpilled(ctx context.Context, p Spilled) ([]byte, error) {
	if err := p.check(); err != nil {
		return nil, refused("fetch", p.String(), err)
	}
	m, err := s.spilled(ctx, p)
	if err != nil {
		return nil, err
	}
	return m.value, nil
}

// spilled reads the data no older than it was written.
func (s *Store) spilled(ctx context.Context, p Spilled) (*storedMsg, error) {
	snap, err := s.snapshot(ctx, s.relay, p.Revision, p.Name)
	if err != nil {
		return nil, err
	}
	m := snap.get(p.Name)
	if m == nil || m.deleted() {
		return nil, notFound("fetch", p.String(), "it was dropped, or nobody kept it in time")
	}
	if len(m.value) != p.Size {
		return nil, outcome.New("fetch", outcome.DataLost, outcome.NotAccepted, p.String(), fmt.Sprintf("it has %d bytes", len(m.value)))
	}
	return m, nil
}

// DropSpilled removes the data: to be done once no record points to it any more. It may be called any number of
// times. Errors are those of KeepSpilled, without NotFound; after one, the data stays or is gone.
func (s *Store) DropSpilled(ctx context.Context, p Spilled) error {
	if err := p.check(); err != nil {
		return refused("drop", p.String(), err)
	}
	// Without an expectation: the key is the operation's own, and whatever it holds is not needed any more.
	_, err := s.write(ctx, write{bucket: s.relay, key: p.Name, blind: true, opID: nuid.Next(), marker: true, ttl: dropTTL})
	return err
}
