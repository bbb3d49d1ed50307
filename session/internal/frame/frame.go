package frame

import (
	"bytes"
	"errors"
	"fmt"
	"unicode/utf8"
)

// Version is the version of the protocol: a hello names it, and a node refuses any other.
const Version = 1

// MaxHeader is the greatest length of a header, in bytes, without the line feed.
const MaxHeader = 4096

// The types of frames from a client.
const (
	Hello   = "hello"   // the first one: V, Client; the payload holds the credentials
	Bind    = "bind"    // ID, Ref, MS: answered with OK or Err
	Unbind  = "unbind"  // ID, Token, MS: answered with OK or Err
	Request = "request" // ID, Token, MS, Early: answered with OK and the reply, or Err
	Send    = "send"    // ID, Token, MS: answered with OK once the Actor's mailbox has it, or Err
	Pong    = "pong"    // answers Ping
	Bye     = "bye"     // the session is over; of both sides, with Kind and Text from a node
)

// The types of frames from a node.
const (
	Welcome = "welcome" // answers Hello: Session, Number, RID, To, Heartbeat, MaxMessage, InFlight; payload: the application's
	Refused = "refused" // answers Hello: Kind, Text; nothing follows
	OK      = "ok"      // ID; of a bind Token, Number, Ref, RID, Owner
	Err     = "err"     // ID, Kind, Acceptance, Text, Remote
	Push    = "push"    // Token, Owner, Seq
	Moved   = "moved"   // Token, RID, Owner: the Actor is at another node now, the binding stays
	Ended   = "ended"   // Token, Ref, Why, Text: the binding is over
	GoAway  = "goaway"  // MS, Text: the node drains; connect elsewhere
	Ping    = "ping"    // answer with Pong
)

// Header is what a frame says beside its payload. Which fields stand in which type of frame is said there.
type Header struct {
	Type string `json:"t"`
	// ID is the client's number of a request; its answer has the same. From 1.
	ID uint64 `json:"id,omitempty"`
	// Token names a binding.
	Token string `json:"b,omitempty"`
	// Seq is the number of a push in its binding, from 1, and Owner the owner generation under which it was made.
	Seq   uint64 `json:"s,omitempty"`
	Owner uint64 `json:"g,omitempty"`
	// MS is a time in milliseconds: how long the client waits, or until when it must have left.
	MS int64 `json:"ms,omitempty"`
	// Early asks that a failure after the Actor took the request says Accepted instead of Unknown.
	Early bool `json:"early,omitempty"`

	Kind       string `json:"kind,omitempty"`
	Acceptance string `json:"acc,omitempty"`
	Text       string `json:"text,omitempty"`
	// Remote is true when the Actor's side said so, false when it was concluded at the session's node.
	Remote bool `json:"remote,omitempty"`
	// Why is the reason of an end.
	Why string `json:"why,omitempty"`
	// Ref is an Actor: actor/<escaped id>@<generation>; in a bind the generation may be missing.
	Ref string `json:"ref,omitempty"`
	RID string `json:"rid,omitempty"`

	V          int    `json:"v,omitempty"`
	Client     string `json:"client,omitempty"`
	Session    string `json:"session,omitempty"`
	Number     uint64 `json:"n,omitempty"`
	To         string `json:"to,omitempty"`
	Heartbeat  int64  `json:"heartbeat,omitempty"`
	MaxMessage int    `json:"max,omitempty"`
	InFlight   int    `json:"inflight,omitempty"`
}

// The ways in which a frame can be none.
var (
	errNoLine  = errors.New("the frame has no line feed: it must be a JSON object on one line, a line feed and the payload")
	errLong    = fmt.Errorf("the frame's header is longer than %d bytes", MaxHeader)
	errNotUTF8 = errors.New("the frame's header is no valid UTF-8")
	errNoType  = errors.New(`the frame's header has no "t"`)
)

// Parse reads a frame. The payload is a part of data; the header is not.
func Parse(data []byte) (h Header, payload []byte, err error) {
	head := data
	if len(head) > MaxHeader+1 {
		head = head[:MaxHeader+1]
	}
	i := bytes.IndexByte(head, '\n')
	switch {
	case i < 0 && len(data) > MaxHeader:
		return Header{}, nil, errLong
	case i < 0:
		return Header{}, nil, errNoLine
	case !utf8.Valid(data[:i]):
		return Header{}, nil, errNotUTF8
	}
	d := decoder{in: data[:i]}
	d.header(&h)
	if d.err != nil {
		return Header{}, nil, fmt.Errorf("the frame's header is not what it must be: %w", d.err)
	}
	if h.Type == "" {
		return Header{}, nil, errNoType
	}
	return h, data[i+1:], nil
}

// Append adds a frame to b.
func Append(b []byte, h *Header, payload []byte) []byte {
	b = appendHeader(b, h)
	b = append(b, '\n')
	return append(b, payload...)
}

// Make returns a frame.
func Make(h *Header, payload []byte) []byte {
	return Append(make([]byte, 0, room(h)+len(payload)), h, payload)
}

// room is about what a header takes; more than that costs another allocation.
func room(h *Header) int {
	return 64 + len(h.Token) + len(h.Text) + len(h.Ref) + len(h.Session) + len(h.To)
}

// OpenSubject is the subject on which a NATS client opens a session in a mesh: its request's payload is the hello, and
// every frame of the session comes to its reply subject.
func OpenSubject(mesh string) string { return "fab." + mesh + ".session" }
