package frame

import (
	"fmt"
	"math"
	"unicode/utf16"
	"unicode/utf8"
)

// decoder reads the JSON text of a header, and takes what encoding/json takes, except that a field's name must be written
// exactly. The text is valid UTF-8.
type decoder struct {
	in  []byte
	at  int
	err error // the first thing that was wrong; nothing is read after it
}

// fail notes what is wrong.
func (d *decoder) fail(what string) {
	if d.err == nil {
		d.err = fmt.Errorf("%s, byte %d", what, d.at+1)
		d.at = len(d.in)
	}
}

// peek returns the next byte behind white space; 0, which stands nowhere outside of strings, at the end.
func (d *decoder) peek() byte {
	for ; d.at < len(d.in); d.at++ {
		switch c := d.in[d.at]; c {
		case ' ', '\t', '\r':
		default:
			return c
		}
	}
	return 0
}

// take takes one byte, which must be next.
func (d *decoder) take(c byte, what string) {
	if d.peek() != c {
		d.fail(what)
		return
	}
	d.at++
}

// word takes a literal, if it is next.
func (d *decoder) word(w string) bool {
	if len(d.in)-d.at < len(w) || string(d.in[d.at:d.at+len(w)]) != w {
		return false
	}
	d.at += len(w)
	return true
}

// header reads the whole text.
func (d *decoder) header(h *Header) {
	d.members(func(name []byte) { d.field(h, name) })
	if d.err == nil && (d.peek() != 0 || d.at < len(d.in)) {
		d.fail("there is more behind the JSON object")
	}
}

// members reads an object; f reads the value of a name.
func (d *decoder) members(f func(name []byte)) {
	d.take('{', "no JSON object")
	if d.peek() == '}' {
		d.at++
		return
	}
	for d.err == nil {
		d.peek()
		name := d.str("no name of a field")
		d.take(':', "no colon behind a name")
		d.peek()
		f(name)
		if d.peek() == ',' {
			d.at++
			continue
		}
		d.take('}', "neither a comma nor the end of the object")
		return
	}
}

// field reads the value of a field. What is null stays as it was, and what is not known is passed over.
func (d *decoder) field(h *Header, name []byte) {
	if d.err != nil || d.word("null") {
		return
	}
	switch string(name) {
	case "t":
		h.Type = typeOf(d.str(`"t" is no string`))
	case "id":
		h.ID = d.uint(`"id" is no whole number from 0`)
	case "b":
		h.Token = string(d.str(`"b" is no string`))
	case "s":
		h.Seq = d.uint(`"s" is no whole number from 0`)
	case "g":
		h.Owner = d.uint(`"g" is no whole number from 0`)
	case "ms":
		h.MS = d.int(`"ms" is no whole number`)
	case "early":
		h.Early = d.bool(`"early" is neither true nor false`)
	case "kind":
		h.Kind = string(d.str(`"kind" is no string`))
	case "acc":
		h.Acceptance = string(d.str(`"acc" is no string`))
	case "text":
		h.Text = string(d.str(`"text" is no string`))
	case "remote":
		h.Remote = d.bool(`"remote" is neither true nor false`)
	case "why":
		h.Why = string(d.str(`"why" is no string`))
	case "ref":
		h.Ref = string(d.str(`"ref" is no string`))
	case "rid":
		h.RID = string(d.str(`"rid" is no string`))
	case "v":
		h.V = int(d.int(`"v" is no whole number`))
	case "client":
		h.Client = string(d.str(`"client" is no string`))
	case "session":
		h.Session = string(d.str(`"session" is no string`))
	case "n":
		h.Number = d.uint(`"n" is no whole number from 0`)
	case "to":
		h.To = string(d.str(`"to" is no string`))
	case "heartbeat":
		h.Heartbeat = d.int(`"heartbeat" is no whole number`)
	case "max":
		h.MaxMessage = int(d.int(`"max" is no whole number`))
	case "inflight":
		h.InFlight = int(d.int(`"inflight" is no whole number`))
	default:
		d.skip()
	}
}

// typeOf returns the name of a type without another copy of it.
func typeOf(b []byte) string {
	switch string(b) {
	case Request:
		return Request
	case OK:
		return OK
	case Push:
		return Push
	case Send:
		return Send
	case Err:
		return Err
	case Ping:
		return Ping
	case Pong:
		return Pong
	}
	return string(b)
}

// str reads a string. What it returns is a part of the text, if nothing in it is escaped.
func (d *decoder) str(what string) []byte {
	if d.at == len(d.in) || d.in[d.at] != '"' {
		d.fail(what)
		return nil
	}
	d.at++
	begin := d.at
	for ; d.at < len(d.in); d.at++ {
		switch c := d.in[d.at]; {
		case c == '"':
			d.at++
			return d.in[begin : d.at-1]
		case c == '\\':
			return d.escaped(append([]byte(nil), d.in[begin:d.at]...))
		case c < ' ':
			d.fail("a control character in a string")
			return nil
		}
	}
	d.fail("a string without an end")
	return nil
}

// escaped reads the rest of a string, from its first escape on, behind what b has of it.
func (d *decoder) escaped(b []byte) []byte {
	for d.at < len(d.in) {
		c := d.in[d.at]
		switch {
		case c == '"':
			d.at++
			return b
		case c < ' ':
			d.fail("a control character in a string")
			return nil
		case c != '\\':
			b = append(b, c)
			d.at++
			continue
		}
		if d.at+1 == len(d.in) {
			break
		}
		d.at += 2
		switch c := d.in[d.at-1]; c {
		case '"', '\\', '/':
			b = append(b, c)
		case 'b':
			b = append(b, '\b')
		case 'f':
			b = append(b, '\f')
		case 'n':
			b = append(b, '\n')
		case 'r':
			b = append(b, '\r')
		case 't':
			b = append(b, '\t')
		case 'u':
			b = utf8.AppendRune(b, d.unit())
		default:
			d.fail("an escape that JSON does not have")
			return nil
		}
	}
	d.fail("a string without an end")
	return nil
}

// unit reads the four digits of an escape, and the second one of a surrogate pair; half a pair is U+FFFD.
func (d *decoder) unit() rune {
	r, ok := d.hex(d.at)
	if !ok {
		d.fail("an escape without four digits")
		return 0
	}
	d.at += 4
	if !utf16.IsSurrogate(r) {
		return r
	}
	if d.at+1 < len(d.in) && d.in[d.at] == '\\' && d.in[d.at+1] == 'u' {
		if low, ok := d.hex(d.at + 2); ok {
			if pair := utf16.DecodeRune(r, low); pair != utf8.RuneError {
				d.at += 6
				return pair
			}
		}
	}
	return utf8.RuneError
}

func (d *decoder) hex(at int) (r rune, ok bool) {
	if len(d.in)-at < 4 {
		return 0, false
	}
	for _, c := range d.in[at : at+4] {
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c && c <= 'f':
			c -= 'a' - 10
		case 'A' <= c && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	return r, true
}

// number passes over a number, and reports whether it is a whole one that fits, with its sign apart.
func (d *decoder) number(what string) (v uint64, negative, whole bool) {
	negative = d.word("-")
	whole = true
	first := d.at
	for ; d.at < len(d.in) && isDigit(d.in[d.at]); d.at++ {
		c := uint64(d.in[d.at] - '0')
		if v > (math.MaxUint64-c)/10 {
			whole = false
		}
		v = v*10 + c
	}
	if n := d.at - first; n == 0 || n > 1 && d.in[first] == '0' {
		d.fail(what)
		return 0, false, false
	}
	if d.word(".") {
		whole = false
		d.digits(what)
	}
	if d.word("e") || d.word("E") {
		whole = false
		if !d.word("+") {
			d.word("-")
		}
		d.digits(what)
	}
	return v, negative, whole
}

// digits passes over one digit or more.
func (d *decoder) digits(what string) {
	first := d.at
	for d.at < len(d.in) && isDigit(d.in[d.at]) {
		d.at++
	}
	if d.at == first {
		d.fail(what)
	}
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

func (d *decoder) uint(what string) uint64 {
	v, negative, whole := d.number(what)
	if negative || !whole {
		d.fail(what)
		return 0
	}
	return v
}

func (d *decoder) int(what string) int64 {
	v, negative, whole := d.number(what)
	switch {
	case !whole, !negative && v > math.MaxInt64, negative && v > -math.MinInt64:
		d.fail(what)
		return 0
	case negative:
		return -int64(v)
	}
	return int64(v)
}

func (d *decoder) bool(what string) bool {
	if d.word("true") {
		return true
	}
	if !d.word("false") {
		d.fail(what)
	}
	return false
}

// skip passes over a value. MaxHeader bounds how deep it may be.
func (d *decoder) skip() {
	if d.err != nil {
		return
	}
	switch d.peek() {
	case '{':
		d.members(func([]byte) { d.skip() })
	case '[':
		d.elements()
	case '"':
		d.str("")
	default:
		if !d.word("null") && !d.word("true") && !d.word("false") {
			d.number("no JSON value")
		}
	}
}

// elements passes over an array.
func (d *decoder) elements() {
	d.at++
	if d.peek() == ']' {
		d.at++
		return
	}
	for d.err == nil {
		d.skip()
		if d.peek() == ',' {
			d.at++
			continue
		}
		d.take(']', "neither a comma nor the end of an array")
		return
	}
}
