package relocate

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"strconv"
	"strings"

	"natsfabric/kvlocation"
	"natsfabric/objects"
	"natsfabric/outcome"
)

// serviceName is the token of the protocol between source and target in their subjects:
// fab.<mesh>.node.<rid>.<lifecycle>.mv.<verb>.<operation ID>.
const serviceName = "mv"

// The verbs. docs/relocation.md lists them with the relay's parts: they are the steps at which tests strike.
const (
	verbReserve   = "reserve"   // S asks T for a place; the answer is T's agreement
	verbReady     = "ready"     // S asks for relay-ready; the answer comes once the unit is restored, or has failed
	verbCancel    = "cancel"    // S tells T that it has given the move up: a reason to look at the record
	verbCommitted = "committed" // T tells S the commit's h; the answer says that S knows it
)

// The names of the relay's parts.
const (
	partCargo = "cargo"
	partHeld  = "held-" // and the message's number
	partCut   = "cut"
)

// version is that of the messages and parts; another one is refused.
const version = 1

// reservation asks for a place.
type reservation struct {
	V    int          `json:"v"`
	Unit objects.Unit `json:"unit"`
	// Source is the process run that asks.
	Source kvlocation.Owner `json:"source"`
	// Version is the application version that the target must have, Wave a maintenance wave that it must not have; both are
	// empty when the caller named the target.
	Version string `json:"version,omitempty"`
	Wave    string `json:"wave,omitempty"`
	Named   bool   `json:"named,omitempty"`
	// Millis is how long the place is kept.
	Millis int64 `json:"ms"`
}

// answer is T's, to reserve and ready: the lease generation under which it agrees, or why it does not.
type answer struct {
	V      int    `json:"v"`
	Lease  uint64 `json:"lease,omitempty"`
	Reason Reason `json:"reason,omitempty"`
	Detail string `json:"detail,omitempty"`
}

// failure is the refusal of a node as an error.
func (a answer) failure(rid string) error {
	return &failure{a.Reason, errors.New("node " + rid + " says: " + a.Detail)}
}

// notice is T's word that it has committed.
type notice struct {
	V               int    `json:"v"`
	H               uint64 `json:"h"`
	OwnerGeneration uint64 `json:"owner_generation"`
	Fallback        bool   `json:"fallback,omitempty"`
}

// manifest stands at the head of the part cargo and says what follows, there or as bulk state.
type manifest struct {
	V int `json:"v"`
	// Prepared is the revision of *preparing*: what L says from below it is stale.
	Prepared uint64 `json:"prepared"`
	// Size and Sum are of the encoded cargo; Bytes, Work, Timers and Objects are what it holds.
	Size    int    `json:"size"`
	Sum     uint32 `json:"sum"`
	Bytes   int    `json:"bytes"`
	Work    int    `json:"work"`
	Timers  int    `json:"timers"`
	Objects int    `json:"objects"`
	// Bulk is where the cargo is when it does not follow.
	Bulk *kvlocation.BulkRef `json:"bulk,omitempty"`
}

// marker is the part cut: S has accepted, and Held messages were published before it.
type marker struct {
	V        int    `json:"v"`
	Revision uint64 `json:"revision"`
	Held     uint64 `json:"held"`
	// Record is the record at Revision, so that the commit needs no read.
	Record json.RawMessage `json:"record"`
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func checksum(data []byte) uint32 { return crc32.Checksum(data, castagnoli) }

// encodeCargo makes the part cargo: length of the manifest, manifest, and what follows.
func encodeCargo(m manifest, inline []byte) ([]byte, error) {
	head, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	b := make([]byte, 0, 4+len(head)+len(inline))
	b = binary.BigEndian.AppendUint32(b, uint32(len(head)))
	b = append(b, head...)
	return append(b, inline...), nil
}

// decodeCargo reads it. The error is a ProtocolError.
func decodeCargo(b []byte) (m manifest, inline []byte, err error) {
	bad := func(why string) error {
		return outcome.New("move", outcome.ProtocolError, outcome.NotAccepted, "", "the part "+partCargo+" "+why)
	}
	if len(b) < 4 {
		return m, nil, bad("is cut off")
	}
	n := binary.BigEndian.Uint32(b)
	b = b[4:]
	if uint64(n) > uint64(len(b)) {
		return m, nil, bad("is cut off")
	}
	if err := json.Unmarshal(b[:n], &m); err != nil {
		return m, nil, bad("cannot be read: " + err.Error())
	}
	if m.V != version {
		return m, nil, bad(fmt.Sprintf("has version %d, this program knows %d", m.V, version))
	}
	if m.Size < 0 || m.Size > kvlocation.MaxBulk {
		return m, nil, bad(fmt.Sprintf("speaks of %d bytes", m.Size))
	}
	return m, b[n:], nil
}

// verify compares a cargo with its manifest.
func (m manifest) verify(data []byte) error {
	if len(data) != m.Size || checksum(data) != m.Sum {
		return outcome.New("move", outcome.DataLost, outcome.NotAccepted, "",
			fmt.Sprintf("what was handed over has %d bytes with checksum %08x, the source says %d with %08x", len(data), checksum(data), m.Size, m.Sum))
	}
	return nil
}

// verifyCounts compares what a cargo holds with its manifest.
func (m manifest) verifyCounts(c *objects.Cargo) error {
	bytes, work, timers, n := c.Counts()
	if bytes != m.Bytes || work != m.Work || timers != m.Timers || n != m.Objects {
		return outcome.New("move", outcome.DataLost, outcome.NotAccepted, "",
			fmt.Sprintf("what was handed over holds %d bytes of state, %d messages, %d timers of %d objects, the source says %d, %d, %d of %d",
				bytes, work, timers, n, m.Bytes, m.Work, m.Timers, m.Objects))
	}
	return nil
}

// heldNumber reads the number of a held part.
func heldNumber(part string) (uint64, bool) {
	digits, ok := strings.CutPrefix(part, partHeld)
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseUint(digits, 10, 64)
	return n, err == nil && n > 0
}
