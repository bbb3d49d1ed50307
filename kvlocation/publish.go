package kvlocation

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nuid"

	"natsfabric/internal/wire"
	"natsfabric/outcome"
)

// maxPublishTries bounds how often a descriptor is written anew over a change by somebody else.
const maxPublishTries = 5

// PublishDescriptor writes a node's own descriptor. RID, lifecycle, schema version, lease TTL, time of update and
// operation ID are filled in. It happens only while the lease admits, and ends when the lease does.
//
// Errors are *outcome.Error: Unavailable with NotAccepted when the lease is closed, InvalidOperation with
// ErrSuperseded when a later process run has published under the RID, CapacityExceeded for a descriptor above
// MaxDescriptor or a new one when the mesh has MaxMembers, Unavailable with Unknown when the store did not say whether it was written. One call after the
// other is written.
func (s *Store) PublishDescriptor(ctx context.Context, l *Lease, d Descriptor) error {
	l.publishing.Lock()
	defer l.publishing.Unlock()
	target := fmt.Sprintf("node %q", l.cfg.RID)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	lctx := l.Context()
	defer context.AfterFunc(lctx, func() { cancel(context.Cause(lctx)) })()

	for range maxPublishTries {
		if err := l.Admit(); err != nil {
			return err
		}
		if !l.descKnown {
			if err := l.readDescriptor(ctx); err != nil {
				return err
			}
		}
		d.V, d.RID, d.Lifecycle = wire.SchemaVersion, l.cfg.RID, l.lifecycle
		d.LeaseTTLMillis = l.cfg.TTL.Milliseconds()
		d.Updated = time.Now().UTC()
		d.Write = nuid.Next()
		value, err := d.MarshalJSON()
		if err != nil {
			return refused("publish descriptor", target, err)
		}
		if len(value) > MaxDescriptor {
			return outcome.New("publish descriptor", outcome.CapacityExceeded, outcome.NotAccepted, target,
				fmt.Sprintf("the descriptor has %d bytes, at most %d are allowed", len(value), MaxDescriptor))
		}
		l.published.send(d.Write)
		res, err := s.write(ctx, write{bucket: s.nodes, key: descKey(l.cfg.RID), expect: l.descRev, value: value, opID: d.Write})
		if err == nil {
			l.descRev = res.revision
			l.published.stored(res.revision)
			return nil
		}
		l.descKnown = false
		if !errors.Is(err, ErrConflict) {
			return err
		}
	}
	return outcome.New("publish descriptor", outcome.Unavailable, outcome.NotAccepted, target,
		fmt.Sprintf("somebody else changed it %d times meanwhile", maxPublishTries))
}

// published is what is known of a process run's own writes of its descriptor.
type published struct {
	mu       sync.Mutex
	ops      [maxOps]string // the latest operation IDs, sent or about to be
	sent     int
	revision uint64 // of the last one that was acknowledged; 0 when none was
}

func (p *published) send(opID string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ops[p.sent%len(p.ops)] = opID
	p.sent++
}

func (p *published) stored(revision uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.revision = max(p.revision, revision)
}

// displacedBy reports whether m (nil: the key holds nothing, as of upTo) is another's write over a published
// descriptor.
func (p *published) displacedBy(m *storedMsg, upTo uint64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if m == nil {
		return p.revision > 0 && upTo >= p.revision
	}
	id := first(m.header, nats.MsgIdHdr) // "" for a tool's write, as for a place in ops that is not taken yet
	return p.revision > 0 && m.revision > p.revision && (id == "" || !slices.Contains(p.ops[:], id))
}

// readDescriptor learns the revision over which the node's own descriptor may be written. A new one must not make the
// list longer than one consistent read can be.
func (l *Lease) readDescriptor(ctx context.Context) error {
	snap, err := l.s.snapshot(ctx, l.s.nodes, l.acked.Load().revision, descKey(">"))
	if err != nil {
		return err
	}
	m := snap.get(descKey(l.cfg.RID))
	if other := descriptorLifecycle(m); other > l.lifecycle {
		return outcome.Wrap("publish descriptor", outcome.InvalidOperation, outcome.NotAccepted, fmt.Sprintf("node %q", l.cfg.RID),
			fmt.Sprintf("lifecycle %d has published under this RID", other), ErrSuperseded)
	}
	if m == nil && len(snap.msgs) > MaxMembers { // the probe is among them
		return outcome.New("publish descriptor", outcome.CapacityExceeded, outcome.NotAccepted, fmt.Sprintf("node %q", l.cfg.RID),
			fmt.Sprintf("the mesh has %d descriptors, those included that were removed within the last ten minutes; at most %d are allowed: forget nodes that are gone, or wait",
				len(snap.msgs)-1, MaxMembers))
	}
	l.descRev, l.descKnown = 0, true
	if m != nil {
		l.descRev = m.revision
	}
	return nil
}

// descriptorLifecycle returns the lifecycle that wrote the last message of a descriptor's key; 0 when there is none
// or it cannot be read. The marker of a forgotten node tells it too.
func descriptorLifecycle(m *storedMsg) uint64 {
	if m == nil {
		return 0
	}
	var d struct {
		Lifecycle uint64 `json:"lifecycle"`
	}
	_ = json.Unmarshal(m.value, &d) // what cannot be read claims nothing
	return d.Lifecycle
}

// ErrNodeAlive is in the chain of errors of what is allowed only once a node is gone.
var ErrNodeAlive = errors.New("the node's lease is alive")

// ForgetNode removes the descriptor of a node that is gone.
//
// Errors are *outcome.Error: InvalidOperation with ErrNodeAlive while a process run holds the RID (the text says
// until when at most, if it is not renewed), NotFound when there is no descriptor, Unavailable when the store does
// not answer.
func (s *Store) ForgetNode(ctx context.Context, rid string) error {
	target := fmt.Sprintf("node %q", rid)
	if err := wire.CheckName("RID", rid); err != nil {
		return refused("forget", target, err)
	}
	for range maxPublishTries {
		floor, err := s.probe(ctx, s.nodes)
		if err != nil {
			return err
		}
		snap, err := s.snapshot(ctx, s.nodes, floor, leaseKey(rid), descKey(rid))
		if err != nil {
			return err
		}
		st, _, err := leaseState(rid, snap.get(leaseKey(rid)))
		if err != nil {
			return outcome.Wrap("forget", outcome.ProtocolError, outcome.NotAccepted, target, "", err)
		}
		if st.held() {
			return aliveError("forget", st)
		}
		m := snap.get(descKey(rid))
		if m == nil || m.deleted() {
			return outcome.New("forget", outcome.NotFound, outcome.NotAccepted, target, "it has no descriptor")
		}
		opID := nuid.Next()
		value, err := json.Marshal(map[string]any{"v": wire.SchemaVersion, "rid": rid, "lifecycle": descriptorLifecycle(m), "write": opID})
		if err != nil {
			return refused("forget", target, err)
		}
		_, err = s.write(ctx, write{bucket: s.nodes, key: descKey(rid), expect: m.revision, value: value, opID: opID, marker: true, ttl: markerTTL})
		if !errors.Is(err, ErrConflict) {
			return err
		}
	}
	return outcome.New("forget", outcome.Unavailable, outcome.NotAccepted, target, "its descriptor changes all the time")
}

// aliveError refuses what needs a node gone, and says until when its lease can live.
func aliveError(op string, st LeaseState) error {
	who := fmt.Sprintf("lifecycle %d%s", st.Lifecycle, onHost(st.Host))
	if st.Proof != "" {
		who = st.Proof + ", which proves that the node is gone,"
	}
	return outcome.Wrap(op, outcome.InvalidOperation, outcome.NotAccepted, fmt.Sprintf("node %q", st.RID),
		fmt.Sprintf("%s holds its lease until %s at most, if it is not renewed", who, st.Renewed.Add(st.TTL).Format(time.RFC3339)), ErrNodeAlive)
}
