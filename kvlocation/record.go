package kvlocation

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"natsfabric/internal/wire"
	"natsfabric/outcome"
)

// MaxRecord is the greatest size of an object record in bytes: 64 KiB of creation input and first message, which
// base64 makes 88 KiB, and room for the rest. A larger record is refused before it is sent.
const MaxRecord = 128 << 10

// maxOps is how many operation IDs a record remembers.
const maxOps = 8

// ObjectKind tells Actors from Spots.
type ObjectKind string

// The kinds of object.
const (
	KindActor ObjectKind = "actor"
	KindSpot  ObjectKind = "spot"
)

// ObjectKey names an object: its kind and its logical ID, which is valid UTF-8 of 1 to 255 bytes.
type ObjectKey struct {
	Kind ObjectKind `json:"kind"`
	ID   string     `json:"id"`
}

// Class is what kind of object a record describes. The key tells only Actors from Spots; a name may be registered as
// a type of every class, so class and type together say what an object is.
type Class string

// The classes of object.
const (
	ClassActor Class = "actor"
	// ClassEntrySpot is a node's own Spot. It has no record.
	ClassEntrySpot Class = "entry_spot"
	// ClassUserSpot is a Spot that a call creates.
	ClassUserSpot Class = "user_spot"
	// ClassInstanceSpot is a Spot that its first message creates.
	ClassInstanceSpot Class = "instance_spot"
)

// classSpot is what the marker of a Spot says of which nothing else is known.
const classSpot Class = "spot"

// Key returns the kind of the keys under which objects of the class stand; "" when there is no such class.
func (c Class) Key() ObjectKind {
	switch c {
	case ClassActor:
		return KindActor
	case ClassEntrySpot, ClassUserSpot, ClassInstanceSpot, classSpot:
		return KindSpot
	}
	return ""
}

// String returns the form used in errors: actor "alice".
func (k ObjectKey) String() string { return fmt.Sprintf("%s %q", k.Kind, k.ID) }

// key returns the key in the bucket LOCATION.
func (k ObjectKey) key() (string, error) { return k.appendTo("") }

// appendTo returns prefix with the key behind it.
func (k ObjectKey) appendTo(prefix string) (string, error) {
	if k.Kind != KindActor && k.Kind != KindSpot {
		return "", fmt.Errorf("object kind %q is not allowed: it must be %s or %s", k.Kind, KindActor, KindSpot)
	}
	token, err := wire.EscapeID(k.ID)
	if err != nil {
		return "", err
	}
	return prefix + string(k.Kind) + "." + token, nil
}

// Phase is the state of an object record. The moves between phases are made by Transition alone.
type Phase string

// The phases.
const (
	// PhaseMissing: there is no object; the key holds nothing or a delete marker. Next: Creating.
	PhaseMissing Phase = "missing"
	// PhaseCreating: one node secured the right to run the factory. Next: Creating (takeover), Ready, Missing
	// (cancel).
	PhaseCreating Phase = "creating"
	// PhaseReady: the owner serves the object. Next: Ready (adoption, join, leave), Moving (prepare), Missing (close,
	// release).
	PhaseReady Phase = "ready"
	// PhaseMoving: the object goes from its owner to the target of Record.Move. While that says nothing of accepted it
	// is being prepared, and the owner serves it; next: Ready with the same owner (abort), Moving accepted. Once it is
	// accepted nobody serves it; next: Ready with the target as owner (commit). Both: Missing (release).
	PhaseMoving Phase = "moving"
)

// Owner is the process run that owns an object.
type Owner struct {
	RID string `json:"rid"`
	// Lifecycle is the process run: the revision of the first lease that it created.
	Lifecycle uint64 `json:"lifecycle"`
	// Lease is the lease generation under which the owner created or adopted the object. With another one it must
	// adopt it first.
	Lease uint64 `json:"lease"`
	// Unknown keeps the fields that this version does not know.
	Unknown map[string]json.RawMessage `json:"-"`
}

// Is reports whether o is this process run, under whatever lease generation.
func (o Owner) Is(rid string, lifecycle uint64) bool { return o.RID == rid && o.Lifecycle == lifecycle }

// leased reports whether o can own something: it is a process run with a lease.
func (o Owner) leased() bool { return o.RID != "" && o.Lifecycle != 0 && o.Lease != 0 }

func (o Owner) String() string {
	return fmt.Sprintf("node %s (lifecycle %d, lease %d)", o.RID, o.Lifecycle, o.Lease)
}

// Record is the value of an object's key, a delete marker's included.
type Record struct {
	V     int   `json:"v"`
	Phase Phase `json:"phase"`
	// Kind is the object's class. The key's kind is Kind.Key().
	Kind Class  `json:"kind"`
	Type string `json:"type,omitempty"`
	// Owner is who has the object: in a move the source until the commit. A record that is located by Reference has none.
	Owner Owner `json:"owner,omitzero"`
	// Move describes a planned move that is under way, or the last one, until it is cleared.
	Move *Move `json:"move,omitempty"`
	// Generation is the ObjectGeneration; 0 in the first Creating record, where it is the entry's own revision.
	// Read it through Entry.Generation.
	Generation uint64 `json:"generation,omitempty"`
	// OwnerGeneration counts the owner changes of one incarnation, from 1. A record that is located by Reference has
	// none of its own: see Located.
	OwnerGeneration uint64 `json:"owner_generation,omitempty"`
	// Write counts the writes of the record, over incarnations too.
	Write uint64 `json:"write"`
	// Ops holds the operation IDs of the last eight writes, the newest last.
	Ops []string `json:"ops"`
	// With says to what the object belongs. It is carried as it is, unless it is a Reference.
	With json.RawMessage `json:"with,omitempty"`
	// Activation is what a creation is continued from when its creator dies: input and first message. It is carried
	// as it is, by a takeover too, until the object is Ready: from then on it would serve nobody (FO-4.5), since who
	// made the object Ready has it in memory and another process run must not use it.
	Activation json.RawMessage `json:"activation,omitempty"`
	// Created and Updated are for people: they are the writers' clocks.
	Created time.Time `json:"created,omitzero"`
	Updated time.Time `json:"updated,omitzero"`
	// Unknown keeps the fields that this version does not know.
	Unknown map[string]json.RawMessage `json:"-"`
}

// encode returns the record's value in buf if there is room for it, or a CapacityExceeded or InvalidOperation error.
func (r *Record) encode(buf []byte) ([]byte, *outcome.Error) {
	b, err := r.appendJSON(buf[:0])
	if err != nil {
		return nil, refused("write", "", err)
	}
	if len(b) > MaxRecord {
		return nil, outcome.New("write", outcome.CapacityExceeded, outcome.NotAccepted, "",
			fmt.Sprintf("the record has %d bytes, at most %d are allowed", len(b), MaxRecord))
	}
	return b, nil
}

// judge tells from r, read after a write's expectation was found not to hold, what became of that write. base is the
// count of writes in the record that it expected, so its own number is base+1: either the list of operations names
// it, or the list reaches back to it without naming it and the write was lost, or the list does not reach that far.
func (r *Record) judge(opID string, base uint64) verdict {
	switch {
	case slices.Contains(r.Ops, opID):
		return wasApplied
	case r.Write > base && r.Write-base <= uint64(len(r.Ops)):
		return wasLost
	}
	return cannotTell
}

// Entry is what an object's key holds at one revision.
type Entry struct {
	Key ObjectKey
	// Revision is the key's, a delete marker's included; 0 when the key holds nothing at all.
	Revision uint64
	// Record is the value. Its phase is PhaseMissing when there is no object.
	Record Record
	// Stored is the server's time of the write.
	Stored time.Time

	read bool // false in a zero Entry
}

// Phase is the phase of the record.
func (e Entry) Phase() Phase { return e.Record.Phase }

// Generation is the ObjectGeneration: the revision at which the Creating record of this incarnation was created.
func (e Entry) Generation() uint64 {
	if e.Record.Generation == 0 && e.Record.Phase == PhaseCreating {
		return e.Revision
	}
	return e.Record.Generation
}

// writes is the count of writes that the next one continues. A marker that another tool or an expiry made says
// nothing about it; its revision is higher than any count before it, so no list of operations after it can seem to
// reach back beyond it.
func (e Entry) writes() uint64 {
	if e.Record.Write == 0 {
		return e.Revision
	}
	return e.Record.Write
}

// entryOf reads a stored message (nil: the key holds nothing).
func entryOf(key ObjectKey, m *storedMsg) (Entry, error) {
	e := Entry{Key: key, read: true}
	if m == nil {
		e.Record.Phase = PhaseMissing
		return e, nil
	}
	e.Revision, e.Stored = m.revision, m.time
	deleted := m.deleted()
	if deleted && len(m.value) == 0 {
		e.Record.Phase = PhaseMissing
		return e, nil
	}
	bad := func(format string, args ...any) (Entry, error) {
		return Entry{}, outcome.New("read", outcome.ProtocolError, outcome.NotAccepted, key.String(),
			fmt.Sprintf("the record at revision %d ", m.revision)+fmt.Sprintf(format, args...))
	}
	err := e.Record.UnmarshalJSON(m.value)
	version := e.Record.V
	if err != nil { // by a later version, perhaps
		var probe struct {
			V int `json:"v"`
		}
		if err := json.Unmarshal(m.value, &probe); err != nil {
			return bad("is no record: %v", err)
		}
		version = probe.V
	}
	if version < 1 || version > wire.SchemaVersion {
		return bad("has schema version %d, this program knows 1 to %d", version, wire.SchemaVersion)
	}
	if err != nil {
		return bad("cannot be read: %v", err)
	}
	if e.Record.Kind.Key() != key.Kind {
		return bad("says kind %q", e.Record.Kind)
	}
	if (e.Record.Phase == PhaseMissing) != deleted {
		return bad("says phase %q, the message says deleted = %v", e.Record.Phase, deleted)
	}
	return e, nil
}
