package kvlocation

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"
)

// JetStream's error codes that a write distinguishes. All but the first mean "again".
const (
	codeWrongLastSequence = 10071 // names the key's last sequence
	codeNotAvailable      = 10008 // no leader
	codeNoResources       = 10023 // the server is out of memory or disk
	codeNoStorage         = 10047
	codeStoreFailed       = 10077
	codeDuplicateInFlight = 10158 // the same message ID is being stored
	codeKeyInFlight       = 10164 // another write of the key is being stored; names no sequence
	codeTooMany           = 10167
)

// pubAck is the server's answer to a write.
type pubAck struct {
	seq     uint64 // stored at, or the sequence that a codeWrongLastSequence names
	code    int
	err     error
	nobody  bool // the sending reached nobody (503)
	refused bool // sending it again would not help
}

var errNoResponders = errors.New("nobody takes writes of the stream (503)")

// parseAck reads an answer. The frequent one, {"stream":"...","seq":N,"duplicate":true}, costs no allocation.
func parseAck(m *nats.Msg) pubAck {
	if statusOf(m) == "503" {
		return pubAck{err: errNoResponders, nobody: true}
	}
	if seq, ok := parseStored(m.Data); ok {
		return pubAck{seq: seq}
	}
	var a struct {
		Seq   uint64         `json:"seq"`
		Error *nats.APIError `json:"error"`
	}
	if err := json.Unmarshal(m.Data, &a); err != nil || (a.Error == nil && a.Seq == 0) {
		return pubAck{err: fmt.Errorf("cannot read the server's answer %q", cut(m.Data))}
	}
	if a.Error == nil {
		return pubAck{seq: a.Seq}
	}
	ack := pubAck{code: int(a.Error.ErrorCode), err: a.Error}
	switch ack.code {
	case codeWrongLastSequence:
		// The text ends in the sequence: "wrong last sequence: 9".
		n, err := strconv.ParseUint(a.Error.Description[strings.LastIndexByte(a.Error.Description, ' ')+1:], 10, 64)
		if err != nil {
			return pubAck{err: a.Error}
		}
		ack.seq = n
	case codeNotAvailable, codeNoResources, codeNoStorage, codeStoreFailed, codeDuplicateInFlight, codeKeyInFlight, codeTooMany:
	default:
		ack.refused = true
	}
	return ack
}

// parseStored reads {"stream":"...","seq":N followed by anything but an error.
func parseStored(b []byte) (uint64, bool) {
	const head, mid = `{"stream":"`, `"seq":`
	if !bytes.HasPrefix(b, []byte(head)) || bytes.Contains(b, []byte(`"error"`)) {
		return 0, false
	}
	i := bytes.Index(b, []byte(mid))
	if i < 0 {
		return 0, false
	}
	digits := bytes.TrimLeft(b[i+len(mid):], " ")
	var n uint64
	for len(digits) > 0 && digits[0] >= '0' && digits[0] <= '9' {
		if n >= 1<<59 {
			return 0, false // left to the JSON decoder
		}
		n = n*10 + uint64(digits[0]-'0')
		digits = digits[1:]
	}
	return n, n > 0
}

func cut(b []byte) []byte { return b[:min(len(b), 120)] }
