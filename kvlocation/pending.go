package kvlocation

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/nats-io/nuid"

	"natsfabric/outcome"
)

// Pending is a record write that was sent and whose result is not known. It is found with errors.As in an error with
// acceptance Unknown. Until Resolve or GiveUp has told what became of it, nothing that the write would allow may
// begin. A Pending belongs to the Store that returned it and is used by one goroutine at a time; the errors in which it is found
// may be read by any meanwhile.
type Pending struct {
	verb Verb
	key  ObjectKey
	at   Entry // what the write expects
	next Record
	sd   sending
}

// Error says which write it is. What went wrong stands in the error in which the Pending was found.
func (p *Pending) Error() string { return fmt.Sprintf("%s %s: the result is not known", p.verb, p.key) }

// unresolved is why the result of a write was not known when an operation ended. It stays as it is while the write is asked
// for again.
type unresolved struct {
	pending error // the *Pending or *SharedPending
	why     error
}

// stillUnknown makes e the error of an operation that has not told what became of a write.
func stillUnknown(e *outcome.Error, pending error) {
	why := e.Cause
	if why == nil {
		why = errors.New(e.Detail)
	}
	e.Acceptance, e.Cause = outcome.Unknown, &unresolved{pending, why}
}

// Error says what went wrong.
func (e *unresolved) Error() string { return e.why.Error() }

// Unwrap returns what goes on with the write, and what went wrong, the context's error included.
func (e *unresolved) Unwrap() []error { return []error{e.pending, e.why} }

// Key is the object whose record was written.
func (p *Pending) Key() ObjectKey { return p.key }

// pendingPool holds the Pendings of writes that ended well: nobody has seen them, and their buffers are large.
var pendingPool = sync.Pool{New: func() any { return new(Pending) }}

// maxKept is the largest buffer that a Pending keeps: most records are much smaller.
const maxKept = 4 << 10

// done gives back a Pending whose write is known to be applied.
func (p *Pending) done() {
	value := p.sd.value[:0]
	if *p = (Pending{}); cap(value) <= maxKept {
		p.sd.value = value
	}
	pendingPool.Put(p)
}

// prepare makes the write of next over at.
func (s *Store) prepare(at Entry, next Record, a Action) (*Pending, error) {
	subject, err := at.Key.appendTo(s.location.publish)
	if err != nil {
		return nil, refused("write", at.Key.String(), err)
	}
	p := pendingPool.Get().(*Pending)
	value, tooLarge := next.encode(p.sd.value)
	if tooLarge != nil {
		return nil, tooLarge
	}
	p.verb, p.key, p.at, p.next = a.Verb, at.Key, at, next
	p.sd.write = write{
		bucket: s.location, key: subject[len(s.location.publish):], subject: subject, expect: at.Revision, value: value, opID: a.OpID, applied: p,
	}
	if next.Phase == PhaseMissing {
		p.sd.marker, p.sd.ttl = true, markerTTL
	}
	return p, nil
}

// judge tells what became of the write from the record that the key holds.
func (p *Pending) judge(m *storedMsg) verdict {
	e, err := entryOf(p.key, m)
	if err != nil {
		return cannotTell
	}
	v := e.Record.judge(p.sd.opID, p.next.Write-1)
	if v == cannotTell && p.verb == VerbCreate && p.barred(e) {
		return wasLost
	}
	return v
}

// barred reports whether a create was never possible, though the list of operations does not reach back to what it
// expected: the key has held e, the record of an incarnation or its marker, since before the first sending.
func (p *Pending) barred(e Entry) bool {
	since := e.Generation()
	if since == 0 {
		since = e.Revision
	}
	return e.Revision > p.sd.expect && since <= p.sd.mark
}

// Expects is the revision that the write stands on: once the record has a later one the write can never be applied any more.
func (p *Pending) Expects() uint64 { return p.sd.expect }

// Resolve sends the same write again until it is known what became of it, or ctx ends (FO-7a). A nil error means
// that it was applied. Errors are *outcome.Error: NotAccepted with ErrConflict in the chain says that it was lost
// for ever; Unavailable with Unknown, with the same Pending as cause, that it is still not known. "Lost" is concluded
// only within 9 minutes of the first sending.
func (s *Store) Resolve(ctx context.Context, p *Pending) (Change, error) {
	res, err := s.resolve(ctx, &p.sd)
	if err == nil && p.sd.open && res.current == nil {
		// The answer belongs to a repeated write: what it allowed counts only while nobody has written since
		// (FO-7e), so the record is read no older than the answer.
		var snap *snapshot
		if snap, err = s.snapshot(ctx, p.sd.bucket, res.revision, p.sd.key); err == nil {
			res.current = snap.get(p.sd.key)
		}
	}
	if err != nil {
		return Change{}, p.failed(err)
	}
	ch := Change{FirstSent: res.firstSent, Repeated: res.repeated}
	if p.sd.open && (res.current == nil || res.current.opID != p.sd.opID) {
		ch.Overwritten = true
		if ch.Entry, err = entryOf(p.key, res.current); err != nil {
			return Change{}, p.failed(err)
		}
		return ch, nil
	}
	ch.Entry = Entry{Key: p.key, Revision: res.revision, Record: p.next, read: true}
	if res.current != nil {
		ch.Entry.Stored = res.current.time
	}
	return ch, nil
}

// failed is what the caller sees of an error.
func (p *Pending) failed(err error) error {
	var e *outcome.Error
	if !errors.As(err, &e) {
		return err
	}
	out := *e
	out.Op, out.Target = string(p.verb), p.key.String()
	if p.sd.open && !errors.Is(err, ErrConflict) {
		// Whatever step failed, the write itself was sent and is not decided for the caller.
		stillUnknown(&out, p)
	}
	return &out
}

// GiveUp makes sure that the write cannot be applied any more, or finds that it was. Since only a moved revision says
// so, it writes first: a delete marker where nothing was, else the record unchanged. It returns what the key holds,
// and whether the write was applied. On an error (of the kinds of Resolve) nothing is sure, and GiveUp may be called
// again.
func (s *Store) GiveUp(ctx context.Context, p *Pending) (ch Change, applied bool, err error) {
	ctx, cancel := s.bound(ctx)
	defer cancel()
	a := Action{Verb: VerbGiveUp, OpID: nuid.Next(), Now: now()}
	next, err := Transition(p.at, a)
	if err != nil {
		return Change{}, false, illegalError(p.key, err)
	}
	mover, err := s.prepare(p.at, next, a)
	if err != nil {
		return Change{}, false, renamed(err, VerbGiveUp, p.key)
	}
	if ch, err = s.Resolve(ctx, mover); err == nil {
		return ch, false, nil // the revision was moved by this write, so the other one never was and never will be
	}
	if !errors.Is(err, ErrConflict) {
		return Change{}, false, p.failed(err)
	}
	// Somebody moved it, perhaps p itself: now its own answer is definite.
	ch, err = s.Resolve(ctx, p)
	var lost *conflictError
	if !errors.As(err, &lost) {
		return ch, err == nil, err
	}
	ch.Entry, err = s.readSince(ctx, p.key, max(lost.current, lost.expected))
	if err != nil {
		return Change{}, false, p.failed(err)
	}
	return ch, false, nil
}
