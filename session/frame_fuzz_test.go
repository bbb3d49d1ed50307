package session

import (
	"bytes"
	"reflect"
	"strings"
	"testing"

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
