package reference

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"time"

	"natsfabric/outcome"
)

// The bounds of a ledger.
const (
	// MaxEntries and MaxEntryBytes (of all data) bound what one ledger holds: more is refused with CapacityExceeded.
	MaxEntries    = 100_000
	MaxEntryBytes = 64 << 20
	// MaxData bounds the data of one entry, in bytes, MaxClient the name of its client.
	MaxData   = 64 << 10
	MaxClient = 255
	// MaxLimit is the default and the greatest limit of a read. A reply holds fewer entries where these would have more
	// than 256 KiB of JSON.
	MaxLimit = 500
	// MaxLedgerSleep bounds ms of a sleep, and after_ms of a timer.
	MaxLedgerSleep = 10 * time.Minute
	// MaxResources bounds the resources that the guarded writes at one node may name.
	MaxResources = 1024
)

// pageBytes bounds the entries of one reply to a read, after the first one.
const pageBytes = 256 << 10

// ledgerRequest is the payload of a request to a ledger.
type ledgerRequest struct {
	Op string `json:"op"`

	// append, timer and, without the first two, push
	Client string `json:"client"`
	Seq    int64  `json:"seq"`
	Data   string `json:"data"`

	// read
	From  int `json:"from"`
	Limit int `json:"limit"`

	MS      int64 `json:"ms"`       // sleep
	AfterMS int64 `json:"after_ms"` // timer

	// guard
	Resource string `json:"resource"`
	Value    string `json:"value"`
}

const ledgerForm = `the payload must be a JSON object like {"op":"append","client":"c1","seq":1,"data":"x"}`

const ledgerOps = "append, read, sleep, timer, push, panic or guard"

// parseLedger reads a request and checks its fields.
func parseLedger(data []byte) (ledgerRequest, error) {
	var r ledgerRequest
	if err := decode(data, &r); err != nil {
		return r, outcome.Wrap("ledger", outcome.InvalidOperation, outcome.Accepted, "", ledgerForm, err)
	}
	switch r.Op {
	case "append", "timer", "push":
		switch {
		case len(r.Data) > MaxData:
			return r, tooMuch("data of %d bytes is too large: an entry takes %d", len(r.Data), MaxData)
		case len(r.Client) > MaxClient:
			return r, tooMuch("client of %d bytes is too large: it may have %d", len(r.Client), MaxClient)
		case r.Op == "timer":
			return r, inRange("after_ms", r.AfterMS, 0, MaxLedgerSleep.Milliseconds())
		}
	case "read":
		if r.Limit == 0 {
			r.Limit = MaxLimit
		}
		if err := inRange("from", int64(r.From), 0, MaxEntries); err != nil {
			return r, err
		}
		return r, inRange("limit", int64(r.Limit), 1, MaxLimit)
	case "sleep":
		return r, inRange("ms", r.MS, 0, MaxLedgerSleep.Milliseconds())
	case "guard":
		switch {
		case r.Resource == "":
			return r, invalid(`a guard needs a resource, like {"op":"guard","resource":"r","value":"x"}`)
		case len(r.Resource) > MaxClient:
			return r, tooMuch("resource of %d bytes is too large: it may have %d", len(r.Resource), MaxClient)
		case len(r.Value) > MaxData:
			return r, tooMuch("value of %d bytes is too large: it may have %d", len(r.Value), MaxData)
		}
	case "panic":
	case "":
		return r, invalid("the op is missing: it must be " + ledgerOps)
	default:
		return r, invalid(fmt.Sprintf("unknown op %.40q: it must be %s", r.Op, ledgerOps))
	}
	return r, nil
}

// decode reads a payload that must be one JSON object with known fields, and says what is wrong in JSON's terms.
func decode(data []byte, into any) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	err := dec.Decode(into)
	var kind *json.UnmarshalTypeError
	switch {
	case err == nil:
		if _, more := dec.Token(); !errors.Is(more, io.EOF) {
			return errors.New("something follows the object")
		}
		return nil
	case errors.Is(err, io.EOF):
		return errors.New("it is empty")
	case errors.As(err, &kind) && kind.Field == "":
		return fmt.Errorf("it is of the JSON type %s", kind.Value)
	case errors.As(err, &kind) && kind.Type.Kind() == reflect.String:
		return fmt.Errorf("%s must be a string, not a %s", kind.Field, kind.Value)
	case errors.As(err, &kind):
		return fmt.Errorf("%s must be a whole number, not a %s", kind.Field, kind.Value)
	}
	return err
}

func invalid(text string) error {
	return outcome.New("ledger", outcome.InvalidOperation, outcome.Accepted, "", text)
}

func tooMuch(format string, args ...any) error {
	return outcome.New("ledger", outcome.CapacityExceeded, outcome.Accepted, "", fmt.Sprintf(format, args...))
}

func inRange(field string, v, lo, hi int64) error {
	if v < lo || v > hi {
		return outcome.New("ledger", outcome.InvalidOperation, outcome.Accepted, "",
			fmt.Sprintf("%s %d is not allowed: it must be %d to %d", field, v, lo, hi))
	}
	return nil
}
