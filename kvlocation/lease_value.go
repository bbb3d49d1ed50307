package kvlocation

import (
	"encoding/json"
	"fmt"
	"time"
)

// leaseValue is the JSON value of lease.<rid>. The key exists for as long as somebody holds it: the server removes it
// when its TTL passes without a renewal.
type leaseValue struct {
	// V is the schema version.
	V int `json:"v"`
	// RID is the node's name, as in the key.
	RID string `json:"rid"`
	// Lifecycle is the process run that holds the lease: the revision of the first lease that it created. It is
	// left out of that first one, whose own revision it is.
	Lifecycle uint64 `json:"lifecycle,omitempty"`
	// Generation is the revision at which the present lease was created; left out of that one.
	Generation uint64 `json:"generation,omitempty"`
	// Proof, instead of a lifecycle, names who holds the key to prove that a process run is gone.
	Proof string `json:"proof,omitempty"`
	// Gone is the lifecycle that the proof is about.
	Gone uint64 `json:"gone,omitempty"`
	// Host is where the process runs, for people.
	Host string `json:"host,omitempty"`
	// TTLMillis is the lease's TTL in milliseconds.
	TTLMillis int64 `json:"ttl_ms"`
	// Since is when the present holder came, on its own wall clock.
	Since time.Time `json:"since"`
	// Write counts the holder's writes of the key.
	Write uint64 `json:"write"`
	// Ops lists the operation IDs of its last eight writes, the newest last.
	Ops []string `json:"ops"`
}

// next returns the value of the holder's next write.
func (v leaseValue) next(opID string) leaseValue {
	v.Write++
	ops := v.Ops
	if len(ops) >= maxOps {
		ops = ops[len(ops)-maxOps+1:]
	}
	v.Ops = append(append(make([]string, 0, len(ops)+1), ops...), opID)
	return v
}

func (v leaseValue) encode() []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic("kvlocation: lease value: " + err.Error()) // strings, numbers and a time
	}
	return b
}

// LeaseState is one node's lease as it was read.
type LeaseState struct {
	RID string
	// Live is true while a process run of the RID holds the key.
	Live bool
	// Lifecycle and Generation are those of the holder, when Live.
	Lifecycle, Generation uint64
	// Proof names who holds the key, instead of the node, to prove that a process run is gone.
	Proof string
	// Revision is that of the key's last message; 0 when it has none.
	Revision uint64
	// Renewed is when the last renewal was stored, on the store's clock.
	Renewed time.Time
	// Since is when the holder came, on its own wall clock.
	Since time.Time
	// Host is where the holder runs, if it says so.
	Host string
	// TTL is the lease's.
	TTL time.Duration
}

// held reports whether anybody holds the key.
func (s LeaseState) held() bool { return s.Live || s.Proof != "" }

// leaseState reads the last message of a lease key; m is nil when it has none.
func leaseState(rid string, m *storedMsg) (LeaseState, leaseValue, error) {
	st := LeaseState{RID: rid}
	var v leaseValue
	if m == nil {
		return st, v, nil
	}
	st.Revision = m.revision
	if m.deleted() {
		return st, v, nil
	}
	if err := json.Unmarshal(m.value, &v); err != nil {
		return st, v, fmt.Errorf("the value of lease.%s at revision %d cannot be read: %w", rid, m.revision, err)
	}
	st.Renewed, st.Since, st.Host = m.time, v.Since, v.Host
	st.TTL = time.Duration(v.TTLMillis) * time.Millisecond
	if v.Proof != "" {
		st.Proof = v.Proof
		return st, v, nil
	}
	st.Live, st.Lifecycle, st.Generation = true, v.Lifecycle, v.Generation
	if st.Lifecycle == 0 {
		st.Lifecycle = m.revision
	}
	if st.Generation == 0 {
		st.Generation = m.revision
	}
	return st, v, nil
}

func leaseKey(rid string) string { return "lease." + rid }
func descKey(rid string) string  { return "desc." + rid }
