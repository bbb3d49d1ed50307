package kvlocation

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"pgregory.net/rapid"

	"natsfabric/fabrictest"
	"natsfabric/internal/monotime"
	"natsfabric/outcome"
)

// TestRecordKeepsWhatItDoesNotKnow decodes and encodes records with fields of a later version, at the top and in the
// owner.
func TestRecordKeepsWhatItDoesNotKnow(t *testing.T) {
	t.Parallel()
	value := rapid.SampledFrom([]string{`1`, `"x<y"`, `null`, `[1,{"a":2}]`, `{"b":1e400}`, `12345678901234567890123`})
	unknown := func(t *rapid.T, name string) map[string]json.RawMessage {
		m := rapid.MapOfN(rapid.StringMatching(`x[a-z"é]{1,8}`), value, 0, 3).Draw(t, name)
		if len(m) == 0 {
			return nil
		}
		out := map[string]json.RawMessage{}
		for k, v := range m {
			out[k] = json.RawMessage(v)
		}
		return out
	}
	raw := func(t *rapid.T, name string) json.RawMessage {
		if rapid.Bool().Draw(t, name+"?") {
			return nil
		}
		return json.RawMessage(value.Draw(t, name))
	}
	rapid.Check(t, func(t *rapid.T) {
		r := Record{
			V: 1, Phase: PhaseReady, Kind: ClassUserSpot, Type: rapid.StringMatching(`[a-z]{0,4}`).Draw(t, "type"),
			Owner:      Owner{RID: "n1", Lifecycle: rapid.Uint64().Draw(t, "lifecycle"), Lease: 3, Unknown: unknown(t, "owner's")},
			Generation: rapid.Uint64().Draw(t, "generation"), OwnerGeneration: 2, Write: 9,
			Ops:  rapid.SliceOfN(rapid.StringMatching(`[A-Za-z0-9]{4}`), 1, 8).Draw(t, "ops"),
			With: raw(t, "with"), Activation: raw(t, "activation"),
			Created: testTime, Unknown: unknown(t, "record's"),
		}
		if rapid.Bool().Draw(t, "moved") {
			r.Move = &Move{Op: "op", Target: Owner{RID: "n2", Lifecycle: 4, Lease: 5}, H: rapid.Uint64().Draw(t, "h"), Unknown: unknown(t, "move's")}
		}
		b, tooLarge := r.encode(nil)
		if tooLarge != nil {
			t.Fatal(tooLarge)
		}
		var back Record
		if err := json.Unmarshal(b, &back); err != nil {
			t.Fatalf("%v\n%s", err, b)
		}
		if !reflect.DeepEqual(r, back) {
			t.Fatalf("%s\ncomes back as\n%+v, was\n%+v", b, back, r)
		}
	})
}

func TestEntryOf(t *testing.T) {
	t.Parallel()
	purge := nats.Header{"KV-Operation": {"PURGE"}}
	expiry := nats.Header{"Nats-Marker-Reason": {"MaxAge"}}
	for _, c := range []struct {
		name   string
		value  string
		header nats.Header
		phase  Phase // "" means an error
		says   string
	}{
		{"a record", `{"v":1,"phase":"ready","kind":"actor","write":1,"ops":["a"]}`, nil, PhaseReady, ""},
		{"a phase of a move", `{"v":1,"phase":"moving","kind":"actor","write":1,"ops":["a"]}`, nil, "moving", ""},
		{"a marker", `{"v":1,"phase":"missing","kind":"actor","write":2,"ops":["a","b"]}`, purge, PhaseMissing, ""},
		{"another tool's marker", ``, purge, PhaseMissing, ""},
		{"the marker of an expiry", ``, expiry, PhaseMissing, ""},
		{"a later version", `{"v":2,"phase":"ready","kind":"actor"}`, nil, "", "schema version 2"},
		{"no version", `{"phase":"ready","kind":"actor"}`, nil, "", "schema version 0"},
		{"no JSON", `hello`, nil, "", "no record"},
		{"nothing", ``, nil, "", "no record"},
		{"another kind", `{"v":1,"phase":"ready","kind":"spot"}`, nil, "", `kind "spot"`},
		{"a wrong type", `{"v":1,"phase":7,"kind":"actor"}`, nil, "", "cannot be read"},
		{"missing without a marker", `{"v":1,"phase":"missing","kind":"actor"}`, nil, "", "deleted = false"},
		{"a marker that says ready", `{"v":1,"phase":"ready","kind":"actor"}`, purge, "", "deleted = true"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			e, err := entryOf(testKey, &storedMsg{revision: 7, value: []byte(c.value), header: c.header, time: testTime})
			if c.phase != "" {
				if err != nil || e.Phase() != c.phase || e.Revision != 7 || !e.Stored.Equal(testTime) {
					t.Fatalf("got %+v, %v", e, err)
				}
				return
			}
			if !errors.Is(err, outcome.ProtocolError) || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), "revision 7") {
				t.Fatalf("got %v, want a ProtocolError that says %q", err, c.says)
			}
		})
	}
	if e, err := entryOf(testKey, nil); err != nil || e.Phase() != PhaseMissing || e.Revision != 0 {
		t.Errorf("nothing: %+v, %v", e, err)
	}
	// Behind a marker that says nothing, the count goes on above every count before it.
	if e, _ := entryOf(testKey, &storedMsg{revision: 7, header: purge}); e.writes() != 7 {
		t.Errorf("writes() = %d", e.writes())
	}
}

func TestRecordSizeIsChecked(t *testing.T) {
	t.Parallel()
	b := newBed(t, 1)
	p, key := b.partyAt(t, 0, longAttempt), objectOf(t)
	sent := p.arm(t, key, func(tr *fabrictest.Trigger) { tr.Times = -1 })
	_, err := p.Create(testContext(t), room(key, n1, json.RawMessage(`"`+strings.Repeat("x", MaxRecord)+`"`)))
	wantError(t, err, outcome.CapacityExceeded, outcome.NotAccepted)
	_, err = p.Create(testContext(t), room(key, n1, json.RawMessage(`{`)))
	wantError(t, err, outcome.InvalidOperation, outcome.NotAccepted)
	_, err = p.write(testContext(t), write{bucket: p.location, key: "actor.big", value: make([]byte, p.nc.MaxPayload()), opID: "big"})
	wantError(t, err, outcome.CapacityExceeded, outcome.NotAccepted)
	if sent.Count() != 0 {
		t.Errorf("%d sendings", sent.Count())
	}
	ch, err := p.Create(testContext(t), room(key, n1, json.RawMessage(`"`+strings.Repeat("x", MaxRecord-1024)+`"`)))
	mustChange(t, ch, err)
	if sent.Count() != 1 {
		t.Errorf("%d sendings", sent.Count())
	}
}

func TestParseAck(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		data string
		want pubAck // err: only whether there is one
		err  bool
	}{
		{`{"stream":"KV_x","seq":17}`, pubAck{seq: 17}, false},
		{`{"stream":"KV_x","domain":"hub","seq":17}`, pubAck{seq: 17}, false},
		{`{"stream":"KV_x","seq": 17,"duplicate": true}`, pubAck{seq: 17}, false},
		{`{"seq":17,"stream":"KV_x"}`, pubAck{seq: 17}, false},
		{`{"stream":"KV_x","seq":18446744073709551615}`, pubAck{seq: 1<<64 - 1}, false},
		{`{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 9"},"stream":"KV_x","seq":0}`, pubAck{code: 10071, seq: 9}, true},
		{`{"stream":"KV_x","seq":0,"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 9"}}`, pubAck{code: 10071, seq: 9}, true},
		{`{"error":{"code":400,"err_code":10071,"description":"wrong"},"stream":"","seq":0}`, pubAck{}, true},
		{`{"error":{"code":400,"err_code":10164,"description":"wrong last sequence"},"stream":"","seq":0}`, pubAck{code: 10164}, true},
		{`{"error":{"code":409,"err_code":10158,"description":"in process"},"stream":"","seq":0}`, pubAck{code: 10158}, true},
		{`{"error":{"code":503,"err_code":10008,"description":"unavailable"},"stream":"","seq":0}`, pubAck{code: 10008}, true},
		{`{"error":{"code":503,"err_code":10047,"description":"storage"},"stream":"","seq":0}`, pubAck{code: 10047}, true},
		{`{"error":{"code":400,"err_code":10165,"description":"invalid TTL"},"stream":"","seq":0}`, pubAck{code: 10165, refused: true}, true},
		{`{"stream":"KV_x","seq":0}`, pubAck{}, true},
		{`{"stream":"KV_x"}`, pubAck{}, true},
		{`[]`, pubAck{}, true},
		{``, pubAck{}, true},
	} {
		got := parseAck(&nats.Msg{Data: []byte(c.data)})
		if (got.err != nil) != c.err {
			t.Errorf("%s: error %v", c.data, got.err)
		}
		got.err = nil
		if got != c.want {
			t.Errorf("%s: got %+v, want %+v", c.data, got, c.want)
		}
	}
	if got := parseAck(&nats.Msg{Header: nats.Header{"Status": {"503"}}}); !got.nobody {
		t.Errorf("no responders: %+v", got)
	}
}

// TestLostIsConcludedInTimeOnly has a write that is older than 9 minutes: what the record holds proves nothing then.
func TestLostIsConcludedInTimeOnly(t *testing.T) {
	t.Parallel()
	b := newBed(t, 1)
	p, key := b.party(t), objectOf(t)
	at := p.create(t, key).Entry
	a := Action{Verb: VerbReady, OpID: "mine", Owner: n1, Generation: at.Generation(), OwnerGeneration: 1}
	next, err := Transition(at, a)
	if err != nil {
		t.Fatal(err)
	}
	ch, err := p.Ready(testContext(t), at, n1) // somebody else's write
	mustChange(t, ch, err)
	for _, c := range []struct {
		age  time.Duration
		want outcome.Acceptance
	}{{resolveLimit - time.Minute, outcome.NotAccepted}, {resolveLimit, outcome.Unknown}} {
		w, err := p.prepare(at, next, a)
		if err != nil {
			t.Fatal(err)
		}
		w.sd.open, w.sd.sent, w.sd.firstSent = true, 1, monotime.Now().Add(-c.age)
		_, err = p.Resolve(testContext(t), w)
		if outcome.AcceptanceOf(err) != c.want || errors.Is(err, ErrConflict) != (c.want == outcome.NotAccepted) {
			t.Errorf("after %v: %v, want %v", c.age, err, c.want)
		}
	}
}
