package kvlocation

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"natsfabric/internal/jsonkeep"
)

// Records are written and read on every change, so their JSON form is made and read by hand: a tenth of the time and
// of the allocations that reflection takes. What is written is byte for byte what encoding/json writes. What is read
// here is only the form that this package writes; anything else (fields of another version, a record changed by hand)
// is left to encoding/json.

type (
	ownerFields  Owner
	recordFields Record
)

var (
	knownOwnerFields  = jsonkeep.Names(reflect.TypeFor[ownerFields]())
	knownRecordFields = jsonkeep.Names(reflect.TypeFor[recordFields]())
)

// MarshalJSON keeps unknown fields.
func (o Owner) MarshalJSON() ([]byte, error) { return o.appendJSON(nil) }

// UnmarshalJSON keeps unknown fields.
func (o *Owner) UnmarshalJSON(data []byte) (err error) {
	*o = Owner{}
	o.Unknown, err = jsonkeep.Decode(data, (*ownerFields)(o), knownOwnerFields)
	return err
}

// MarshalJSON keeps unknown fields.
func (r Record) MarshalJSON() ([]byte, error) { return r.appendJSON(nil) }

// UnmarshalJSON keeps unknown fields.
func (r *Record) UnmarshalJSON(data []byte) (err error) {
	if *r = (Record{}); r.parse(data) {
		return nil
	}
	*r = Record{}
	r.Unknown, err = jsonkeep.Decode(data, (*recordFields)(r), knownRecordFields)
	return err
}

// size is a guess at the length of the JSON form, so that it is made in one piece.
func (r *Record) size() int {
	n := 320 + len(r.Type) + len(r.Owner.RID) + len(r.With) + len(r.Activation)
	for _, op := range r.Ops {
		n += len(op) + 3
	}
	return n
}

func (r *Record) appendJSON(b []byte) (_ []byte, err error) {
	b = slices.Grow(b, r.size())
	b = strconv.AppendInt(append(b, `{"v":`...), int64(r.V), 10)
	b = appendString(append(b, `,"phase":`...), string(r.Phase))
	b = appendString(append(b, `,"kind":`...), string(r.Kind))
	if r.Type != "" {
		b = appendString(append(b, `,"type":`...), r.Type)
	}
	if o := &r.Owner; o.RID != "" || o.Lifecycle != 0 || o.Lease != 0 || o.Unknown != nil {
		if b, err = o.appendJSON(append(b, `,"owner":`...)); err != nil {
			return nil, err
		}
	}
	if r.Move != nil {
		if b, err = r.Move.appendJSON(append(b, `,"move":`...)); err != nil {
			return nil, err
		}
	}
	if r.Generation != 0 {
		b = strconv.AppendUint(append(b, `,"generation":`...), r.Generation, 10)
	}
	if r.OwnerGeneration != 0 {
		b = strconv.AppendUint(append(b, `,"owner_generation":`...), r.OwnerGeneration, 10)
	}
	b = strconv.AppendUint(append(b, `,"write":`...), r.Write, 10)
	b = appendStrings(append(b, `,"ops":`...), r.Ops)
	if b, err = appendRaw(b, "with", r.With); err != nil {
		return nil, err
	}
	if b, err = appendRaw(b, "activation", r.Activation); err != nil {
		return nil, err
	}
	if b, err = appendTime(b, "created", r.Created); err != nil {
		return nil, err
	}
	if b, err = appendTime(b, "updated", r.Updated); err != nil {
		return nil, err
	}
	for _, name := range sortedNames(r.Unknown) {
		if b, err = appendName(b, name); err != nil {
			return nil, err
		}
		b = append(b, r.Unknown[name]...)
	}
	return append(b, '}'), nil
}

func (o *Owner) appendJSON(b []byte) (_ []byte, err error) {
	b = appendString(append(b, `{"rid":`...), o.RID)
	b = strconv.AppendUint(append(b, `,"lifecycle":`...), o.Lifecycle, 10)
	b = strconv.AppendUint(append(b, `,"lease":`...), o.Lease, 10)
	return appendUnknown(b, o.Unknown)
}

// appendUnknown appends the unknown fields of what stands inside a record, and ends it.
func appendUnknown(b []byte, unknown map[string]json.RawMessage) (_ []byte, err error) {
	for _, name := range sortedNames(unknown) {
		if b, err = appendName(b, name); err != nil {
			return nil, err
		}
		if b, err = appendCompact(b, unknown[name]); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return append(b, '}'), nil
}

// sortedNames costs nothing for a record of this version.
func sortedNames(unknown map[string]json.RawMessage) []string {
	if len(unknown) == 0 {
		return nil
	}
	return slices.Sorted(maps.Keys(unknown))
}

// appendName appends a field name that is no constant.
func appendName(b []byte, name string) ([]byte, error) {
	key, err := json.Marshal(name)
	return append(append(append(b, ','), key...), ':'), err
}

func appendString(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c >= 0x7f || c == '"' || c == '\\' {
			return appendEscaped(b, s)
		}
	}
	return append(append(append(b, '"'), s...), '"')
}

func appendEscaped(b []byte, s string) []byte {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false) // what was carried as it is stays as it is
	_ = enc.Encode(s)        // a string always can be encoded
	return append(b, bytes.TrimSuffix(buf.Bytes(), []byte("\n"))...)
}

func appendStrings(b []byte, list []string) []byte {
	if list == nil {
		return append(b, "null"...)
	}
	b = append(b, '[')
	for i, s := range list {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(b, s)
	}
	return append(b, ']')
}

// appendRaw appends a field that holds JSON, unless it is empty.
func appendRaw(b []byte, name string, raw json.RawMessage) ([]byte, error) {
	if len(raw) == 0 {
		return b, nil
	}
	b, err := appendCompact(append(append(append(b, `,"`...), name...), `":`...), raw)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return b, nil
}

// appendCompact appends JSON without the white space between its parts.
func appendCompact(b []byte, raw json.RawMessage) ([]byte, error) {
	if bytes.ContainsAny(raw, " \t\r\n") || !valid(raw) {
		buf := bytes.NewBuffer(b)
		err := json.Compact(buf, raw)
		return buf.Bytes(), err
	}
	return append(b, raw...), nil
}

// valid is json.Valid, only faster: that one looks several times as long at each byte inside a string, and most of a first message is one.
func valid(raw []byte) bool {
	var buf [256]byte
	form := buf[:0] // raw without what stands in strings and says nothing about its form
	quoted := false
	for i := 0; i < len(raw); i++ {
		switch c := raw[i]; {
		case quoted && c == '\\':
			n := min(len(`\u0000`), len(raw)-i)
			if n > 1 && raw[i+1] != 'u' {
				n = 2
			}
			form = append(form, raw[i:i+n]...)
			i += n - 1
		case quoted && c >= ' ' && c != '"':
		default:
			quoted = quoted != (c == '"')
			form = append(form, c)
		}
	}
	return json.Valid(form)
}

func appendTime(b []byte, name string, t time.Time) ([]byte, error) {
	if t.IsZero() {
		return b, nil
	}
	b, err := t.AppendText(append(append(append(b, `,"`...), name...), `":"`...))
	return append(b, '"'), err
}

// parse reads the form that appendJSON writes, without unknown fields, and reports false for any other. What it keeps
// are parts of data.
func (r *Record) parse(data []byte) bool {
	p := parser{data: data, text: string(data)}
	for name := p.first(); name != ""; name = p.next() {
		switch name {
		case "v":
			r.V = int(p.number())
		case "phase":
			r.Phase = Phase(p.string())
		case "kind":
			r.Kind = Class(p.string())
		case "type":
			r.Type = p.string()
		case "owner":
			r.Owner = p.owner()
		case "move":
			r.Move = p.move()
		case "generation":
			r.Generation = p.number()
		case "owner_generation":
			r.OwnerGeneration = p.number()
		case "write":
			r.Write = p.number()
		case "ops":
			r.Ops = p.strings()
		case "with":
			r.With = p.raw()
		case "activation":
			r.Activation = p.raw()
		case "created":
			r.Created = p.time()
		case "updated":
			r.Updated = p.time()
		default:
			return false
		}
	}
	return !p.failed && p.at == len(data)
}

// parser reads JSON without white space and escapes. What it does not understand makes it fail for good: every
// method then returns a zero value.
type parser struct {
	data   []byte
	text   string // the same; strings are parts of it
	at     int
	failed bool
}

// take reads one byte.
func (p *parser) take(c byte) bool {
	if p.failed || p.at >= len(p.data) || p.data[p.at] != c {
		p.failed = true
		return false
	}
	p.at++
	return true
}

// sees reports whether the byte comes next.
func (p *parser) sees(c byte) bool { return !p.failed && p.at < len(p.data) && p.data[p.at] == c }

// first begins an object and returns the name of its first field; "" when there is none.
func (p *parser) first() string {
	p.take('{')
	return p.name()
}

// next returns the name of the next field, or ends the object and returns "".
func (p *parser) next() string {
	if p.sees('}') {
		p.at++
		return ""
	}
	p.take(',')
	return p.name()
}

func (p *parser) name() string {
	s := p.string()
	p.take(':')
	return s
}

func (p *parser) string() string {
	if !p.take('"') {
		return ""
	}
	for i := p.at; i < len(p.data); i++ {
		switch c := p.data[i]; {
		case c == '"':
			s := p.text[p.at:i]
			p.at = i + 1
			return s
		case c < ' ' || c >= 0x7f || c == '\\':
			i = len(p.data)
		}
	}
	p.failed = true
	return ""
}

func (p *parser) strings() []string {
	list := make([]string, 0, maxOps)
	p.take('[')
	if p.sees(']') {
		p.at++
		return list
	}
	for !p.failed {
		list = append(list, p.string())
		if p.sees(']') {
			p.at++
			return list
		}
		p.take(',')
	}
	return nil
}

func (p *parser) number() uint64 {
	var n uint64
	begin := p.at
	for ; p.at < len(p.data) && p.data[p.at] >= '0' && p.data[p.at] <= '9'; p.at++ {
		n = n*10 + uint64(p.data[p.at]-'0')
	}
	// More digits might overflow, and none begins with a zero that has others behind it.
	if digits := p.at - begin; digits == 0 || digits > 18 || p.data[begin] == '0' && digits > 1 {
		p.failed = true
	}
	return n
}

// isTrue reads the one value of a flag that is written.
func (p *parser) isTrue() bool {
	if p.failed = p.failed || !strings.HasPrefix(p.text[p.at:], "true"); p.failed {
		return false
	}
	p.at += len("true")
	return true
}

func (p *parser) time() (t time.Time) {
	s := p.string()
	if !p.failed && t.UnmarshalText([]byte(s)) != nil {
		p.failed = true
	}
	return t
}

// raw returns the value that comes next, of whatever type.
func (p *parser) raw() json.RawMessage {
	begin, depth, quoted := p.at, 0, false
	for ; p.at < len(p.data); p.at++ {
		switch c := p.data[p.at]; {
		case quoted && c == '\\':
			p.at++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			depth++
		case depth > 0 && (c == '}' || c == ']'):
			depth--
		case depth == 0 && (c == ',' || c == '}'):
			v := p.data[begin:p.at:p.at]
			if !valid(v) || space(v[0]) || space(v[len(v)-1]) {
				p.failed = true
			}
			return v
		}
	}
	p.failed = true
	return nil
}

func space(c byte) bool { return c == ' ' || c == '\t' || c == '\r' || c == '\n' }

func (p *parser) owner() (o Owner) {
	for name := p.first(); name != ""; name = p.next() {
		switch name {
		case "rid":
			o.RID = p.string()
		case "lifecycle":
			o.Lifecycle = p.number()
		case "lease":
			o.Lease = p.number()
		default:
			p.failed = true
		}
	}
	return o
}
