package kvlocation

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nuid"

	"natsfabric/internal/monotime"
	"natsfabric/internal/wire"
	"natsfabric/outcome"
)

// Bounds of what a shared key holds.
const (
	// MaxShared is the greatest size of a shared key's value, in bytes.
	MaxShared = 64 << 10
	// MaxSharedKey is the greatest length of a shared key, in bytes.
	MaxSharedKey = 400
	// MaxSharedTTL bounds how long a shared key may live that does not live for ever.
	MaxSharedTTL = MaxAuditRetention
)

// Bucket names a bucket whose keys belong to several packages.
type Bucket string

// The shared buckets.
const (
	// BucketSupervise holds what monitors share: worker records, and the timers, locks, counters and history of
	// remediation. Operators' audits stand there too, under keys that Shared does not touch.
	BucketSupervise Bucket = "SUPERVISE"
	// BucketFence holds leadership terms, the right to fence, and confirmations. Authority rests on its revisions, so a
	// process that finds it rolled back or made again does not go on with it.
	BucketFence Bucket = "FENCE"
)

// Shared is the keys of one shared bucket. Each change is a compare-and-set with an operation ID, and its result is
// resolved as that of a record's is: applied, not applied, or Unknown with a [SharedPending], never a guess. Its
// methods may be called concurrently.
//
// Keys are tokens of A-Z, a-z, 0-9, _, = and -, separated by dots, at most [MaxSharedKey] bytes together; the first
// token is neither "probe" nor "audit". Values are JSON of at most [MaxShared] bytes. TTLs are whole seconds, 0 means
// for ever; the server ends them on its own clock, up to some 250 ms late, and not while the stream has no leader. A
// marker stays for 10 minutes behind what was deleted or has expired.
//
// Errors of all methods are *outcome.Error. InvalidOperation with NotAccepted says that a key, value or TTL is not allowed,
// or that the store was opened without an RID (it then has not checked these streams); CapacityExceeded that a value is
// too large; Unavailable with NotAccepted that the store does not answer and nothing was changed; DataLost that the
// store is not the one that was opened (ErrRolledBack, ErrMadeAgain).
type Shared struct {
	s *Store
	b *bucket
}

// Shared returns the keys of a shared bucket. Every bucket but the two above panics.
func (s *Store) Shared(b Bucket) *Shared {
	switch b {
	case BucketSupervise:
		return &Shared{s: s, b: s.supervise}
	case BucketFence:
		return &Shared{s: s, b: s.fence}
	}
	panic(fmt.Sprintf("kvlocation: %q is no shared bucket", b))
}

// SharedEntry is what a shared key holds at one revision.
type SharedEntry struct {
	Key string
	// Value is the JSON; nil when the key holds nothing.
	Value []byte
	// Revision is the key's, a marker's included; 0 when the key holds nothing at all.
	Revision uint64
	// Time is the server's time of the write, on the store's clock. It is set in what was read, and zero in what Create
	// and Update have just written: the store's acknowledgement does not tell it.
	Time time.Time
	// Expires is when the key's life ends, on the store's clock. It is zero when that is never, and where Time is.
	Expires time.Time

	ops   []string // of the last writes, the newest last
	count uint64   // of writes; 0 when not known
}

// Exists reports whether the key holds a value.
func (e SharedEntry) Exists() bool { return e.Value != nil }

// SharedPending is a write of a shared key that was sent and whose result is not known. It is found with errors.As in
// an error with acceptance Unknown. Shared.Resolve goes on with it. It is used by one goroutine at a time; the errors in which it
// is found may be read by any meanwhile.
type SharedPending struct {
	op   string
	at   SharedEntry
	next SharedEntry
	sd   sending
}

// Error says which write it is. What went wrong stands in the error in which the SharedPending was found.
func (p *SharedPending) Error() string {
	return fmt.Sprintf("%s %s: the result is not known", p.op, p.at.Key)
}

// Key is the key that was written.
func (p *SharedPending) Key() string { return p.at.Key }

// Create writes a key that holds nothing. One that does is AlreadyExists, with the present entry beside the error: as
// it was during the call. Unavailable with Unknown: see SharedPending.
func (h *Shared) Create(ctx context.Context, key string, value []byte, ttl time.Duration) (SharedEntry, error) {
	const op = "create"
	ctx, cancel := h.s.bound(ctx)
	defer cancel()
	at, err := h.peek(ctx, op, key)
	confirmed := false
	for {
		switch {
		case err != nil:
			return SharedEntry{}, err
		case at.Exists() && confirmed:
			return at, outcome.New(op, outcome.AlreadyExists, outcome.NotAccepted, h.target(key), fmt.Sprintf("it exists at revision %d", at.Revision))
		case at.Exists():
			at, err = h.confirm(ctx, key)
			confirmed = true
			continue
		}
		next, lost := h.set(ctx, op, at, value, ttl)
		var conflict *conflictError
		if !errors.As(lost, &conflict) {
			return next, lost
		}
		at, err = h.readSince(ctx, key, max(conflict.current, conflict.expected))
		confirmed = true // it is no older than the write that was refused
	}
}

// Update writes a key that is as at says: whatever it holds, or nothing, at exactly that revision. ttl is the new
// life, counted from this write. A key that has another revision is InvalidOperation with ErrConflict and
// NotAccepted, with the present entry beside the error when that could be read. Unavailable with Unknown: see
// SharedPending.
func (h *Shared) Update(ctx context.Context, at SharedEntry, value []byte, ttl time.Duration) (SharedEntry, error) {
	ctx, cancel := h.s.bound(ctx)
	defer cancel()
	next, err := h.set(ctx, "update", at, value, ttl)
	return h.withPresent(ctx, next, err)
}

// Delete removes a key that is as at says. Errors are those of Update.
func (h *Shared) Delete(ctx context.Context, at SharedEntry) error {
	p, err := h.prepare("delete", at, nil, 0)
	if err == nil {
		_, err = h.Resolve(ctx, p)
	}
	return err
}

// Resolve sends the same write again until it is known what became of it, or ctx ends. A nil error means that it was
// applied; the entry is what the key holds now, which somebody may have written since (then its revision is not the
// write's own). Not applied, for ever, is ErrConflict; still unknown is Unavailable with Unknown. "Not applied" is concluded only
// within 9 minutes of the first sending. Whoever does not want the write any more makes sure of it by a write of its
// own over the same entry: when that is applied, this one never will be.
func (h *Shared) Resolve(ctx context.Context, p *SharedPending) (SharedEntry, error) {
	res, err := h.s.resolve(ctx, &p.sd)
	if err == nil && p.sd.open && res.current == nil {
		// The answer belongs to a repeated write: somebody may have written since.
		var snap *snapshot
		if snap, err = h.s.snapshot(ctx, h.b, res.revision, p.at.Key); err == nil {
			res.current = snap.get(p.at.Key)
		}
	}
	if err != nil {
		return SharedEntry{}, p.failed(h, err)
	}
	if p.sd.open {
		return sharedOf(p.at.Key, res.current), nil
	}
	e := p.next
	e.Revision = res.revision
	return e, nil
}

// Get reads a key from any replica, so it may be a few milliseconds old. A key that holds nothing is NotFound, which
// may be as old; the entry beside the error has the key, and the revision of its marker.
func (h *Shared) Get(ctx context.Context, key string) (SharedEntry, error) {
	e, err := h.peek(ctx, "read", key)
	return h.found(e, err)
}

// Confirm reads a key as it is now: no older than the call, NotFound included. It costs a write of an own key, which
// needs the quorum: without one it is Unavailable.
func (h *Shared) Confirm(ctx context.Context, key string) (SharedEntry, error) {
	if err := h.check("read", key); err != nil {
		return SharedEntry{}, err
	}
	e, err := h.confirm(ctx, key)
	return h.found(e, err)
}

// ConfirmAll reads keys as they are together at one moment, no older than the call, for what one Confirm costs. The entries
// come in the order of the keys; one of a key that holds nothing has no value.
func (h *Shared) ConfirmAll(ctx context.Context, keys ...string) ([]SharedEntry, error) {
	for _, key := range keys {
		if err := h.check("read", key); err != nil {
			return nil, err
		}
	}
	seq, err := h.s.probe(ctx, h.b)
	if err != nil {
		return nil, err
	}
	snap, err := h.s.snapshot(ctx, h.b, seq, keys...)
	if err != nil {
		return nil, err
	}
	out := make([]SharedEntry, len(keys))
	for i, key := range keys {
		out[i] = sharedOf(key, snap.get(key))
	}
	return out, nil
}

// List calls f with every key that begins with prefix and holds a value, in the order of their revisions, until f
// returns false. Any replica may answer, so entries may be missing or old by as much as it is behind: what is
// decided from them is decided by a compare-and-set, or after Confirm. A key that is written meanwhile may come twice.
// It makes no consumer and holds one answer of at most 1 MiB at a time.
func (h *Shared) List(ctx context.Context, prefix string, f func(SharedEntry) bool) error {
	if err := h.checkPrefix(prefix); err != nil {
		return err
	}
	filter := h.b.subject + prefix[:strings.LastIndexByte(prefix, '.')+1] + ">"
	for from, more := uint64(1), true; more; {
		var (
			msgs []*storedMsg
			err  error
		)
		if msgs, more, err = h.s.readBatch(ctx, h.b, filter, from, walkBytes); err != nil {
			return err
		}
		for _, m := range msgs {
			from = m.revision + 1
			if strings.HasPrefix(m.key, prefix) && !m.deleted() && !reserved(m.key) && !f(sharedOf(m.key, m)) {
				return nil
			}
		}
	}
	return nil
}

// Now returns the store's time and the bound of its error: the true value lies within now-bound and now+bound. It is
// read from the server's time stamp of an own write, so it needs the quorum, and it is the same clock as that of
// SharedEntry.Time.
func (h *Shared) Now(ctx context.Context) (now time.Time, bound time.Duration, err error) {
	if err := h.usable("read the clock of", h.b.name); err != nil {
		return time.Time{}, 0, err
	}
	ctx, cancel := h.s.bound(ctx)
	defer cancel()
	sent := monotime.Now()
	seq, err := h.s.probe(ctx, h.b)
	if err != nil {
		return time.Time{}, 0, err
	}
	snap, err := h.s.snapshot(ctx, h.b, seq, h.s.probeKey())
	if err != nil {
		return time.Time{}, 0, err
	}
	m := snap.get(h.s.probeKey())
	if m == nil {
		return time.Time{}, 0, unavailable("read the clock of", h.b.name, errors.New("the own key is gone already"))
	}
	c := NewClock(0)
	c.Observe(sent, monotime.Now(), m.time) // written after sent, by this call or one beside it
	now, bound, _ = c.Now()
	return now, bound, nil
}

// Epoch is the identity of the bucket's stream, as found by Open: fixed when the stream was first made, larger if it was
// made again since. A revision of the bucket means something only together with it.
func (h *Shared) Epoch() uint64 { return h.b.life.epoch }

// Replicas returns on how many servers the bucket's stream is kept, as its leader says now. With 1, the store is as
// alive as that one server.
func (h *Shared) Replicas(ctx context.Context) (int, error) {
	if err := h.usable("read", "stream "+h.b.stream); err != nil {
		return 0, err
	}
	bi, err := h.s.info(ctx, h.b)
	return bi.replicas, err
}

func (h *Shared) target(key string) string { return h.b.name + " " + key }

func (h *Shared) peek(ctx context.Context, op, key string) (SharedEntry, error) {
	if err := h.check(op, key); err != nil {
		return SharedEntry{}, err
	}
	m, err := h.s.get(ctx, h.b, key)
	if err != nil {
		return SharedEntry{}, err
	}
	return sharedOf(key, m), nil
}

func (h *Shared) confirm(ctx context.Context, key string) (SharedEntry, error) {
	seq, err := h.s.probe(ctx, h.b)
	if err != nil {
		return SharedEntry{}, err
	}
	return h.readSince(ctx, key, seq)
}

func (h *Shared) readSince(ctx context.Context, key string, revision uint64) (SharedEntry, error) {
	snap, err := h.s.snapshot(ctx, h.b, revision, key)
	if err != nil {
		return SharedEntry{}, err
	}
	return sharedOf(key, snap.get(key)), nil
}

func (h *Shared) found(e SharedEntry, err error) (SharedEntry, error) {
	if err == nil && !e.Exists() {
		err = notFound("read", h.target(e.Key), "")
	}
	return e, err
}

// set writes a value over at.
func (h *Shared) set(ctx context.Context, op string, at SharedEntry, value []byte, ttl time.Duration) (SharedEntry, error) {
	switch {
	case !json.Valid(value):
		return SharedEntry{}, refused(op, h.target(at.Key), errors.New("the value is no JSON"))
	case len(value) > MaxShared:
		return SharedEntry{}, outcome.New(op, outcome.CapacityExceeded, outcome.NotAccepted, h.target(at.Key),
			fmt.Sprintf("the value has %d bytes, at most %d are allowed", len(value), MaxShared))
	case ttl < 0 || ttl > MaxSharedTTL || ttl%time.Second != 0:
		return SharedEntry{}, refused(op, h.target(at.Key), fmt.Errorf("TTL %v is not allowed: it must be whole seconds, up to %v, or 0 for ever", ttl, MaxSharedTTL))
	}
	p, err := h.prepare(op, at, value, ttl)
	if err != nil {
		return SharedEntry{}, err
	}
	return h.Resolve(ctx, p)
}

// prepare makes the write of value (nil: a delete marker) over at.
func (h *Shared) prepare(op string, at SharedEntry, value []byte, ttl time.Duration) (*SharedPending, error) {
	if err := h.check(op, at.Key); err != nil {
		return nil, err
	}
	base := at.count
	if base == 0 { // see Entry.writes
		base = at.Revision
	}
	opID := nuid.Next()
	p := &SharedPending{op: op, at: at}
	p.next = SharedEntry{Key: at.Key, Value: slices.Clone(value), count: base + 1}
	p.next.ops = append(append(make([]string, 0, maxOps), at.ops[max(0, len(at.ops)-maxOps+1):]...), opID)
	p.sd.write = write{
		bucket: h.b, key: at.Key, expect: at.Revision, value: p.next.Value, opID: opID, ttl: ttl, applied: p,
		ops: strings.Join(p.next.ops, " "), count: p.next.count,
	}
	if value == nil {
		p.sd.marker, p.sd.ttl = true, markerTTL
	}
	return p, nil
}

// judge tells what became of the write from what the key holds.
func (p *SharedPending) judge(m *storedMsg) verdict {
	e := sharedOf(p.at.Key, m)
	v := (&Record{Ops: e.ops, Write: e.count}).judge(p.sd.opID, p.next.count-1)
	if v == wasLost && p.sd.expect == 0 && !e.Exists() && e.Revision <= p.sd.mark {
		return cannotTell // the marker is older than the write and may be about to go: then the write may come true
	}
	return v
}

// failed is what the caller sees of an error.
func (p *SharedPending) failed(h *Shared, err error) error {
	var e *outcome.Error
	if !errors.As(err, &e) {
		return err
	}
	out := *e
	out.Op, out.Target = p.op, h.target(p.at.Key)
	if p.sd.open && !errors.Is(err, ErrConflict) {
		stillUnknown(&out, p)
	}
	return &out
}

// withPresent puts the present entry beside a lost compare-and-set.
func (h *Shared) withPresent(ctx context.Context, e SharedEntry, err error) (SharedEntry, error) {
	var lost *conflictError
	if !errors.As(err, &lost) {
		return e, err
	}
	if now, readErr := h.readSince(ctx, lost.key, max(lost.current, lost.expected)); readErr == nil {
		return now, err
	}
	return SharedEntry{Key: lost.key}, err
}

// sharedOf reads a stored message (nil: the key holds nothing).
func sharedOf(key string, m *storedMsg) SharedEntry {
	e := SharedEntry{Key: key}
	if m == nil {
		return e
	}
	e.Revision, e.Time = m.revision, m.time
	e.ops = strings.Fields(first(m.header, wire.HeaderOps))
	e.count, _ = strconv.ParseUint(first(m.header, wire.HeaderWrite), 10, 64)
	if m.deleted() {
		return e
	}
	if e.Value = m.value; e.Value == nil { // by another tool
		e.Value = []byte{}
	}
	if ttl, err := strconv.ParseUint(first(m.header, "Nats-TTL"), 10, 32); err == nil && ttl > 0 {
		e.Expires = e.Time.Add(time.Duration(ttl) * time.Second)
	}
	return e
}

// reserved reports keys of shared buckets that belong to this package.
func reserved(key string) bool {
	return strings.HasPrefix(key, "probe.") || strings.HasPrefix(key, auditPrefix)
}

func (h *Shared) usable(op, target string) error {
	if h.b.life.epoch == 0 {
		return refused(op, target, errors.New("the store was opened without an RID, as a client's is: shared keys need one of kvlocation.Open with Config.RID"))
	}
	return nil
}

func (h *Shared) check(op, key string) error {
	if err := h.usable(op, h.target(key)); err != nil {
		return err
	}
	bad := len(key) > MaxSharedKey || reserved(key+".")
	for token := range strings.SplitSeq(key, ".") {
		bad = bad || token == "" || strings.IndexFunc(token, notInKey) >= 0
	}
	if bad {
		return refused(op, h.target(key), fmt.Errorf("key %q is not allowed: it must be tokens of A-Z, a-z, 0-9, _, = and - with dots "+
			"between them, at most %d bytes, and not begin with probe or audit", key, MaxSharedKey))
	}
	return nil
}

// checkPrefix checks what may be the beginning of a key.
func (h *Shared) checkPrefix(prefix string) error {
	if err := h.usable("list", h.target(prefix)); err != nil {
		return err
	}
	if len(prefix) > MaxSharedKey || strings.HasPrefix(prefix, ".") || strings.Contains(prefix, "..") ||
		strings.IndexFunc(prefix, func(r rune) bool { return r != '.' && notInKey(r) }) >= 0 {
		return refused("list", h.target(prefix), fmt.Errorf("prefix %q is not allowed: it must be the beginning of a key", prefix))
	}
	return nil
}

func notInKey(r rune) bool {
	return r != '_' && r != '=' && r != '-' && (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z')
}
