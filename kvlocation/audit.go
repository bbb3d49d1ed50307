package kvlocation

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/nats-io/nuid"

	"natsfabric/internal/jsonkeep"
	"natsfabric/internal/wire"
	"natsfabric/outcome"
)

const (
	// MaxAudit is the greatest size of an audit entry's JSON, in bytes.
	MaxAudit = 16 << 10
	// MaxAuditRetention bounds how long an audit entry is kept.
	MaxAuditRetention = 10 * 365 * 24 * time.Hour
	// MaxAudits is the most entries that one call returns.
	MaxAudits = 10_000

	auditPrefix = "audit."
)

// AuditEntry is what an operator, or a program in an operator's name, did to an object, and why. It is written once
// and goes away when its retention is over.
type AuditEntry struct {
	V int `json:"v"`
	// Op is the operation ID of the entry. Audit fills it in, and Time when that is zero.
	Op   string    `json:"op"`
	Time time.Time `json:"time"`
	// By is who did it.
	By string `json:"by"`
	// Action is what was done: release, for instance.
	Action string `json:"action"`
	// Kind and ID are the object's; Type, Class, Owner and the generations are as they were before.
	Kind            ObjectKind `json:"kind,omitempty"`
	ID              string     `json:"id,omitempty"`
	Class           Class      `json:"class,omitempty"`
	Type            string     `json:"type,omitempty"`
	Owner           Owner      `json:"owner,omitzero"`
	Generation      uint64     `json:"generation,omitempty"`
	OwnerGeneration uint64     `json:"owner_generation,omitempty"`
	// Reason is why, in the operator's words.
	Reason string `json:"reason,omitempty"`
	// Outcome is what came of it.
	Outcome string `json:"outcome"`
	// Unknown keeps the fields that this version does not know.
	Unknown map[string]json.RawMessage `json:"-"`
}

type auditFields AuditEntry

var knownAuditFields = jsonkeep.Names(reflect.TypeFor[auditFields]())

// MarshalJSON keeps unknown fields.
func (e AuditEntry) MarshalJSON() ([]byte, error) { return jsonkeep.Encode(auditFields(e), e.Unknown) }

// UnmarshalJSON keeps unknown fields.
func (e *AuditEntry) UnmarshalJSON(data []byte) (err error) {
	*e = AuditEntry{}
	e.Unknown, err = jsonkeep.Decode(data, (*auditFields)(e), knownAuditFields)
	return err
}

// AuditFilter says which entries are meant: those that match every field that is set.
type AuditFilter struct {
	Kind   ObjectKind
	ID     string
	Action string
	By     string
	// Since and Until bound the entries' times, both included.
	Since time.Time
	Until time.Time
	// Limit is the most entries to return, the newest ones. 0 means 100; at most MaxAudits.
	Limit int
}

func (f AuditFilter) matches(e *AuditEntry) bool {
	return (f.Kind == "" || f.Kind == e.Kind) && (f.ID == "" || f.ID == e.ID) && (f.Action == "" || f.Action == e.Action) &&
		(f.By == "" || f.By == e.By) && !e.Time.Before(f.Since) && (f.Until.IsZero() || !e.Time.After(f.Until))
}

// Audit writes an entry into the bucket SUPERVISE, where it stays for retention (whole seconds, 1 s to 10 years).
//
// Errors are *outcome.Error: InvalidOperation for a retention that is not allowed, CapacityExceeded above MaxAudit,
// Unavailable when the store does not answer (Unknown when the entry may have been written).
func (s *Store) Audit(ctx context.Context, e AuditEntry, retention time.Duration) error {
	if retention < time.Second || retention > MaxAuditRetention {
		return refused("audit", e.Action, fmt.Errorf("retention %v is not allowed: it must be between 1s and %v", retention, MaxAuditRetention))
	}
	e.V, e.Op = wire.SchemaVersion, nuid.Next()
	if e.Time.IsZero() {
		e.Time = now()
	}
	value, err := e.MarshalJSON()
	if err != nil {
		return refused("audit", e.Action, err)
	}
	if len(value) > MaxAudit {
		return outcome.New("audit", outcome.CapacityExceeded, outcome.NotAccepted, e.Action,
			fmt.Sprintf("the entry has %d bytes, at most %d are allowed", len(value), MaxAudit))
	}
	// The time in the key is for people who list keys; the order is that of the revisions.
	key := auditPrefix + e.Time.UTC().Format("20060102T150405Z") + "." + e.Op
	_, err = s.write(ctx, write{bucket: s.supervise, key: key, value: value, opID: e.Op, ttl: retention})
	return err
}

// Audits returns the newest entries that match the filter, the oldest of them first. It reads all that are kept, one
// answer at a time.
//
// Errors are *outcome.Error: InvalidOperation for a limit that is not allowed, Unavailable when the store does not
// answer.
func (s *Store) Audits(ctx context.Context, f AuditFilter) ([]AuditEntry, error) {
	if f.Limit == 0 {
		f.Limit = 100
	}
	if f.Limit < 1 || f.Limit > MaxAudits {
		return nil, refused("audits of", fmt.Sprintf("mesh %q", s.mesh), fmt.Errorf("limit %d is not allowed: it must be 1 to %d", f.Limit, MaxAudits))
	}
	var found []AuditEntry
	_, err := s.walk(ctx, s.supervise, 0, true, func(m *storedMsg) bool {
		var e AuditEntry
		if !strings.HasPrefix(m.key, auditPrefix) || m.deleted() || e.UnmarshalJSON(m.value) != nil || !f.matches(&e) {
			return true
		}
		if len(found) == 2*f.Limit { // drop the older half at once
			found = append(found[:0], found[f.Limit:]...)
		}
		found = append(found, e)
		return true
	})
	if err != nil {
		return nil, err
	}
	return found[max(0, len(found)-f.Limit):], nil
}
