package supervise

import (
	"context"
	"errors"
	"fmt"
	"time"

	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// MaxMaintenance is how long a maintenance, or a pause with an Until, may last; whoever needs longer puts it again.
const MaxMaintenance = 7 * 24 * time.Hour

// SetControl pauses the automation for all workers, or puts them under maintenance (which needs an Until), in place of what
// there was. It returns once the store has taken it: every restart that is decided after that honours it. What was being
// timed is forgotten, so that a resume restarts nobody at once. A zero Since is filled in. By must have 1 to 256 bytes, Reason 1
// to 1,000.
//
// Errors are *outcome.Error: InvalidOperation for a control that is not allowed, Unavailable when the store does not
// answer (Unknown when it may have been written).
func SetControl(ctx context.Context, sh *kvlocation.Shared, c Control) error {
	now, _, err := sh.Now(ctx)
	if err != nil {
		return err
	}
	if c.Since.IsZero() {
		c.Since = now.UTC().Truncate(time.Millisecond)
	}
	if err := c.validate(now); err != nil {
		return outcome.Wrap("set control", outcome.InvalidOperation, outcome.NotAccepted, "supervision", "", err)
	}
	c.V = schemaVersion
	var ttl time.Duration
	if !c.Until.IsZero() {
		ttl = seconds(c.Until.Sub(now))
	}
	return put(ctx, sh, controlKey, encode(c), ttl)
}

func (c Control) validate(now time.Time) error {
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if c.Mode != Paused && c.Mode != UnderMaintenance {
		wrong("Mode %q is not allowed: it must be %q or %q", c.Mode, Paused, UnderMaintenance)
	}
	if len(c.By) < 1 || len(c.By) > 256 {
		wrong("By %.80q is not allowed: it must have 1 to 256 bytes", c.By)
	}
	if len(c.Reason) < 1 || len(c.Reason) > maxReason {
		wrong("Reason %.80q is not allowed: it must have 1 to %d bytes", c.Reason, maxReason)
	}
	left := c.Until.Sub(now)
	switch {
	case c.Until.IsZero() && c.Mode == UnderMaintenance:
		wrong("Until is missing: a maintenance ends by itself, after at most %v", MaxMaintenance)
	case !c.Until.IsZero() && (left <= 0 || left > MaxMaintenance):
		wrong("Until %s is not allowed: it must be after now (%s on the store's clock), by at most %v", stamp(c.Until), stamp(now), MaxMaintenance)
	}
	return errors.Join(errs...)
}

// ClearControl resumes the automation. was is what was in force; nil when nothing was. Errors are those of SetControl.
func ClearControl(ctx context.Context, sh *kvlocation.Shared) (was *Control, err error) {
	if was, err = GetControl(ctx, sh); err != nil {
		return nil, err
	}
	return was, remove(ctx, sh, controlKey)
}

// GetControl returns what is in force, nil for nothing; what ended less than a second ago may still be there. Errors are *outcome.Error: Unavailable when the store does not
// answer.
func GetControl(ctx context.Context, sh *kvlocation.Shared) (*Control, error) {
	f, err := readFact[Control](ctx, sh.Confirm, controlKey)
	if err != nil || f == nil {
		return nil, err
	}
	return &f.value, nil
}
