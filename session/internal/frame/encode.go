package frame

import (
	"strconv"
	"unicode/utf8"
)

// appendHeader writes a header as encoding/json would, byte for byte, without its reflection.
func appendHeader(b []byte, h *Header) []byte {
	b = append(b, `{"t":`...)
	b = appendString(b, h.Type)
	b = appendUint(b, `,"id":`, h.ID)
	b = appendText(b, `,"b":`, h.Token)
	b = appendUint(b, `,"s":`, h.Seq)
	b = appendUint(b, `,"g":`, h.Owner)
	b = appendInt(b, `,"ms":`, h.MS)
	b = appendTrue(b, `,"early":`, h.Early)
	b = appendText(b, `,"kind":`, h.Kind)
	b = appendText(b, `,"acc":`, h.Acceptance)
	b = appendText(b, `,"text":`, h.Text)
	b = appendTrue(b, `,"remote":`, h.Remote)
	b = appendText(b, `,"why":`, h.Why)
	b = appendText(b, `,"ref":`, h.Ref)
	b = appendText(b, `,"rid":`, h.RID)
	b = appendInt(b, `,"v":`, int64(h.V))
	b = appendText(b, `,"client":`, h.Client)
	b = appendText(b, `,"session":`, h.Session)
	b = appendUint(b, `,"n":`, h.Number)
	b = appendText(b, `,"to":`, h.To)
	b = appendInt(b, `,"heartbeat":`, h.Heartbeat)
	b = appendInt(b, `,"max":`, int64(h.MaxMessage))
	b = appendInt(b, `,"inflight":`, int64(h.InFlight))
	return append(b, '}')
}

// The following append a field, unless it has its zero value.

func appendUint(b []byte, name string, v uint64) []byte {
	if v == 0 {
		return b
	}
	return strconv.AppendUint(append(b, name...), v, 10)
}

func appendInt(b []byte, name string, v int64) []byte {
	if v == 0 {
		return b
	}
	return strconv.AppendInt(append(b, name...), v, 10)
}

func appendTrue(b []byte, name string, v bool) []byte {
	if !v {
		return b
	}
	return append(append(b, name...), "true"...)
}

func appendText(b []byte, name, v string) []byte {
	if v == "" {
		return b
	}
	return appendString(append(b, name...), v)
}

// appendString writes a JSON string that may stand in HTML, and on a line of JavaScript.
func appendString(b []byte, s string) []byte {
	b = append(b, '"')
	done := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c < utf8.RuneSelf {
			if c < ' ' || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
				b = appendEscape(append(b, s[done:i]...), rune(c))
				done = i + 1
			}
			i++
			continue
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && size == 1 || r == '\u2028' || r == '\u2029' {
			b = appendEscape(append(b, s[done:i]...), r)
			done = i + size
		}
		i += size
	}
	return append(append(b, s[done:]...), '"')
}

const hexDigits = "0123456789abcdef"

func appendEscape(b []byte, r rune) []byte {
	switch r {
	case '"', '\\':
		return append(b, '\\', byte(r))
	case '\b':
		return append(b, '\\', 'b')
	case '\f':
		return append(b, '\\', 'f')
	case '\n':
		return append(b, '\\', 'n')
	case '\r':
		return append(b, '\\', 'r')
	case '\t':
		return append(b, '\\', 't')
	}
	return append(b, '\\', 'u', hexDigits[r>>12&15], hexDigits[r>>8&15], hexDigits[r>>4&15], hexDigits[r&15])
}
