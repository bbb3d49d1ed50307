package kvlocation

import (
	"testing"

	"natsfabric/fabrictest"
)

func giveUpNotApplied(t *testing.T, b *bed) {
	p, key := b.party(t), objectOf(t)
	late := p.arm(t, key, func(tr *fabrictest.Trigger) {
		tr.Times, tr.Match, tr.Action = -1, firstWriteOnly(), fabrictest.HoldAlone
	})
	_, err := p.Create(briefly(t), room(key, n1, nil))
	pending := wantPending(t, err)
	ch, applied, err := p.GiveUp(testContext(t), pending)
	if mustChange(t, ch, err); applied || ch.Entry.Phase() != PhaseMissing || ch.Entry.Revision == 0 {
		t.Fatalf("applied = %v, got %+v", applied, ch)
	}
	heard := p.hears(saysWrongSequence)
	late.Release()
	heard.Wait(t)
	if e := p.mustRead(t, key); e.Revision != ch.Entry.Revision {
		t.Fatalf("what was given up went through: %+v", e)
	}
}

func giveUpApplied(t *testing.T, b *bed) {
	p, key := b.party(t), objectOf(t)
	answers := p.arm(t, key, func(tr *fabrictest.Trigger) { tr.Answer, tr.Times, tr.Action = true, -1, fabrictest.Drop })
	_, err := p.Create(briefly(t), room(key, n1, nil))
	pending := wantPending(t, err)
	answers.Disarm()
	ch, applied, err := p.GiveUp(testContext(t), pending)
	if mustChange(t, ch, err); !applied || ch.Entry.Phase() != PhaseCreating {
		t.Fatalf("applied = %v, got %+v", applied, ch)
	}
}

func giveUpOverRecord(t *testing.T, b *bed) {
	p, key := b.party(t), objectOf(t)
	at := p.create(t, key).Entry
	late := p.arm(t, key, func(tr *fabrictest.Trigger) {
		tr.Times, tr.Match, tr.Action = -1, firstWriteOnly(), fabrictest.HoldAlone
	})
	_, err := p.Ready(briefly(t), at, n1)
	pending := wantPending(t, err)
	ch, applied, err := p.GiveUp(testContext(t), pending)
	mustChange(t, ch, err)
	heard := p.hears(saysWrongSequence)
	late.Release()
	heard.Wait(t)
	e := p.mustRead(t, key)
	if applied || e.Phase() != PhaseCreating || e.Revision != ch.Entry.Revision || e.Generation() != at.Generation() ||
		string(e.Record.Activation) != string(at.Record.Activation) {
		t.Fatalf("applied = %v, the key holds %+v", applied, e)
	}
	// The new try has a new operation ID and wins.
	done, err := p.Ready(testContext(t), ch.Entry, n1)
	mustChange(t, done, err)
}
