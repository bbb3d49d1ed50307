package kvlocation

import (
	"encoding/json"
	"testing"

	"natsfabric/fabrictest"
	"natsfabric/outcome"
)

func TestSetWith(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, b *bed) {
		p, key := b.party(t), objectOf(t)
		at := p.ready(t, key).Entry
		for _, with := range []string{`{"spot":"s","generation":7}`, ""} {
			var value json.RawMessage
			if with != "" {
				value = json.RawMessage(with)
			}
			ch, err := p.SetWith(testContext(t), at, n1, value)
			at = mustChange(t, ch, err).Entry
			if e := p.mustRead(t, key); string(e.Record.With) != with || e.Phase() != PhaseReady || e.Revision != at.Revision ||
				e.Generation() != at.Generation() || e.Record.OwnerGeneration != 1 {
				t.Fatalf("the key holds %+v", e)
			}
		}
		// Exactly this owner generation, under the lease generation that stands in the record.
		_, err := p.SetWith(testContext(t), at, n1later, nil)
		wantError(t, err, outcome.InvalidOperation, outcome.NotAccepted)
		_, err = p.SetWith(testContext(t), at, n2, nil)
		wantError(t, err, outcome.InvalidOperation, outcome.NotAccepted)
		ch, err := p.Adopt(testContext(t), at, n1later)
		adopted := mustChange(t, ch, err).Entry
		// What it knows is old, but the incarnation, the owner generation and the lease are the right ones.
		ch, err = p.SetWith(testContext(t), at, n1later, json.RawMessage(`1`))
		if mustChange(t, ch, err); ch.Entry.Revision <= adopted.Revision {
			t.Errorf("got %+v", ch)
		}
		ch, err = p.CloseObject(testContext(t), ch.Entry, n1later)
		mustChange(t, ch, err)
		_, err = p.SetWith(testContext(t), adopted, n1later, nil)
		wantError(t, err, outcome.NotFound, outcome.NotAccepted)
	})
}

func TestCreateAssumeMissing(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, b *bed) {
		p, key := b.party(t), objectOf(t)
		object := room(key, n1, nil)
		object.AssumeMissing = true
		reads := p.proxy.Arm(fabrictest.Trigger{Subject: "$JS.API.DIRECT.GET.>", Action: fabrictest.Signal, Times: -1})
		ch, err := p.Create(testContext(t), object)
		at := mustChange(t, ch, err).Entry
		if reads.Count() != 0 || at.Generation() != at.Revision || at.Record.Write != 1 {
			t.Fatalf("%d reads for %+v", reads.Count(), at)
		}
		refused, err := p.Create(testContext(t), object)
		wantError(t, err, outcome.AlreadyExists, outcome.NotAccepted)
		if e := refused.Entry; e.Revision != at.Revision || e.Phase() != PhaseCreating || !e.Record.Owner.Is("n1", n1.Lifecycle) {
			t.Errorf("refused by %+v", e)
		}
		object.Type = "hall"
		_, err = p.Create(testContext(t), object)
		wantError(t, err, outcome.TypeMismatch, outcome.NotAccepted)
		// Over the marker of an earlier incarnation, whose writes go on being counted.
		ch, err = p.Cancel(testContext(t), at, n1, Absence{})
		mustChange(t, ch, err)
		ch, err = p.Create(testContext(t), object)
		if e := mustChange(t, ch, err).Entry; e.Record.Write != 3 || e.Generation() != e.Revision || e.Generation() <= at.Generation() {
			t.Fatalf("over a marker: %+v", e)
		}
	})
}

// TestCreateLostBehindOldObject loses the answer to a create of an object that has been there for more writes than it
// remembers: that it was there before tells that the create was lost.
func TestCreateLostBehindOldObject(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, b *bed) {
		p, q, key := b.party(t), b.party(t), objectOf(t)
		at := p.ready(t, key).Entry
		for range 2 * maxOps {
			ch, err := p.SetWith(testContext(t), at, n1, nil)
			at = mustChange(t, ch, err).Entry
		}
		q.mustRead(t, key) // q knows a sequence that is above the object's generation
		lost := q.loseAnswer(t, key)
		object := room(key, n2, nil)
		object.AssumeMissing = true
		_, err := q.Create(testContext(t), object)
		wantError(t, err, outcome.AlreadyExists, outcome.NotAccepted)
		if lost.Count() != 1 {
			t.Fatalf("%d answers were lost", lost.Count())
		}
	})
}

func TestCancel(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, b *bed) {
		absent := Absence{rid: n1.RID, lifecycle: n1.Lifecycle}
		for _, c := range []struct {
			name   string
			by     Owner
			absent Absence
			want   outcome.Kind // 0: it cancels
		}{
			{"by the creator", n1, Absence{}, 0},
			{"by another, with evidence", n2, absent, 0},
			{"by another", n2, Absence{}, outcome.InvalidOperation},
			{"by another, with evidence of another", n2, Absence{rid: n1.RID, lifecycle: n1.Lifecycle + 1}, outcome.InvalidOperation},
			{"by a later run", n1again, Absence{}, outcome.InvalidOperation},
		} {
			t.Run(c.name, func(t *testing.T) {
				p, key := b.party(t), objectOf(t)
				at := p.create(t, key).Entry
				ch, err := p.Cancel(testContext(t), at, c.by, c.absent)
				e := p.mustRead(t, key)
				if c.want != 0 {
					wantError(t, err, c.want, outcome.NotAccepted)
					if e.Revision != at.Revision {
						t.Errorf("the key holds %+v", e)
					}
					return
				}
				mustChange(t, ch, err)
				if e.Revision != ch.Entry.Revision || e.Phase() != PhaseMissing || e.Record.Activation != nil || e.Record.Owner.RID != "" ||
					e.Record.Generation != at.Generation() || len(e.Record.Ops) != 2 {
					t.Errorf("the key holds %+v", e)
				}
				// The incarnation that was meant is over, whoever asks.
				_, err = p.Ready(testContext(t), at, n1)
				wantError(t, err, outcome.NotFound, outcome.NotAccepted)
				_, err = p.Cancel(testContext(t), at, c.by, c.absent)
				wantError(t, err, outcome.NotFound, outcome.NotAccepted)
			})
		}
		t.Run("of exactly one incarnation", func(t *testing.T) {
			p, key := b.party(t), objectOf(t)
			old := p.create(t, key).Entry
			ch, err := p.Cancel(testContext(t), old, n1, Absence{})
			mustChange(t, ch, err)
			at := p.create(t, key).Entry
			_, err = p.Cancel(testContext(t), old, n1, Absence{})
			wantError(t, err, outcome.NotFound, outcome.NotAccepted)
			if e := p.mustRead(t, key); e.Revision != at.Revision {
				t.Errorf("the key holds %+v", e)
			}
		})
		t.Run("of what is ready", func(t *testing.T) {
			p, key := b.party(t), objectOf(t)
			at := p.create(t, key).Entry
			ch, err := p.Ready(testContext(t), at, n1)
			ready := mustChange(t, ch, err).Entry
			_, err = p.Cancel(testContext(t), at, n2, absent) // it knows only the Creating record
			wantError(t, err, outcome.InvalidOperation, outcome.NotAccepted)
			if e := p.mustRead(t, key); e.Revision != ready.Revision {
				t.Errorf("the key holds %+v", e)
			}
		})
		t.Run("after a takeover", func(t *testing.T) {
			p, key := b.party(t), objectOf(t)
			at := p.create(t, key).Entry
			ch, err := p.Takeover(testContext(t), at, n2, absent)
			taken := mustChange(t, ch, err).Entry
			if string(taken.Record.Activation) != `{"input":1}` {
				t.Errorf("the takeover holds %+v", taken)
			}
			_, err = p.Cancel(testContext(t), at, n1, Absence{})
			wantError(t, err, outcome.InvalidOperation, outcome.NotAccepted)
			ch, err = p.Ready(testContext(t), taken, n2)
			if e := mustChange(t, ch, err).Entry; e.Record.Activation != nil {
				t.Errorf("ready after the takeover: %+v", e)
			}
		})
		t.Run("with lost answers", func(t *testing.T) {
			p, key := b.party(t), objectOf(t)
			at := p.create(t, key).Entry
			lost := p.loseAnswer(t, key)
			ch, err := p.Cancel(testContext(t), at, n1, Absence{})
			if mustChange(t, ch, err); !ch.Repeated || ch.Overwritten || lost.Count() != 1 {
				t.Errorf("got %+v, %d answers lost", ch, lost.Count())
			}
			at = p.create(t, key).Entry
			silent := p.arm(t, key, func(tr *fabrictest.Trigger) { tr.Answer, tr.Action, tr.Times = true, fabrictest.Drop, -1 })
			_, err = p.Cancel(briefly(t), at, n1, Absence{})
			pending := wantPending(t, err)
			silent.Disarm()
			ch, err = p.Resolve(testContext(t), pending)
			if mustChange(t, ch, err); ch.Entry.Phase() != PhaseMissing {
				t.Errorf("got %+v", ch)
			}
		})
	})
}
