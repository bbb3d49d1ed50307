package objects

import (
	"bytes"
	"errors"
	"reflect"
	"testing"

	"github.com/nats-io/nats.go"

	"natsfabric/channels"
	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// sampleCargo has something in every field.
func sampleCargo() *Cargo {
	key := kvlocation.ObjectKey{Kind: kvlocation.KindSpot, ID: "hall/1"}
	p := parcel{
		data: []byte("data"), header: nats.Header{"B": {"1", "2"}, "A": {""}}, chain: "actor/x", mark: "m",
		broadcast: SpotRef{ID: "s", Generation: 7}, reply: "fab.m.node.a.1.r1.x", deadline: 1_700_000_000_000, oneWay: true, hops: 3,
		sender: channels.Sender{RID: "a", Lifecycle: 3, Client: "c"}, sent: true,
	}
	return &Cargo{objects: []cargoObject{
		{key: key, class: kvlocation.ClassUserSpot, typ: "hall", generation: 5, ownerGeneration: 2,
			state: &State{Version: 9, Data: []byte("state")}, timers: []cargoTimer{{name: "t", data: []byte("d"), left: 5}, {name: "u"}},
			companion: []byte("c"), hasCompanion: true, members: []byte("[]"), work: []parcel{p, {timer: "t", oneWay: true}}},
		{key: kvlocation.ObjectKey{Kind: kvlocation.KindActor, ID: "a"}, class: kvlocation.ClassActor, typ: "user"},
	}}
}

// TestCargo: what is packed is what is unpacked; a form that is cut off, of another version, or has too much is refused.
func TestCargo(t *testing.T) {
	c := sampleCargo()
	data := must[[]byte](t)(c.MarshalBinary())
	if got := must[*Cargo](t)(ParseCargo(data)); !reflect.DeepEqual(got, c) {
		t.Fatalf("got %+v, want %+v", got, c)
	}
	h := Held{number: 3, object: c.objects[0].key, parcel: c.objects[0].work[0]}
	held := must[[]byte](t)(h.MarshalBinary())
	if got := must[Held](t)(ParseHeld(held)); !reflect.DeepEqual(got, h) {
		t.Fatalf("got %+v, want %+v", got, h)
	}
	refused := func(data []byte) {
		t.Helper()
		_, err := ParseCargo(data)
		_, herr := ParseHeld(data)
		for _, err := range []error{err, herr} {
			if !errors.Is(err, outcome.ProtocolError) || !errors.Is(err, outcome.NotAccepted) {
				t.Fatal(err)
			}
		}
	}
	for i := range data {
		if _, err := ParseCargo(data[:i]); err == nil {
			t.Fatalf("a cargo cut off after %d bytes was read", i)
		}
	}
	refused(nil)
	refused(append([]byte{cargoVersion + 1}, data[1:]...))
	refused(append(bytes.Clone(data), 0))
	refused([]byte{cargoVersion, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f})
}

func FuzzCargo(f *testing.F) {
	data, _ := sampleCargo().MarshalBinary()
	f.Add(data)
	f.Fuzz(func(t *testing.T, data []byte) {
		_, _ = ParseHeld(data)
		c, err := ParseCargo(data)
		if err != nil {
			return
		}
		again, _ := c.MarshalBinary()
		d, err := ParseCargo(again)
		if err != nil || !reflect.DeepEqual(c, d) {
			t.Fatalf("%+v became %+v: %v", c, d, err)
		}
	})
}
