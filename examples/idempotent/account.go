package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"natsfabric/kvlocation"
	"natsfabric/objects"
	"natsfabric/outcome"
)

const (
	accountType = "account"
	bucket      = "accounts"
	// rememberedKeys bounds the keys that an account remembers. A caller must not repeat an operation later than
	// the account has done so many others.
	rememberedKeys = 1000
)

// request is what an account is asked: to deposit, or what has become of a deposit.
type request struct {
	Op     string `json:"op"` // deposit or result
	Key    string `json:"key"`
	Amount int64  `json:"amount,omitempty"`
}

// result is what came of an operation. Done is false for a key that the account does not know.
type result struct {
	Done     bool  `json:"done"`
	Repeated bool  `json:"repeated,omitempty"` // it was done by an earlier request
	Balance  int64 `json:"balance"`            // after the operation
}

// record is an account in its bucket. The balance and the keys change in one write, so they never disagree.
type record struct {
	Balance int64     `json:"balance"`
	Done    []doneKey `json:"done"` // the oldest first
}

type doneKey struct {
	Key     string `json:"key"`
	Balance int64  `json:"balance"`
}

func (r record) find(key string) (doneKey, bool) {
	i := slices.IndexFunc(r.Done, func(d doneKey) bool { return d.Key == key })
	if i < 0 {
		return doneKey{}, false
	}
	return r.Done[i], true
}

// account is the Actor. Its state is what its record holds; the write by revision keeps an earlier owner, which does not
// know yet that it is one, from overwriting a later owner's record.
type account struct {
	kv       jetstream.KeyValue
	answers  *answers
	state    record
	revision uint64
	stale    bool // a write's result is not known: the record must be read before the next turn
}

// Activate loads the account before its first turn, at every owner.
func (a *account) Activate(ctx context.Context, self *objects.Self) error {
	return a.load(ctx, self.ID())
}

func (a *account) load(ctx context.Context, id string) error {
	entry, err := a.kv.Get(ctx, id)
	a.state, a.revision = record{}, 0
	switch {
	case errors.Is(err, jetstream.ErrKeyNotFound):
	case err != nil:
		return err
	default:
		a.revision = entry.Revision()
		if err := json.Unmarshal(entry.Value(), &a.state); err != nil {
			return err
		}
	}
	a.stale = false
	return nil
}

// Handle runs one request.
func (a *account) Handle(ctx context.Context, req *objects.Request) (objects.Reply, error) {
	var r request
	if err := json.Unmarshal(req.Data(), &r); err != nil || r.Key == "" {
		return objects.Reply{}, outcome.Wrap("account", outcome.InvalidOperation, outcome.Accepted, "", "a request needs op and key", err)
	}
	if a.stale {
		if err := a.load(ctx, req.Self().ID()); err != nil {
			return objects.Reply{}, err
		}
	}
	var res result
	known, done := a.state.find(r.Key)
	switch {
	case done:
		res = result{Done: true, Repeated: true, Balance: known.Balance}
	case r.Op == "deposit":
		if err := a.deposit(ctx, req.Self().ID(), r); err != nil {
			return objects.Reply{}, err
		}
		res = result{Done: true, Balance: a.state.Balance}
	}
	a.answers.delay()
	data, err := json.Marshal(res)
	return objects.Reply{Data: data}, err
}

// deposit writes balance and key at once.
func (a *account) deposit(ctx context.Context, id string, r request) error {
	next := record{Balance: a.state.Balance + r.Amount}
	next.Done = append(slices.Clone(a.state.Done), doneKey{r.Key, next.Balance})
	next.Done = next.Done[max(0, len(next.Done)-rememberedKeys):]
	data, err := json.Marshal(next)
	if err != nil {
		return err
	}
	revision, err := a.kv.Update(ctx, id, data, a.revision) // revision 0: only if there is none
	if err != nil {
		a.stale = true // it may have been written all the same
		return fmt.Errorf("account %q was not written for certain: %w", id, err)
	}
	a.state, a.revision = next, revision
	return nil
}

// accounts is the type of the Actors whose records are in kv.
func accounts(kv jetstream.KeyValue, answers *answers) objects.Type {
	return objects.Type{
		Name: accountType, Class: kvlocation.ClassActor,
		New: func(context.Context, *objects.Self, []byte) (objects.Object, error) {
			return &account{kv: kv, answers: answers}, nil
		},
	}
}

// answers can hold one answer back, after the work is done: what a caller sees when a network is slow.
type answers struct{ next atomic.Int64 }

func (d *answers) delayNext(by time.Duration) { d.next.Store(int64(by)) }

func (d *answers) delay() {
	if by := d.next.Swap(0); by > 0 {
		time.Sleep(time.Duration(by))
	}
}
