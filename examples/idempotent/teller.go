package main

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"natsfabric/objects"
	"natsfabric/outcome"
)

// pause is the time between two attempts.
const pause = 50 * time.Millisecond

// teller is a caller that wants its deposits made once, whatever happens to its requests.
type teller struct {
	actors  *objects.Actors
	timeout time.Duration // of one request
	tell    func(format string, args ...any)
}

// deposit returns once the deposit under key is known to be made, or to be refused; or, when ctx ends first, with the
// last error, which says what is known. Whoever calls it again later with the same key goes on where it ended.
func (t *teller) deposit(ctx context.Context, id, key string, amount int64) (result, error) {
	for {
		r, err := t.ask(ctx, id, request{Op: "deposit", Key: key, Amount: amount})
		switch {
		case err == nil:
			return r, nil
		case refused(err):
			return r, err
		case errors.Is(err, outcome.NotAccepted):
			// Nobody has run it and nobody will: it may be sent again, with or without a key.
			t.tell("not accepted, sent again: %v", err)
		default:
			// It may have run, or may still run. The key says which: if its result is known it is done; if not, it
			// is sent again under the same key, which is safe also when the first one runs after all.
			t.tell("it may have run: %v", err)
			if r, err := t.ask(ctx, id, request{Op: "result", Key: key}); err == nil && r.Done {
				t.tell("looked up by its key: it has run")
				return r, nil
			}
		}
		select {
		case <-ctx.Done():
			return r, err
		case <-time.After(pause):
		}
	}
}

// refused reports whether the account itself has answered that it will not: sending the same again changes nothing.
func refused(err error) bool {
	return errors.Is(err, outcome.InvalidOperation) || errors.Is(err, outcome.NotFound) || errors.Is(err, outcome.TypeMismatch)
}

func (t *teller) ask(ctx context.Context, id string, r request) (result, error) {
	data, err := json.Marshal(r)
	if err != nil {
		return result{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, t.timeout)
	defer cancel()
	reply, err := t.actors.Request(ctx, id, data)
	if err != nil {
		return result{}, err
	}
	var res result
	return res, json.Unmarshal(reply.Data, &res)
}
