package kvlocation

import (
	"context"

	"natsfabric/outcome"
)

// Lookup reads where an object is. A record that exists may be a few milliseconds old, which is safe for routing,
// since the target checks itself. That there is none is confirmed: by a write of an own key and a read no older than
// it, which needs the quorum. All look-ups that wait share one such write.
//
// Errors are *outcome.Error with acceptance NotAccepted: NotFound (confirmed), Unavailable (no answer, or no quorum
// to confirm with; never NotFound), ProtocolError (a record that this version cannot read), InvalidOperation (the
// key is not allowed).
func (s *Store) Lookup(ctx context.Context, key ObjectKey) (Entry, error) {
	e, err := s.Peek(ctx, key)
	if err == nil && e.Phase() == PhaseMissing {
		e, err = s.Read(ctx, key)
	}
	if err == nil && e.Phase() == PhaseMissing {
		return e, outcome.New("look up", outcome.NotFound, outcome.NotAccepted, key.String(), "")
	}
	return e, err
}

// Read reads an object's entry as it is now: no older than the call. It costs a write of an own key, so Lookup is
// for routing and Read is for deciding. An object that does not exist is no error but an entry with PhaseMissing.
// Other errors are those of Lookup.
func (s *Store) Read(ctx context.Context, key ObjectKey) (Entry, error) {
	seq, err := s.probe(ctx, s.location)
	if err != nil {
		return Entry{}, err
	}
	es, err := s.ReadSince(ctx, seq, key)
	if err != nil {
		return Entry{}, err
	}
	return es[0], nil
}

// ReadSince reads the entries of one or more objects, at most 1,000, in one consistent state of the bucket that is
// no older than a revision. Errors are those of Read.
func (s *Store) ReadSince(ctx context.Context, revision uint64, keys ...ObjectKey) ([]Entry, error) {
	if len(keys) > maxSnapshotKeys-1 {
		return nil, outcome.New("read", outcome.InvalidOperation, outcome.NotAccepted, "", "too many keys for one consistent state")
	}
	names := make([]string, len(keys))
	for i, k := range keys {
		name, err := k.key()
		if err != nil {
			return nil, refused("read", k.String(), err)
		}
		names[i] = name
	}
	snap, err := s.snapshot(ctx, s.location, revision, names...)
	if err != nil {
		return nil, err
	}
	es := make([]Entry, len(keys))
	for i, k := range keys {
		if es[i], err = entryOf(k, snap.get(names[i])); err != nil {
			return nil, err
		}
	}
	return es, nil
}

// Peek reads an object's entry from any replica, so it may be a few milliseconds old, PhaseMissing included: for who
// decides by a write anyway, and for the owner, which knows what it wrote. Errors are those of Read.
func (s *Store) Peek(ctx context.Context, key ObjectKey) (Entry, error) {
	name, err := key.key()
	if err != nil {
		return Entry{}, refused("read", key.String(), err)
	}
	m, err := s.get(ctx, s.location, name)
	if err != nil {
		return Entry{}, err
	}
	return entryOf(key, m)
}
