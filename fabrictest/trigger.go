package fabrictest

import (
	"fmt"
	"sync"
	"testing"
	"time"
)

// Direction is the way a message goes through a Proxy.
type Direction uint8

// The directions.
const (
	ToServer Direction = iota // from the client to the server
	ToClient                  // from the server to the client
)

func (d Direction) String() string {
	if d == ToServer {
		return "to server"
	}
	return "to client"
}

// Trigger selects messages and says what is done to them. The zero value of
// each field but Action is useful: the first PUB or HPUB of any client.
type Trigger struct {
	// Dir is the direction of the message.
	Dir Direction

	// Subject is what the subject must match; the wildcards * and > work.
	// Empty: any.
	Subject string

	// Verb is the operation's verb, like "SUB" or "PING". Empty: any message,
	// with a header or without (PUB and HPUB, or MSG and HMSG).
	Verb string

	// Client is the connection name of the client (nats.Name). Empty: any.
	Client string

	// Match, when set, must also return true. It is called from the proxy's
	// goroutines and must not block.
	Match func(Message) bool

	// Nth is which of the matching messages is the first to be acted on,
	// counted from 1. Zero means 1.
	Nth int

	// Times is how many matching messages are acted on, from the Nth on. Zero
	// means 1, a negative number all.
	Times int

	// Answer acts on the answer instead: the selected messages, which must go
	// to the server and have a reply subject, pass, and the first message to
	// the client on that reply subject is acted on. When it gets there, the
	// server has done its work and the client doesn't know yet.
	Answer bool

	// Action is what is done.
	Action Action
}

// Action is what a Trigger does to a message.
type Action struct {
	kind    actionKind
	delay   time.Duration
	replace func(Message) Message
	header  string
	payload string
}

type actionKind uint8

const (
	actSignal actionKind = iota
	actDrop
	actHold
	actHoldAlone
	actDelayAlone
	actDuplicate
	actCutBefore
	actCutAfter
	actReplace
	actRespond
)

var (
	// Signal passes the message on, after Reached was closed.
	Signal = Action{kind: actSignal}

	// Drop swallows the message.
	Drop = Action{kind: actDrop}

	// Hold keeps the message, and with it all that comes behind it on its
	// connection in its direction, until Release. Faults applied in the
	// meantime strike it then. If the sender closes the connection, what is
	// held still arrives after Release.
	Hold = Action{kind: actHold}

	// HoldAlone keeps only the message, until Release. What comes behind
	// overtakes it.
	HoldAlone = Action{kind: actHoldAlone}

	// Duplicate passes the message on and sends a copy of it on Release.
	Duplicate = Action{kind: actDuplicate}

	// CutBefore closes the connection instead of passing the message on.
	CutBefore = Action{kind: actCutBefore}

	// CutAfter passes the message on and closes the connection behind it. The
	// receiver reads the message before the end.
	CutAfter = Action{kind: actCutAfter}

	// NoResponders swallows a request and gives the client the answer that
	// nobody listens (status 503).
	NoResponders = Action{kind: actRespond, header: "NATS/1.0 503\r\n\r\n"}
)

// DelayAlone passes the message on after d. What comes behind overtakes it.
func DelayAlone(d time.Duration) Action { return Action{kind: actDelayAlone, delay: d} }

// Replace passes on what f makes of the message. f is called from the proxy's
// goroutines, must not block and must not change the message's slices.
func Replace(f func(Message) Message) Action { return Action{kind: actReplace, replace: f} }

// Respond swallows a request and gives the client this answer. The server never
// sees the request.
func Respond(payload string) Action { return Action{kind: actRespond, payload: payload} }

// JetStreamError swallows a request or publish to JetStream and answers it with
// this error, as the server would, for example
// JetStreamError(400, 10164, "wrong last sequence").
func JetStreamError(code, errCode int, description string) Action {
	return Respond(fmt.Sprintf(`{"error":{"code":%d,"err_code":%d,"description":%q},"stream":"","seq":0}`,
		code, errCode, description))
}

// Armed is a trigger in place.
type Armed struct {
	proxy    *Proxy
	trigger  Trigger
	reached  chan struct{}
	released chan struct{}
	release  func()

	mu      sync.Mutex
	seen    int             // messages that matched
	acted   int             // messages acted on
	answers map[string]bool // reply subjects whose message is acted on
	first   Message
}

func newArmed(p *Proxy, tr Trigger) *Armed {
	a := &Armed{
		proxy:    p,
		trigger:  tr,
		reached:  make(chan struct{}),
		released: make(chan struct{}),
		answers:  make(map[string]bool),
	}
	a.release = sync.OnceFunc(func() { close(a.released) })
	if a.trigger.Nth == 0 {
		a.trigger.Nth = 1
	}
	if a.trigger.Times == 0 {
		a.trigger.Times = 1
	}
	return a
}

// Reached is closed when the first message to be acted on has come to the
// proxy: before it is passed on, dropped or held.
func (a *Armed) Reached() <-chan struct{} { return a.reached }

// Wait waits for Reached and returns the message. It fails the test when none
// comes within a minute.
func (a *Armed) Wait(t testing.TB) Message {
	t.Helper()
	select {
	case <-a.reached:
		return a.Message()
	case <-time.After(readyTimeout):
		t.Fatalf("not within %v: message %v on %q", readyTimeout, a.trigger.Dir, a.trigger.Subject)
		return Message{}
	}
}

// Message is the first message acted on; the zero Message before Reached.
func (a *Armed) Message() Message {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.first
}

// Count is the number of messages acted on so far.
func (a *Armed) Count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.acted
}

// Release lets go what Hold, HoldAlone and DelayAlone keep and sends the copies
// of Duplicate; the trigger acts on nothing more. It may be called more than
// once.
func (a *Armed) Release() {
	a.Disarm()
	a.release()
}

// Disarm takes the trigger away. What it keeps stays kept until Release.
func (a *Armed) Disarm() { a.proxy.disarm(a) }

// maxAwaited bounds the answers that one trigger waits for.
const maxAwaited = 4096

// take decides whether the trigger acts on a message, and counts it.
func (a *Armed) take(client string, dir Direction, m *Message) (act, spent bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	tr := &a.trigger
	if tr.Answer && dir == ToClient && m.hasPayload() && a.answers[m.Subject] {
		delete(a.answers, m.Subject)
		a.acted++
		a.reach(m)
		return true, tr.Times > 0 && a.acted >= tr.Times
	}
	if !tr.selects(client, dir, m) {
		return false, false
	}
	a.seen++
	if a.seen < tr.Nth || tr.Times > 0 && a.seen >= tr.Nth+tr.Times {
		return false, false
	}
	if tr.Answer {
		if len(a.answers) < maxAwaited {
			a.answers[m.Reply] = true
		}
		return false, false
	}
	a.acted++
	a.reach(m)
	return true, tr.Times > 0 && a.acted >= tr.Times
}

func (a *Armed) reach(m *Message) {
	if a.acted == 1 {
		a.first = *m
		close(a.reached)
	}
}

func (tr *Trigger) selects(client string, dir Direction, m *Message) bool {
	switch {
	case dir != tr.Dir,
		tr.Answer && (dir != ToServer || m.Reply == ""),
		tr.Verb == "" && !m.hasPayload(),
		tr.Verb != "" && tr.Verb != m.Verb,
		tr.Subject != "" && !subjectMatches(tr.Subject, m.Subject),
		tr.Client != "" && tr.Client != client,
		tr.Match != nil && !tr.Match(*m):
		return false
	}
	return true
}
