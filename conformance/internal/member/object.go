package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/nats-io/nuid"

	"natsfabric/conformance/internal/job"
	"natsfabric/conformance/internal/journal"
	"natsfabric/fence"
	"natsfabric/objects"
	"natsfabric/outcome"
	"natsfabric/session"
)

// library makes this process's objects.
type library struct {
	rid     string
	journal *journal.Writer
	gates   string   // the folder of the gates
	guards  sync.Map // by object: all its incarnations in this process write through one
}

// guard is the guard of an object's resource.
func (l *library) guard(object string) *fence.Guard {
	g, _ := l.guards.LoadOrStore(object, fence.NewGuard(object, ""))
	return g.(*fence.Guard)
}

// types are what the node hosts: a Book of each class, and the Actor type Other.
func (l *library) types(capacity int) []objects.Type {
	var types []objects.Type
	for _, t := range []objects.Type{
		{Name: job.Book, Class: "actor"}, {Name: job.Other, Class: "actor"},
		{Name: job.Book, Class: "user_spot"}, {Name: job.Book, Class: "instance_spot"},
		{Name: job.Room, Class: "user_spot", Members: objects.SpotWide},
	} {
		t.New, t.Capacity, t.CreateTimeout = l.make, capacity, time.Minute
		if t.Move = objects.MoveState; t.Name == job.Other {
			t.Move = objects.MoveRecreate
		}
		types = append(types, t)
	}
	return types
}

// book is an object. What it does stands in the journal before it does it.
type book struct {
	lib      *library
	instance string
	input    string // the identity of the creation
	turns    int
	refuses  bool
	spoiled  bool // Restore fails
	ballast  []byte
}

func (b *book) event(self *objects.Self, what journal.What) journal.Event {
	kind := "spot"
	if !self.ActorRef().IsZero() {
		kind = "actor"
	}
	return journal.Event{What: what, Object: job.Object(kind, self.ID()), Class: string(self.Class()), Type: self.Type(),
		Generation: self.Generation(), OwnerGeneration: self.OwnerGeneration(), RID: self.RID(), Lifecycle: self.Lifecycle(),
		Instance: b.instance}
}

// note writes an event and then waits at its gate.
func (b *book) note(e journal.Event) {
	if err := b.lib.journal.Note(e); err != nil {
		fmt.Println("failed", err)
		os.Exit(1) // without a journal nothing that this process does proves anything
	}
	job.GateAt(b.lib.gates, e.Object, e.What).Pass()
}

// begin notes an event, and returns what notes its end.
func (b *book) begin(e journal.Event, end journal.What) func(error) {
	e.Run = nuid.Next()
	b.note(e)
	return func(err error) {
		e.What, e.How = end, "done"
		if err != nil {
			e.How = err.Error()
		}
		b.note(e)
	}
}

// tokenText is the token of a context, or why there is none.
func tokenText(ctx context.Context) (fence.Token, string) {
	t, err := fence.FromContext(ctx)
	if err != nil {
		return t, err.Error()
	}
	return t, t.String()
}

// make is the factory of every type. Its input is the job of the creation.
func (l *library) make(ctx context.Context, self *objects.Self, input []byte) (_ objects.Object, err error) {
	b := &book{lib: l, instance: nuid.Next()}
	var j job.Job
	if len(input) > 0 { // none for what a move brings
		if err := json.Unmarshal(input, &j); err != nil {
			return nil, err
		}
	}
	b.input, b.ballast = j.ID, make([]byte, j.Size)
	e := b.event(self, journal.Factory)
	e.Op, e.Moved = j.ID, self.Moved()
	_, e.Token = tokenText(ctx)
	end := b.begin(e, journal.FactoryEnd)
	defer func() { end(err) }()
	if j.Do == job.Panic {
		panic("the test wants it")
	}
	return b, b.pass(ctx, j)
}

// pass spends time as the job says, and fails when it says so.
func (b *book) pass(ctx context.Context, j job.Job) error {
	switch j.Do {
	case job.Sleep:
		t := time.NewTimer(j.Duration())
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	case job.Dwell:
		time.Sleep(j.Duration())
	case job.Block:
		<-ctx.Done()
		return context.Cause(ctx)
	case job.Panic:
		panic("the test wants it")
	case job.Fail:
		if j.Kind.Valid() {
			return outcome.New("work", j.Kind, outcome.Accepted, "", "the test wants it")
		}
		return errors.New("the test wants it")
	}
	return nil
}

// Activate raises the process's guard.
func (b *book) Activate(ctx context.Context, self *objects.Self) (err error) {
	e := b.event(self, journal.Activate)
	_, e.Token = tokenText(ctx)
	end := b.begin(e, journal.ActivateEnd)
	defer func() { end(err) }()
	return b.lib.guard(e.Object).Raise(ctx)
}

func (b *book) Closing(_ context.Context, self *objects.Self, why objects.CloseReason) error {
	e := b.event(self, journal.Closing)
	e.Detail = string(why)
	b.note(e)
	return nil
}

// moving is what a book takes along.
type moving struct {
	Input   string `json:"input"`
	Turns   int    `json:"turns"`
	Refuses bool   `json:"refuses"`
	Spoiled bool   `json:"spoiled"`
	Ballast []byte `json:"ballast,omitempty"`
}

func (b *book) Capture(_ context.Context, self *objects.Self) (_ objects.State, err error) {
	end := b.begin(b.event(self, journal.Capture), journal.CaptureEnd)
	defer func() { end(err) }()
	data, err := json.Marshal(moving{b.input, b.turns, b.refuses, b.spoiled, b.ballast})
	return objects.State{Version: 1, Data: data}, err
}

func (b *book) Restore(ctx context.Context, self *objects.Self, s objects.State) (err error) {
	e := b.event(self, journal.Restore)
	_, e.Token = tokenText(ctx)
	end := b.begin(e, journal.RestoreEnd)
	defer func() { end(err) }()
	var m moving
	if err := json.Unmarshal(s.Data, &m); err != nil {
		return err
	}
	if m.Spoiled {
		return errors.New("the test wants it")
	}
	b.input, b.turns, b.refuses, b.ballast = m.Input, m.Turns, m.Refuses, m.Ballast
	return nil
}

// Bound and Unbound note what sessions the Actor has.
func (b *book) Bound(_ context.Context, self *objects.Self, s *session.Binding) {
	e := b.event(self, journal.Bound)
	e.Detail = s.Session().String()
	b.note(e)
}

func (b *book) Unbound(_ context.Context, self *objects.Self, s *session.Binding, why session.Reason) {
	e := b.event(self, journal.Unbound)
	e.Detail, e.How = s.Session().String(), string(why)
	b.note(e)
}

func (b *book) Joining(_ context.Context, self *objects.Self, actor objects.ActorRef) error {
	e := b.event(self, journal.Joining)
	e.Detail = actor.String()
	b.note(e)
	if b.refuses {
		return outcome.New("join", outcome.Rejected, outcome.Accepted, "", "the test wants it")
	}
	return nil
}

func (b *book) Left(_ context.Context, self *objects.Self, actor objects.ActorRef) {
	e := b.event(self, journal.Left)
	e.Detail = actor.String()
	b.note(e)
}

// Handle is a turn.
func (b *book) Handle(ctx context.Context, r *objects.Request) (_ objects.Reply, err error) {
	self := r.Self()
	var j job.Job
	if err := json.Unmarshal(r.Data(), &j); err != nil {
		return objects.Reply{}, outcome.Wrap("work", outcome.InvalidOperation, outcome.Accepted, "", "the payload is no job", err)
	}
	if j.Do == job.Count {
		return counts()
	}
	e := b.event(self, journal.Turn)
	e.Op, e.Detail = j.ID, string(j.Do)
	if name, timer := r.Timer(); timer {
		e.Op, e.Detail = "", "timer "+name
	}
	if _, sent := r.Broadcast(); sent {
		e.Op, e.Detail = "", "broadcast "+j.ID
	}
	var token fence.Token
	token, e.Token = tokenText(ctx)
	b.turns++
	e.Turns = b.turns
	end := b.begin(e, journal.TurnEnd)
	defer func() { end(err) }()
	state := job.State{ID: j.ID, RID: self.RID(), Lifecycle: self.Lifecycle(), Generation: e.Generation,
		OwnerGeneration: e.OwnerGeneration, Token: e.Token, Instance: b.instance, Turns: b.turns, Input: b.input,
		Ballast: len(b.ballast)}
	switch j.Do {
	case job.Guard:
		state.Said = said(b.lib.guard(e.Object).Do(ctx, func() error { return nil }))
		b.guarded(e, state.Said)
	case job.GuardToken:
		state.Said = said(b.lib.guard(e.Object).DoToken(context.WithoutCancel(ctx), token, func() error { return nil }))
		b.guarded(e, state.Said)
	case job.Timer:
		state.Said = said(self.SetTimer(j.ID, j.Duration(), job.Job{ID: j.ID}.Encode()))
	case job.Close:
		self.Close()
	case job.Refuse:
		b.refuses = true
	case job.Call:
		return b.call(ctx, self, j)
	case job.Broadcast:
		_, err := self.Broadcast(ctx, job.Job{ID: j.ID}.Encode())
		state.Said = said(err)
	case job.Spoil:
		b.spoiled = true
	case job.Push:
		state.Said = push(ctx, r, state)
	case job.Big:
		return objects.Reply{Data: make([]byte, j.Size)}, nil
	default:
		if err := b.pass(ctx, j); err != nil {
			return objects.Reply{}, err
		}
	}
	data, err := json.Marshal(state)
	return objects.Reply{Data: data}, err
}

// push sends the state to the Actor's session, and says what came of it.
func push(ctx context.Context, r *objects.Request, state job.State) string {
	s, bound := session.Of(r)
	if !bound {
		return "no session is bound"
	}
	data, err := json.Marshal(state)
	if err != nil {
		return err.Error()
	}
	return said(s.Push(ctx, data))
}

// guarded notes a guarded write and what came of it.
func (b *book) guarded(turn journal.Event, how string) {
	turn.What, turn.How = journal.Guard, how
	b.note(turn)
}

// said is "written" or an error's text.
func said(err error) string {
	if err != nil {
		return err.Error()
	}
	return "written"
}

// call asks another object with the turn's context, and answers as it does.
func (b *book) call(ctx context.Context, self *objects.Self, j job.Job) (objects.Reply, error) {
	kind, id, err := job.SplitObject(j.To)
	if err != nil {
		return objects.Reply{}, err
	}
	then := j.Then.Encode()
	if kind == "actor" {
		return self.Actors().Request(ctx, id, then)
	}
	return self.Spots().Request(ctx, id, then)
}
