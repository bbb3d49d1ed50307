package supervise

import (
	"context"
	"errors"
	"fmt"
	"time"

	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// The actions that a Marker is usually for. Any other text of 1 to 64 bytes is allowed.
const (
	ActionDrain       = "drain"
	ActionRelocate    = "relocate"
	ActionShutdown    = "shutdown"
	ActionUpgrade     = "upgrade"
	ActionMaintenance = "maintenance"
)

// MaxMarker is how long a marker may hold; whoever needs longer puts it again.
const MaxMarker = 7 * 24 * time.Hour

// Marker says that a worker will look broken for a while because somebody means it to (SV-16). Until it expires, monitors
// neither restart the worker nor alert about it, and what they had begun to time is forgotten: "this is me, not a new
// incident".
type Marker struct {
	V      int    `json:"v"`
	Worker string `json:"worker"`
	Action string `json:"action"`
	By     string `json:"by"`
	Reason string `json:"reason,omitempty"`
	// Since and Until are on the store's clock. PutMarker fills in a Since that is zero.
	Since time.Time `json:"since"`
	Until time.Time `json:"until"`
}

func (m Marker) validate(now time.Time) error {
	var errs []error
	if _, err := escape(m.Worker); err != nil {
		errs = append(errs, err)
	}
	for field, text := range map[string]string{"Action": m.Action, "By": m.By} {
		if most := map[string]int{"Action": 64, "By": 256}[field]; len(text) < 1 || len(text) > most {
			errs = append(errs, fmt.Errorf("%s %.80q is not allowed: it must have 1 to %d bytes", field, text, most))
		}
	}
	if len(m.Reason) > maxReason {
		errs = append(errs, fmt.Errorf("Reason of %d bytes is not allowed: at most %d", len(m.Reason), maxReason))
	}
	if left := m.Until.Sub(now); left <= 0 || left > MaxMarker {
		errs = append(errs, fmt.Errorf("Until %v is not allowed: it must be after now (%v on the store's clock), by at most %v",
			m.Until.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339), MaxMarker))
	}
	return errors.Join(errs...)
}

// maxReason bounds what a person gives as a reason, in bytes.
const maxReason = 1000

// PutMarker writes the marker of m.Worker, over one that is there already, and returns once the store has taken it: every
// decision to restart that is made after that honours it. The store removes it by itself soon after m.Until.
//
// Errors are *outcome.Error: InvalidOperation for a marker that is not allowed, Unavailable when the store does not
// answer (Unknown when the marker may have been written).
func PutMarker(ctx context.Context, sh *kvlocation.Shared, m Marker) error {
	now, _, err := sh.Now(ctx)
	if err != nil {
		return err
	}
	if m.Since.IsZero() {
		m.Since = now.UTC().Truncate(time.Millisecond)
	}
	if err := m.validate(now); err != nil {
		return outcome.Wrap("put marker", outcome.InvalidOperation, outcome.NotAccepted, fmt.Sprintf("worker %.80q", m.Worker), "", err)
	}
	m.V = schemaVersion
	token, _ := escape(m.Worker)
	return put(ctx, sh, markerPrefix+token, encode(m), seconds(m.Until.Sub(now)))
}

// ClearMarker removes the marker of a worker; that there is none is no error. Errors are those of PutMarker.
func ClearMarker(ctx context.Context, sh *kvlocation.Shared, worker string) error {
	token, err := escape(worker)
	if err != nil {
		return noWorker("clear marker", err)
	}
	return remove(ctx, sh, markerPrefix+token)
}

// MarkerOf returns the marker of a worker, as it is now; one that ended less than a second ago may still be there. ok is false
// when there is none. Errors are *outcome.Error: InvalidOperation for an ID that is not allowed, Unavailable when the store does
// not answer.
func MarkerOf(ctx context.Context, sh *kvlocation.Shared, worker string) (m Marker, ok bool, err error) {
	token, err := escape(worker)
	if err != nil {
		return m, false, noWorker("read marker", err)
	}
	e, err := sh.Confirm(ctx, markerPrefix+token)
	switch {
	case errors.Is(err, outcome.NotFound):
		return m, false, nil
	case err != nil:
		return m, false, err
	}
	f := factOf[Marker](e)
	if f == nil {
		return m, false, nil
	}
	return f.value, true, nil
}

// maxTries bounds how often put and remove begin again because somebody else wrote the key.
const maxTries = 8

// put writes a key whatever it holds. Who writes last wins.
func put(ctx context.Context, k keys, key string, value []byte, ttl time.Duration) error {
	at, err := k.Get(ctx, key)
	for range maxTries {
		if err != nil && !errors.Is(err, outcome.NotFound) {
			return err
		}
		if _, err = k.Update(ctx, at, value, ttl); !errors.Is(err, kvlocation.ErrConflict) {
			return err
		}
		at, err = k.Confirm(ctx, key)
	}
	return err
}

// remove deletes a key whatever it holds.
func remove(ctx context.Context, k keys, key string) error {
	at, err := k.Confirm(ctx, key)
	for range maxTries {
		switch {
		case errors.Is(err, outcome.NotFound):
			return nil
		case err != nil:
			return err
		}
		if err = k.Delete(ctx, at); !errors.Is(err, kvlocation.ErrConflict) {
			return err
		}
		at, err = k.Confirm(ctx, key)
	}
	return err
}
