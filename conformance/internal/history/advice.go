package history

import (
	"errors"
	"fmt"
	"regexp"

	"natsfabric/outcome"
)

// advice matches words that tell a caller to issue the operation again.
var advice = regexp.MustCompile(`(?i)\b(retry|retries|retrying|try (it )?(again|later)|repeat (it|the)|resend|resubmit|send (it )?again)\b`)

func asOutcome(err error) (*outcome.Error, bool) {
	var e *outcome.Error
	ok := errors.As(err, &e)
	return e, ok
}

func noAdvice(e *Evidence) (broken []string) {
	for i := range e.Ops {
		op := &e.Ops[i]
		if op.Err == nil {
			continue
		}
		oe, ok := asOutcome(op.Err)
		switch {
		case !ok:
			broken = append(broken, fmt.Sprintf("operation %s: %T (%v) says neither kind nor acceptance", op.ID, op.Err, op.Err))
		case !oe.Kind.Valid():
			broken = append(broken, fmt.Sprintf("operation %s: %v has no valid kind", op.ID, op.Err))
		case advice.MatchString(op.Err.Error()):
			broken = append(broken, fmt.Sprintf("operation %s: %v gives advice", op.ID, op.Err))
		}
	}
	return broken
}
