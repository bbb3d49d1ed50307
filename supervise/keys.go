package supervise

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"natsfabric/internal/wire"
	"natsfabric/kvlocation"
)

// The keys in the bucket SUPERVISE. <w> is the worker's ID, escaped into one token.
//
//	worker.<w>                    Record        what the worker says of itself
//	marker.<w>                    Marker        a planned action that makes it look broken
//	incident.<w>.case             Incident      the incident, and the restarts of the last day: breaker, cooldown, intent
//	incident.<w>.sight            sighting      when a verdict was first seen
//	incident.<w>.timer            timer         since when a confirmed verdict lasts
//	incident.<w>.lock             lock          who works on the worker now
//	incident.<w>.alert.<what>     delivery      who tells, and who was told
//	logs.<w>                      Logs          what was collected last
//	event.<w>.<incident>.<what>   Event         each decision, with its reason
//	fleet.control                 Control       a pause, or maintenance
//	fleet.budget                  budget        the restarts of all workers in the last window
//	fleet.alert.<what>            delivery
const (
	workerPrefix   = "worker."
	markerPrefix   = "marker."
	incidentPrefix = "incident."
	logsPrefix     = "logs."
	eventPrefix    = "event."

	controlKey  = "fleet.control"
	budgetKey   = "fleet.budget"
	fleetPrefix = "fleet."
)

// schemaVersion is the v of every value that this package writes.
const schemaVersion = 1

// keys is what this package needs of the shared keys. *kvlocation.Shared is the one outside tests.
type keys interface {
	Create(ctx context.Context, key string, value []byte, ttl time.Duration) (kvlocation.SharedEntry, error)
	Update(ctx context.Context, at kvlocation.SharedEntry, value []byte, ttl time.Duration) (kvlocation.SharedEntry, error)
	Delete(ctx context.Context, at kvlocation.SharedEntry) error
	Get(ctx context.Context, key string) (kvlocation.SharedEntry, error)
	Confirm(ctx context.Context, key string) (kvlocation.SharedEntry, error)
	ConfirmAll(ctx context.Context, keys ...string) ([]kvlocation.SharedEntry, error)
	List(ctx context.Context, prefix string, f func(kvlocation.SharedEntry) bool) error
	Now(ctx context.Context) (now time.Time, bound time.Duration, err error)
	Epoch() uint64
}

var _ keys = (*kvlocation.Shared)(nil)

// maxToken bounds a worker's ID once it is escaped, so that every key of the worker fits.
const maxToken = 200

// escape returns the token of a worker's ID, or an error that names the field.
func escape(worker string) (string, error) {
	token, err := wire.EscapeID(worker)
	if err != nil || len(token) > maxToken {
		return "", fmt.Errorf("Worker %.80q is not allowed: it must be valid UTF-8 of at least one byte, and of at most %d where A-Z, a-z, 0-9, _ and - count one and all others three", worker, maxToken)
	}
	return token, nil
}

// unescape is the inverse of escape. ok is false for what is no worker's token.
func unescape(token string) (worker string, ok bool) {
	worker, err := wire.UnescapeID(token)
	return worker, err == nil
}

// splitKey cuts <prefix><w>[.<rest>] and returns the worker and the rest.
func splitKey(key, prefix string) (worker, rest string, ok bool) {
	token, rest, _ := strings.Cut(strings.TrimPrefix(key, prefix), ".")
	worker, ok = unescape(token)
	return worker, rest, ok
}

// fact is a value of a shared key as it was read.
type fact[T any] struct {
	value T
	// time is the server's time of the write, on the store's clock.
	time time.Time

	at kvlocation.SharedEntry
}

// revision is the key's revision.
func (f *fact[T]) revision() uint64 { return f.at.Revision }

// factOf reads an entry, nil for one that holds nothing. A value that is no JSON of its kind reads as the zero value,
// which every rule takes as "begin anew", so that whoever writes the key next replaces it.
func factOf[T any](e kvlocation.SharedEntry) *fact[T] {
	if !e.Exists() {
		return nil
	}
	f := &fact[T]{time: e.Time, at: e}
	decode := func(data []byte) error { return json.Unmarshal(data, &f.value) }
	if d, ok := any(&f.value).(interface{ decode([]byte) error }); ok {
		decode = d.decode
	}
	if decode(e.Value) != nil {
		f.value = *new(T)
	}
	return f
}

// seconds rounds a TTL up to what the store takes.
func seconds(d time.Duration) time.Duration {
	return max(time.Second, (d + time.Second - 1).Truncate(time.Second))
}

// encode returns a value's JSON. The package's own types always have one.
func encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("supervise: %T has no JSON: %v", v, err))
	}
	return b
}

// clip cuts a text to a number of bytes, at a whole character.
func clip(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "")
}
