package session

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"natsfabric/channels"
	"natsfabric/internal/wire"
	"natsfabric/objects"
	"natsfabric/outcome"
)

// The verbs between nodes, behind the service's name: <verb>.<escaped Actor ID> at an Actor's node, <verb> at a session's.
const (
	verbBind    = "bind"    // a turn of the Actor: take the session
	verbUnbind  = "unbind"  // a turn of the Actor: let it go
	verbConfirm = "confirm" // a turn of the Actor: is it bound by this token?
	verbPush    = "push"    // to the session's node: <verb>.<session ID>; the payload is a batch of pushes
	verbTold    = "told"    // to the session's node: notices of moves and ends
	verbCompare = "compare" // to a node with which this one shares bindings: which of them are over?
)

// turnRequest is what bind, unbind and confirm say.
type turnRequest struct {
	Generation uint64 `json:"generation"`
	Token      string `json:"token"`
	// Session, Subject and Data belong to a bind.
	Session *Ref   `json:"session,omitempty"`
	Subject string `json:"subject,omitempty"`
	Data    []byte `json:"data,omitempty"`
	// Why belongs to an unbind.
	Why Reason `json:"why,omitempty"`
}

// turnAnswer is the answer to them.
type turnAnswer struct {
	Status status `json:"status"`
	// Number is the binding's at its Actor.
	Number uint64 `json:"number,omitempty"`
	// Place is where the node says that the Actor is, when it is elsewhere.
	Place *objects.Place `json:"place,omitempty"`
	Text  string         `json:"text,omitempty"`
}

type status string

const (
	statusBound     status = "Bound"
	statusNotBound  status = "NotBound"
	statusElsewhere status = "Elsewhere" // nothing was done: the node does not own the Actor, or not now
	statusGone      status = "Gone"      // there is no Actor of that generation

	// The answers to notices.
	statusApplied status = "Applied"
	statusAlready status = "AlreadyApplied"
	statusStale   status = "Stale"
	statusOver    status = "SessionOrBindingClosed"
)

// notice tells a session's node about one binding.
type notice struct {
	Kind    noticeKind    `json:"kind"`
	Session string        `json:"session"`
	Token   string        `json:"token"`
	Place   objects.Place `json:"place,omitzero"`
	// Last is the number of the last push before the end; Why and Text say why it ended.
	Last uint64 `json:"last,omitempty"`
	Why  Reason `json:"why,omitempty"`
	Text string `json:"text,omitempty"`
}

type noticeKind string

const (
	noticeMoved noticeKind = "moved"
	noticeEnded noticeKind = "ended"
)

// comparison is what a node says of the bindings that it shares with another.
type comparison struct {
	RID       string `json:"rid"` // of the node that asks
	Lifecycle uint64 `json:"lifecycle"`
	// Held are bindings of Actors at the node that asks, Ties the tokens of bindings of sessions that it owns.
	Held []heldBinding `json:"held,omitempty"`
	Ties []string      `json:"ties,omitempty"`
}

type heldBinding struct {
	Session string `json:"session"`
	Token   string `json:"token"`
}

// compared is the answer: the tokens of bindings in Held that are over, or were never made, and those in Ties that no Actor
// at the node that answers has.
type compared struct {
	Over    []string `json:"over,omitempty"`
	Missing []string `json:"missing,omitempty"`
}

// handle takes one message. It runs on the subscription's goroutine and does not block.
func (s *Service) handle(in *channels.Inbound) {
	if in.Shared() {
		s.openNATS(in)
		return
	}
	verb, rest, _ := strings.Cut(in.Tail(), ".")
	switch verb {
	case verbIn:
		s.takeNATS(in, rest)
	case verbPush:
		s.takePushes(in, rest)
	case verbTold, verbCompare:
		in.Accept()
		data, err := s.serve(s.ctx, verb, rest, in.Data())
		if err != nil {
			in.Fail(err)
			return
		}
		in.Reply(data, nil)
	case verbBind, verbUnbind, verbConfirm:
		s.takeTurn(in, verb, rest)
	default:
		in.Refuse(outcome.ProtocolError, fmt.Sprintf("node %s knows no verb %q of sessions", s.cfg.RID, verb), nil)
	}
}

// takeTurn runs what has to wait for an Actor's turn in a goroutine of its own.
func (s *Service) takeTurn(in *channels.Inbound, verb, rest string) {
	if s.stats.turns.Add(1) > maxTurns {
		s.stats.turns.Add(-1)
		in.Refuse(outcome.Unavailable, fmt.Sprintf("%d binds and unbinds wait at node %s already", maxTurns, s.cfg.RID), nil)
		return
	}
	place := s.order.join(rest)
	started := s.spawn(func() {
		defer s.stats.turns.Add(-1)
		ctx, cancel := context.WithTimeout(s.ctx, channels.DefaultTimeout)
		if d, ok := in.LocalDeadline(); ok {
			cancel()
			ctx, cancel = context.WithDeadline(s.ctx, d)
		}
		defer cancel()
		data, err := s.serveTurn(ctx, place, verb, in.Data())
		if err == nil {
			in.Reply(data, nil)
			return
		}
		switch e := asOutcome(err); e.Acceptance {
		case outcome.NotAccepted:
			in.Refuse(e.Kind, textOf(e), nil)
		case outcome.Accepted:
			in.Fail(e)
		default:
			_ = s.router.AnswerError(in.ReplyTo(), e) // a failure to answer is the caller's timeout
		}
	})
	if !started {
		place.leave()
		s.stats.turns.Add(-1)
		in.Refuse(outcome.Unavailable, "node "+s.cfg.RID+" is shutting down", nil)
	}
}

// maxTurns bounds the operations on bindings that wait for Actors' turns here.
const maxTurns = 16384

// serve answers one question, from another node or from this one.
func (s *Service) serve(ctx context.Context, verb, rest string, data []byte) ([]byte, error) {
	var answer any
	switch verb {
	case verbTold:
		var ns []notice
		if err := unmarshal(data, &ns); err != nil {
			return nil, err
		}
		answer = s.takeNotices(ns)
	case verbCompare:
		var c comparison
		if err := unmarshal(data, &c); err != nil {
			return nil, err
		}
		answer = s.compare(&c)
	default:
		return s.serveTurn(ctx, s.order.join(rest), verb, data)
	}
	return json.Marshal(answer)
}

// serveTurn serves a bind, an unbind or a confirm, when those before it in its Actor's line have ended.
func (s *Service) serveTurn(ctx context.Context, place *turnPlace, verb string, data []byte) ([]byte, error) {
	defer place.leave()
	id, err := wire.UnescapeID(place.actor)
	if err != nil {
		return nil, outcome.Wrap(verb, outcome.ProtocolError, outcome.NotAccepted, "", "", err)
	}
	var r turnRequest
	if err := unmarshal(data, &r); err != nil {
		return nil, err
	}
	ref := objects.ActorRef{ID: id, Generation: r.Generation}
	if place.wait(ctx) != nil {
		return nil, outcome.FromContext(ctx, verb, outcome.NotAccepted, ref.String(), "earlier binds and unbinds of the Actor have not ended yet")
	}
	answer, err := s.turn(ctx, verb, ref, &r)
	if err != nil {
		return nil, err
	}
	return json.Marshal(answer)
}

func unmarshal(data []byte, v any) error {
	if err := json.Unmarshal(data, v); err != nil {
		return outcome.Wrap("session", outcome.ProtocolError, outcome.NotAccepted, "", "the message is not what it must be", err)
	}
	return nil
}

// ask asks a process run, once: this one by a call, another by a message.
func (s *Service) ask(ctx context.Context, at run, verb, tail string, body, answer any) error {
	data, err := json.Marshal(body)
	if err != nil {
		return outcome.Wrap(verb, outcome.InternalFailure, outcome.NotAccepted, "", "", err)
	}
	if at == s.here {
		data, err = s.serve(ctx, verb, tail, data)
	} else {
		subject := verb
		if tail != "" {
			subject += "." + tail
		}
		var reply channels.Reply
		reply, err = s.router.CallRun(ctx, &channels.RunCall{
			Op: verb, Target: "node " + quote(at.rid), RID: at.rid, Lifecycle: at.lifecycle,
			Subject: s.router.RunSubject(at.rid, at.lifecycle, serviceName, subject), Data: data,
		})
		data = reply.Data
	}
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, answer); err != nil {
		return outcome.Wrap(verb, outcome.ProtocolError, outcome.Accepted, "node "+quote(at.rid), "its answer is not what it must be", err)
	}
	return nil
}

// tieOf returns the tie of a token in a session here; nil for none.
func (s *Service) tieOf(session, token string) *tie {
	c := s.session(session)
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ties[token]
}

// takeNotices takes what Actors' nodes say of bindings, and answers for each.
func (s *Service) takeNotices(ns []notice) []status {
	out := make([]status, len(ns))
	for i := range ns {
		out[i] = statusOver
		if t := s.tieOf(ns[i].Session, ns[i].Token); t != nil {
			out[i] = t.told(&ns[i])
		}
	}
	return out
}

// compare answers a comparison.
func (s *Service) compare(c *comparison) (out compared) {
	for _, b := range c.Held {
		if s.tieOf(b.Session, b.Token) == nil {
			out.Over = append(out.Over, b.Token)
		}
	}
	out.Missing = s.bound.missing(run{c.RID, c.Lifecycle}, c.Ties)
	return out
}

// A batch of pushes is the token's length and the token, the owner generation, and for each push its number, its length
// and its data; all numbers are unsigned varints.

var errBatch = errors.New("a batch of pushes that is cut off")

// appendPushes writes a batch.
func appendPushes(b []byte, token string, items []push) []byte {
	b = binary.AppendUvarint(b, uint64(len(token)))
	b = append(b, token...)
	for _, p := range items {
		b = binary.AppendUvarint(b, p.owner)
		b = binary.AppendUvarint(b, p.seq)
		b = binary.AppendUvarint(b, uint64(len(p.data)))
		b = append(b, p.data...)
	}
	return b
}

// parsePushes reads a batch. The data are parts of b.
func parsePushes(b []byte) (token string, items []push, err error) {
	cut := func() []byte {
		n, size := binary.Uvarint(b)
		if size <= 0 || n > uint64(len(b)-size) {
			err = errBatch
			return nil
		}
		data := b[size : size+int(n)]
		b = b[size+int(n):]
		return data
	}
	number := func() uint64 {
		n, size := binary.Uvarint(b)
		if size <= 0 {
			err = errBatch
			return 0
		}
		b = b[size:]
		return n
	}
	token = string(cut())
	for err == nil && len(b) > 0 {
		var p push
		p.owner = number()
		if err == nil {
			p.seq = number()
		}
		if err == nil {
			p.data = cut()
		}
		if err == nil && p.seq == 0 {
			err = errBatch
		}
		items = append(items, p)
	}
	if err != nil {
		return "", nil, err
	}
	return token, items, nil
}

// takePushes takes a batch of pushes for a session here.
func (s *Service) takePushes(in *channels.Inbound, session string) {
	switch v, err := s.pushed(session, in.Data()); {
	case err != nil:
		in.Refuse(outcome.ProtocolError, err.Error(), nil)
	case v == pushOver:
		in.Refuse(outcome.NotFound, "the session or the binding is over", nil)
	case v == pushFull:
		in.Refuse(outcome.Unavailable, "too many pushes wait for one that is missing", nil)
	default:
		in.Accept()
	}
}

func (s *Service) pushed(session string, data []byte) (verdict, error) {
	token, items, err := parsePushes(data)
	if err != nil {
		return 0, err
	}
	t := s.tieOf(session, token)
	if t == nil {
		return pushOver, nil
	}
	return t.pushed(items), nil
}

// isDraining reports whether the Service takes nothing new.
func (s *Service) isDraining() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.draining
}

const (
	// farewells is how many Actors of one session are told at a time that it is over, farewellTimeout bounds each.
	farewells       = 16
	farewellTimeout = 5 * time.Second
)
