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
	partCargo = "cargo" // what was captured, or where to fetch it
	partCut   = "cut"   // S has accepted: the cutover marker, with what was held
	partHeld  = "held-" // and the message's number: a hold that has no room in the marker's part
)

// version is that of the messages and parts; another one is refused.
const version = 2

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

// marker is the cutover: S has accepted, and Held messages were published with it, or before it.
type marker struct {
	V        int    `json:"v"`
	Revision uint64 `json:"revision"`
	Held     uint64 `json:"held"`
	// Sizes are those of the held messages that follow it, in bytes.
	Sizes []int `json:"sizes,omitempty"`
	// Record is the record at Revision, so that the commit needs no read.
	Record json.RawMessage `json:"record"`
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func checksum(data []byte) uint32 { return crc32.Checksum(data, castagnoli) }

// encode makes a message of a head and what follows it: length of the head, head, bodies.
func encode(head any, bodies ...[]byte) ([]byte, error) {
	h, err := json.Marshal(head)
	if err != nil {
		return nil, err
	}
	size := 4 + len(h)
	for _, b := range bodies {
		size += len(b)
	}
	b := binary.BigEndian.AppendUint32(make([]byte, 0, size), uint32(len(h)))
	b = append(b, h...)
	for _, body := range bodies {
		b = append(b, body...)
	}
	return b, nil
}

// decode reads the head of such a message and returns what follows. The error is a ProtocolError that names the message.
func decode(b []byte, what string, head any) (rest []byte, err error) {
	if len(b) < 4 || uint64(binary.BigEndian.Uint32(b)) > uint64(len(b)-4) {
		return nil, unreadable(what, "is cut off")
	}
	n := 4 + int(binary.BigEndian.Uint32(b))
	if err := json.Unmarshal(b[4:n], head); err != nil {
		return nil, unreadable(what, "cannot be read: "+err.Error())
	}
	return b[n:], nil
}

func unreadable(what, why string) error {
	return outcome.New("move", outcome.ProtocolError, outcome.NotAccepted, "", "the "+what+" "+why)
}

// decodeCargo reads what S hands over.
func decodeCargo(b []byte) (m manifest, inline []byte, err error) {
	const what = "cargo"
	inline, err = decode(b, what, &m)
	switch {
	case err != nil:
	case m.V != version:
		err = unreadable(what, fmt.Sprintf("has version %d, this program knows %d", m.V, version))
	case m.Size < 0 || m.Size > kvlocation.MaxBulk:
		err = unreadable(what, fmt.Sprintf("speaks of %d bytes", m.Size))
	case m.Bulk != nil && m.Bulk.Size != m.Size:
		err = unreadable(what, fmt.Sprintf("speaks of %d bytes, and of %d in chunks", m.Size, m.Bulk.Size))
	}
	return m, inline, err
}

// decodeMarker reads the cutover and the held messages in it.
func decodeMarker(b []byte) (m marker, held [][]byte, err error) {
	const what = "cutover marker"
	rest, err := decode(b, what, &m)
	switch {
	case err != nil:
		return m, nil, err
	case m.V != version:
		return m, nil, unreadable(what, fmt.Sprintf("has version %d, this program knows %d", m.V, version))
	}
	for _, n := range m.Sizes {
		if n < 0 || n > len(rest) {
			return m, nil, unreadable(what, "is cut off")
		}
		held, rest = append(held, rest[:n:n]), rest[n:]
	}
	return m, held, nil
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
