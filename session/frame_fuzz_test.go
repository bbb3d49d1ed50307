package session

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"natsfabric/session/internal/frame"
)

// FuzzFrame: what a client sends is read or refused, never more; what is read can be written and read again as the same.
func FuzzFrame(f *testing.F) {
	for _, s := range []string{
		"", "\n", "{}\n", hello("ann"), "{\"t\":\"request\",\"id\":1,\"b\":\"x\",\"ms\":-5}\nbody\nwith lines", "{\"t\":\"\\u0000\"}\n",
		"{\"t\":\"err\",\"id\":18446744073709551615,\"text\":\"\\ud800\"}\n\x00\xff", strings.Repeat("{", 5000), "null\n", "{\"t\":\"a\",\"t\":\"b\"}\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		h, payload, err := frame.Parse(data)
		if err != nil {
			if h != (frame.Header{}) || payload != nil || err.Error() == "" {
				t.Fatalf("%+v %q %v", h, payload, err)
			}
			return
		}
		if !bytes.HasSuffix(data, payload) || h.Type == "" {
			t.Fatalf("%+v %q", h, payload)
		}
		out := frame.Make(&h, payload)
		if bytes.IndexByte(out, '\n') > frame.MaxHeader {
			return // a header may grow: an escape, where there was none
		}
		again, rest, err := frame.Parse(out)
		if err != nil || !reflect.DeepEqual(h, again) || !bytes.Equal(rest, payload) {
			t.Fatalf("%q: %+v %q, then %+v %q %v", data, h, payload, again, rest, err)
		}
	})
}

// FuzzHeader: a header is read as encoding/json would read it, but for names in another case, and written byte for byte
// as it would.
func FuzzHeader(f *testing.F) {
	for _, s := range []string{
		`{"t":"ok","id":7}`, ` { "t" : "a" , "x" : [ 1 , {"y":null} , "z" , true , -1.5e+3 , [] , {} ] } `, `{"t":"a","id":null,"id":1,"id":2}`,
		`{"t":"a","text":"\"\\\/\b\f\n\r\t\u0041\u00e9\ud83d\ude00\ud800\ud800\u0041\udc00x<>&"}`, "{\"t\":\"\u2028\u2029\u007f\u00e9\"}", `{"t":"a"}x`, `{"t":"a",}`, `{,}`, `{"t"}`,
		`{"t":1}`, `{"id":-0}`, `{"ms":-0}`, `{"ms":-9223372036854775808}`, `{"ms":9223372036854775808}`, `{"id":18446744073709551616}`, `{"id":01}`, `{"id":1.0}`, `{"id":1e2}`,
		`{"early":true,"remote":false}`, `{"early":0}`, `null`, `[]`, `"t"`, `{"T":"a"}`, `{"t":"a","x":01}`, `{"t":"a","x":-}`, `{"t":"a","x":1.}`, `{"t":"a","x":1e}`, `{"t":"a","x":"\u00g0"}`, `{"t":"a","x":nul}`,
		`{"t":"a","v":1,"client":"c","session":"s","n":2,"to":"t","heartbeat":3,"max":4,"inflight":5,"kind":"k","acc":"c","why":"w","ref":"r","rid":"i","s":6,"g":7,"b":"b"}`, "{\"t\":\"a\"}\x00", "{\"t\":\"a\x01\"}",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if bytes.IndexByte(data, '\n') >= 0 || len(data) > frame.MaxHeader || !utf8.Valid(data) {
			return // is no header in any case
		}
		want, wantErr := slowly(data)
		got, payload, err := frame.Parse(append(append([]byte(nil), data...), "\nx"...))
		if (err != nil) != (wantErr != nil) || got != want || err == nil && string(payload) != "x" {
			t.Fatalf("%q is read as %+v, %v, and should be %+v, %v", data, got, err, want, wantErr)
		}
		wrote, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		if out := frame.Make(&want, nil); string(out) != string(wrote)+"\n" {
			t.Fatalf("%+v is written as %q, and should be %q", want, out, wrote)
		}
	})
}

// slowly reads a header by encoding/json: names must be exact, the last of two values counts.
func slowly(data []byte) (frame.Header, error) {
	var h frame.Header
	d := json.NewDecoder(bytes.NewReader(data))
	if open, err := d.Token(); err != nil || open != json.Delim('{') {
		return frame.Header{}, errors.New("no object")
	}
	fields := make(map[string]reflect.Value)
	for i := range reflect.TypeFor[frame.Header]().NumField() {
		name, _, _ := strings.Cut(reflect.TypeFor[frame.Header]().Field(i).Tag.Get("json"), ",")
		fields[name] = reflect.ValueOf(&h).Elem().Field(i).Addr()
	}
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return frame.Header{}, err
		}
		var raw json.RawMessage
		if err := d.Decode(&raw); err != nil {
			return frame.Header{}, err
		}
		if field, ok := fields[name.(string)]; ok {
			if err := json.Unmarshal(raw, field.Interface()); err != nil {
				return frame.Header{}, err
			}
		}
	}
	if !json.Valid(data) {
		return frame.Header{}, errors.New("no JSON")
	}
	if h.Type == "" {
		return frame.Header{}, errors.New("no type")
	}
	return h, nil
}

// FuzzPushes: a batch from another node is read or refused.
func FuzzPushes(f *testing.F) {
	f.Add([]byte{})
	f.Add(appendPushes(nil, "token", []push{{1, 2, []byte("x")}, {2, 2, nil}}))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01})
	f.Add([]byte{1, 'x', 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01, 1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01})
	f.Fuzz(func(t *testing.T, data []byte) {
		token, items, err := parsePushes(data)
		if err != nil {
			return
		}
		again, more, err := parsePushes(appendPushes(nil, token, items))
		if err != nil || again != token || len(more) != len(items) {
			t.Fatalf("%q %v, then %q %v %v", token, items, again, more, err)
		}
		for i := range items {
			if items[i].seq != more[i].seq || items[i].owner != more[i].owner || !bytes.Equal(items[i].data, more[i].data) {
				t.Fatalf("%v, then %v", items[i], more[i])
			}
		}
	})
}
