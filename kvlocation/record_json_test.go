package kvlocation

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"natsfabric/internal/jsonkeep"

	"pgregory.net/rapid"
)

// oracleRecord is a Record that encoding/json writes, with the fields in the same order under the same names.
type oracleRecord struct {
	V               int             `json:"v"`
	Phase           Phase           `json:"phase"`
	Kind            Class           `json:"kind"`
	Type            string          `json:"type,omitempty"`
	Owner           oracleOwner     `json:"owner,omitzero"`
	Move            *oracleMove     `json:"move,omitempty"`
	Generation      uint64          `json:"generation,omitempty"`
	OwnerGeneration uint64          `json:"owner_generation,omitempty"`
	Write           uint64          `json:"write"`
	Ops             []string        `json:"ops"`
	With            json.RawMessage `json:"with,omitempty"`
	Activation      json.RawMessage `json:"activation,omitempty"`
	Created         time.Time       `json:"created,omitzero"`
	Updated         time.Time       `json:"updated,omitzero"`
}

type oracleOwner Owner

func (o oracleOwner) MarshalJSON() ([]byte, error) { return jsonkeep.Encode(ownerFields(o), o.Unknown) }

// oracleMove is a Move likewise.
type oracleMove struct {
	Op       string      `json:"op"`
	Target   oracleOwner `json:"target"`
	Accepted bool        `json:"accepted,omitempty"`
	H        uint64      `json:"h,omitempty"`

	unknown map[string]json.RawMessage
}

func (m oracleMove) MarshalJSON() ([]byte, error) {
	type fields oracleMove
	return jsonkeep.Encode(fields(m), m.unknown)
}

func oracle(r Record) ([]byte, error) {
	var move *oracleMove
	if m := r.Move; m != nil {
		move = &oracleMove{m.Op, oracleOwner(m.Target), m.Accepted, m.H, m.Unknown}
	}
	return jsonkeep.Encode(oracleRecord{
		r.V, r.Phase, r.Kind, r.Type, oracleOwner(r.Owner), move, r.Generation, r.OwnerGeneration, r.Write, r.Ops,
		r.With, r.Activation, r.Created, r.Updated,
	}, r.Unknown)
}

// oracleDecode reads a record by reflection alone.
func oracleDecode(data []byte) (r Record, err error) {
	r.Unknown, err = jsonkeep.Decode(data, (*recordFields)(&r), knownRecordFields)
	return r, err
}

// TestOracleIsARecord holds the oracle to the fields of Record and Owner.
func TestOracleIsARecord(t *testing.T) {
	t.Parallel()
	record, same := reflect.TypeFor[Record](), reflect.TypeFor[oracleRecord]()
	if record.NumField() != same.NumField()+1 { // Unknown
		t.Fatalf("%d fields, the oracle has %d", record.NumField(), same.NumField())
	}
	for i := range same.NumField() {
		if a, b := record.Field(i), same.Field(i); a.Name != b.Name || a.Tag != b.Tag {
			t.Errorf("field %d is %s %s, the oracle's %s %s", i, a.Name, a.Tag, b.Name, b.Tag)
		}
	}
	if n := reflect.TypeFor[Move]().NumField(); n != 5 {
		t.Errorf("a move has %d fields: the encoder by hand writes 4 and the unknown ones", n)
	}
	if n := reflect.TypeFor[Owner]().NumField(); n != 4 {
		t.Errorf("an owner has %d fields: the encoder by hand writes 3 and the unknown ones", n)
	}
}

// anyRecord draws records of every form, valid and not.
func anyRecord() *rapid.Generator[Record] {
	text := rapid.OneOf(rapid.StringMatching(`[a-z_]{0,6}`), rapid.String(), rapid.SampledFrom([]string{
		"", "a\"b", `\`, "<&>", "\u2028", "\xff", "\x7f", "\x00", "ä\t",
	}))
	raw := rapid.OneOf(
		rapid.SampledFrom([]string{"", "null", "1", `"x"`, `[1, {"a" : 2}]`, `{"<&>":"\u003c"}`, ` "x"`, `{"a":"]}\\\""}`, "{", "1 2", `"` + "\xff" + `"`}),
		rapid.Custom(func(t *rapid.T) string {
			b, err := json.Marshal(text.Draw(t, "text"))
			if err != nil {
				t.Fatal(err)
			}
			return string(b)
		}),
	)
	message := func(t *rapid.T, name string) json.RawMessage {
		if s := raw.Draw(t, name); s != "" || rapid.Bool().Draw(t, name+" empty") {
			return json.RawMessage(s)
		}
		return nil
	}
	unknown := func(t *rapid.T, name string) map[string]json.RawMessage {
		names := rapid.SliceOfNDistinct(text, 0, 2, rapid.ID).Draw(t, name)
		if len(names) == 0 {
			return nil
		}
		out := map[string]json.RawMessage{}
		for _, n := range names {
			out["x"+n] = message(t, name+" value")
		}
		return out
	}
	instant := func(t *rapid.T, name string) time.Time {
		switch rapid.IntRange(0, 5).Draw(t, name) {
		case 0:
			return time.Time{}
		case 1:
			return time.Date(rapid.IntRange(-1, 10001).Draw(t, name+" year"), 1, 1, 0, 0, 0, 0, time.UTC)
		case 2:
			return testTime.In(time.FixedZone("", rapid.IntRange(-100_000, 100_000).Draw(t, name+" zone")))
		}
		return testTime.Add(time.Duration(rapid.Int64Range(0, 1e15).Draw(t, name+" ns")))
	}
	return rapid.Custom(func(t *rapid.T) Record {
		r := Record{
			V: rapid.IntRange(-1, 1000).Draw(t, "v"), Phase: Phase(text.Draw(t, "phase")), Kind: Class(text.Draw(t, "kind")),
			Type: text.Draw(t, "type"), Generation: rapid.Uint64().Draw(t, "generation"),
			OwnerGeneration: rapid.Uint64Range(0, 2).Draw(t, "owner generation"), Write: rapid.Uint64().Draw(t, "write"),
			Ops: rapid.SliceOfN(text, 0, 8).Draw(t, "ops"), With: message(t, "with"), Activation: message(t, "activation"),
			Created: instant(t, "created"), Updated: instant(t, "updated"), Unknown: unknown(t, "unknown"),
		}
		owner := func(name string) Owner {
			return Owner{
				RID: text.Draw(t, name), Lifecycle: rapid.Uint64().Draw(t, name+" lifecycle"), Lease: rapid.Uint64Range(0, 1).Draw(t, name+" lease"),
				Unknown: unknown(t, name+" unknown"),
			}
		}
		if rapid.Bool().Draw(t, "owned") {
			r.Owner = owner("owner")
		}
		if rapid.Bool().Draw(t, "moved") {
			r.Move = &Move{
				Op: text.Draw(t, "op"), Target: owner("target"), Accepted: rapid.Bool().Draw(t, "accepted"), H: rapid.Uint64Range(0, 2).Draw(t, "h"),
				Unknown: unknown(t, "move's"),
			}
		}
		if len(r.Ops) == 0 && rapid.Bool().Draw(t, "no ops") {
			r.Ops = nil
		}
		return r
	})
}

// TestRecordBytes compares what is written by hand with what encoding/json writes, byte for byte.
func TestRecordBytes(t *testing.T) {
	t.Parallel()
	written := 0
	rapid.Check(t, func(t *rapid.T) {
		r := anyRecord().Draw(t, "record")
		want, wantErr := oracle(r)
		got, err := r.appendJSON(nil)
		if (err == nil) != (wantErr == nil) {
			t.Fatalf("%+v: error %v, encoding/json: %v", r, err, wantErr)
		}
		if err != nil {
			return
		}
		written++
		if !bytes.Equal(got, want) {
			t.Fatalf("wrote\n%s\nencoding/json writes\n%s", got, want)
		}
		checkParse(t, got)
		// And the ways in which others write it, or break it.
		other := bytes.Clone(got)
		if rapid.Bool().Draw(t, "spaces") {
			var buf bytes.Buffer
			if json.Indent(&buf, got, "", " ") == nil {
				other = buf.Bytes()
			}
		}
		for range rapid.IntRange(0, 3).Draw(t, "changes") {
			i := rapid.IntRange(0, len(other)-1).Draw(t, "at")
			other[i] = rapid.SampledFrom([]byte(`{}[]",:\0129 aAn`)).Draw(t, "byte")
		}
		checkParse(t, other)
	})
	if written == 0 {
		t.Error("no record could be written")
	}
}

// checkParse compares what is read by hand, if it is, with what encoding/json reads.
func checkParse(t interface{ Fatalf(string, ...any) }, data []byte) {
	var got Record
	if !got.parse(data) {
		return
	}
	want, err := oracleDecode(data)
	if err != nil {
		t.Fatalf("%s\nwas read as %+v; encoding/json: %v", data, got, err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("%s\nwas read as %+v,\nby encoding/json as %+v", data, got, want)
	}
}

// TestParseReadsOrdinaryRecords shows that the records of this version take the quick way.
func TestParseReadsOrdinaryRecords(t *testing.T) {
	t.Parallel()
	r := benchRecord()
	marker := Record{V: 1, Phase: PhaseMissing, Kind: ClassActor, Generation: 7, OwnerGeneration: 1, Write: 3, Ops: []string{"a"}, Updated: testTime}
	creating := r
	creating.Phase, creating.Generation, creating.With = PhaseCreating, 0, nil
	creating.Activation = json.RawMessage(`{"input":"x\"]}","first":{"data":[1,2,{}]}}`)
	for _, r := range []Record{r, marker, creating} {
		b, err := r.appendJSON(nil)
		if err != nil {
			t.Fatal(err)
		}
		var got Record
		if !got.parse(b) || !reflect.DeepEqual(got, r) {
			t.Errorf("%s\nwas read as %+v", b, got)
		}
	}
}

// TestRecordCost holds the work for a record to a few allocations: one less without the race detector.
func TestRecordCost(t *testing.T) {
	r := benchRecord()
	at := Entry{Key: testKey, Revision: 7, Record: r, read: true}
	a := at.action(VerbAdopt, r.Owner)
	a.Owner.Lease++
	b, err := r.appendJSON(nil)
	if err != nil {
		t.Fatal(err)
	}
	m := &storedMsg{revision: 7, value: b}
	for _, c := range []struct {
		name string
		most float64
		do   func() error
	}{
		{"encode", 2, func() error { _, err := r.appendJSON(nil); return err }},
		{"decode", 3, func() error { _, err := entryOf(testKey, m); return err }},
		{"transition", 1, func() error { _, err := Transition(at, a); return err }},
	} {
		if n := testing.AllocsPerRun(100, func() {
			if err := c.do(); err != nil {
				t.Fatal(err)
			}
		}); n > c.most {
			t.Errorf("%s: %v allocations, want at most %v", c.name, n, c.most)
		}
	}
}

func FuzzRecordParse(f *testing.F) {
	r := benchRecord()
	b, err := r.appendJSON(nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	for _, s := range []string{
		`{"v":1,"phase":"ready","owner":{"rid":"a"},"move":{"op":[1,"]"]},"with":null,"ops":[]}`,
		`{"v":1,"write":18446744073709551616}`, `{"v":1,"write":99999999999999999999999}`, `{"v":1,"write":9223372036854775808}`,
		`{"v":9223372036854775808}`, `{"v":01}`, `{"v":-1}`, `{"v":1.0}`, `{"v":1}}`, `{"v":1} `, `{"v":1,}`, `{,"v":1}`, `{}`, `{"":1}`,
		`{"v":1,"with":{]}}`, `{"v":1,"with":tru}`, `{"v":1,"with":1 }`, `{"v":1,"with": 1}`, `{"v":1,"with":{"a": 1}}`, `{"v":1,"with":}`,
		`{"v":1,"with":"a"}","activation":["\"]}`, `{"v":1,"with":"a}`, `{"v":1,"v":2,"ops":["a"],"ops":["b","c"]}`, `{"V":1,"Phase":"x"}`,
		`{"v":1,"created":"2026-01-02T03:04:05Z","updated":"2026-01-02t03:04:05Z"}`, `{"v":1,"created":"2026-01-02T03:04:05,1Z"}`,
		`{"v":1,"ops":null}`, `{"v":1,"ops":[1]}`, `{"v":1,"ops":["a",]}`, `{"v":1,"type":"A"}`, `{"v":1,"type":null}`, `{"v":1,"owner":{}}`,
		`{"v":1,"owner":{"rid":"a"},"owner":{"lease":2}}`, `{"v":1,"owner":null}`, `{"v":1,"future":1}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) { checkParse(t, data) })
}

// FuzzValid compares what is valid JSON with what the standard library says.
func FuzzValid(f *testing.F) {
	for _, s := range []string{
		``, `""`, `"a b"`, `"a`, `a"`, `"\"`, `"\""`, `"\\"`, `"\u12"`, `"\u12aF"`, `"\u12ag"`, `"\u"`, `"\ux"`, `"\x"`, `"\n"`, `"\`, `"\u1234`, `"a` + "\n" + `b"`, `"a` + "\x00" + `b"`,
		`{"a":"b","c":[1,2.5e3,true,null,"d"]}`, `{"a""b"}`, `["a" "b"]`, `"a"b"c"`, `[1,]`, "\xff", "\"\xff\"", ` "a" `, `{"u\u0041":"` + strings.Repeat("x", 300) + `"}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		if got, want := valid(raw), json.Valid(raw); got != want {
			t.Errorf("%q: %v, want %v", raw, got, want)
		}
	})
}
