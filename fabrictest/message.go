package fabrictest

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"
)

// Message is one operation of the NATS client protocol on its way through a
// Proxy.
type Message struct {
	// Verb is PUB, HPUB, SUB, UNSUB, CONNECT, PING or PONG from a client, and
	// MSG, HMSG, INFO, PING, PONG, +OK or -ERR to a client.
	Verb string
	// Subject of a message or subscription.
	Subject string
	// Reply is the subject for the answer, or empty.
	Reply string
	// Queue is the queue group of a SUB, or empty.
	Queue string
	// SID is the client's number of the subscription (SUB, UNSUB, MSG, HMSG).
	SID string
	// Header is the header block as on the wire, from "NATS/1.0" to the empty
	// line, or nil.
	Header []byte
	// Payload of a message.
	Payload []byte
	// Args is what follows the verb in all other operations.
	Args string
}

// Headers decodes the header block. It is empty for a message without one.
func (m Message) Headers() nats.Header {
	if len(m.Header) == 0 {
		return nats.Header{}
	}
	h, err := nats.DecodeHeadersMsg(m.Header)
	if err != nil {
		return nats.Header{}
	}
	return h
}

// hasPayload reports whether the verb is that of a message.
func (m *Message) hasPayload() bool {
	switch m.Verb {
	case "PUB", "HPUB", "MSG", "HMSG":
		return true
	}
	return false
}

// clientName is the name that a CONNECT gives, or empty.
func (m *Message) clientName() string {
	var c struct {
		Name string `json:"name"`
	}
	_ = json.Unmarshal([]byte(m.Args), &c)
	return c.Name
}

// encode writes m as on the wire. A message with a header becomes HPUB or HMSG,
// one without PUB or MSG.
func (m *Message) encode() []byte {
	var b bytes.Buffer
	field := func(s string) {
		if s != "" {
			b.WriteByte(' ')
			b.WriteString(s)
		}
	}
	switch m.Verb {
	case "PUB", "HPUB", "MSG", "HMSG":
		verb := strings.TrimPrefix(m.Verb, "H")
		if len(m.Header) > 0 {
			verb = "H" + verb
		}
		b.WriteString(verb)
		field(m.Subject)
		if strings.HasSuffix(verb, "MSG") {
			field(m.SID)
		}
		field(m.Reply)
		if len(m.Header) > 0 {
			field(strconv.Itoa(len(m.Header)))
		}
		field(strconv.Itoa(len(m.Header) + len(m.Payload)))
		b.WriteString("\r\n")
		b.Write(m.Header)
		b.Write(m.Payload)
	case "SUB":
		b.WriteString(m.Verb)
		field(m.Subject)
		field(m.Queue)
		field(m.SID)
	case "UNSUB":
		b.WriteString(m.Verb)
		field(m.SID)
		field(m.Args)
	default:
		b.WriteString(m.Verb)
		field(m.Args)
	}
	b.WriteString("\r\n")
	return b.Bytes()
}

// subjectMatches reports whether subject matches pattern, which may contain the
// NATS wildcards * (one token) and > (one or more tokens at the end).
func subjectMatches(pattern, subject string) bool {
	for {
		pt, pRest, pMore := strings.Cut(pattern, ".")
		st, sRest, sMore := strings.Cut(subject, ".")
		switch {
		case pt == ">" && !pMore:
			return subject != ""
		case pt != "*" && pt != st:
			return false
		case !pMore || !sMore:
			return pMore == sMore
		}
		pattern, subject = pRest, sRest
	}
}
