package kvlocation

import (
	"encoding/json"
	"testing"

	"natsfabric/outcome"
)

// activationServesCreation follows what a creation is continued from: it goes with the Creating record to whoever takes
// that over, and ends with Ready.
func activationServesCreation(t *testing.T, b *bed) {
	p := b.party(t)
	for _, class := range []Class{ClassActor, ClassUserSpot, ClassInstanceSpot} {
		t.Run(string(class), func(t *testing.T) {
			key := objectOf(t)
			key.Kind = class.Key()
			o := room(key, n1, json.RawMessage(`{"input":"x"}`))
			o.Class = class
			ch, err := p.Create(testContext(t), o)
			at := mustChange(t, ch, err).Entry
			ch, err = p.Takeover(testContext(t), at, n2, Absence{rid: n1.RID, lifecycle: n1.Lifecycle})
			at = mustChange(t, ch, err).Entry
			if e := p.mustRead(t, key); string(e.Record.Activation) != `{"input":"x"}` || e.Generation() != e.Record.Generation || e.Record.OwnerGeneration != 2 {
				t.Fatalf("after the takeover: %+v", e)
			}
			ch, err = p.Ready(testContext(t), at, n2)
			mustChange(t, ch, err)
			if e := p.mustRead(t, key); e.Phase() != PhaseReady || e.Record.Activation != nil || e.Record.Kind != class {
				t.Fatalf("when ready: %+v", e)
			}
		})
	}
}

// leftoverActivation writes, as another version or a hand may, a Ready record with what its creation was continued
// from: that gives nobody a way to continue it, and its owner's writes carry it on until the object ends.
func leftoverActivation(t *testing.T, b *bed) {
	p, key := b.party(t), objectOf(t)
	at := p.ready(t, key).Entry
	r := at.Record
	r.Activation = json.RawMessage(`{"input":"x"}`)
	value, err := r.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.nc.Request(p.writes(t, key).Subject, value, readyIn); err != nil {
		t.Fatal(err)
	}
	at = p.mustRead(t, key)
	absent := Absence{rid: n1.RID, lifecycle: n1.Lifecycle}
	for _, by := range []Owner{n1, n1again, n2} {
		_, err := p.Takeover(testContext(t), at, by, absent)
		wantError(t, err, outcome.InvalidOperation, outcome.NotAccepted)
		_, err = p.Cancel(testContext(t), at, by, absent)
		wantError(t, err, outcome.InvalidOperation, outcome.NotAccepted)
		_, err = p.Ready(testContext(t), at, by)
		wantError(t, err, outcome.InvalidOperation, outcome.NotAccepted)
	}
	for _, by := range []Owner{n1again, n2} {
		_, err := p.Adopt(testContext(t), at, by)
		wantError(t, err, outcome.InvalidOperation, outcome.NotAccepted)
	}
	ch, err := p.Adopt(testContext(t), at, n1later)
	if e := mustChange(t, ch, err).Entry; string(e.Record.Activation) != `{"input":"x"}` {
		t.Errorf("adopted by its owner: %+v", e)
	}
	ch, err = p.CloseObject(testContext(t), ch.Entry, n1later)
	if e := mustChange(t, ch, err).Entry; e.Record.Activation != nil {
		t.Errorf("closed: %+v", e)
	}
}
