package reference

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"natsfabric/objects"
)

// What a ledger captures is what another one restores; the largest one is below the type's bound.
func TestLedgerMoves(t *testing.T) {
	l := &ledger{timers: 7}
	for i := range 3 {
		if err := l.kept.add(ledgerEntry{"c1", int64(i), "x\x00é", "n1", 4}); err != nil {
			t.Fatal(err)
		}
	}
	state, err := l.Capture(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	var other ledger
	if err := other.Restore(t.Context(), nil, state); err != nil || !reflect.DeepEqual(other, *l) {
		t.Errorf("restored %+v, want %+v (%v)", other, *l, err)
	}
	if err := new(ledger).Restore(t.Context(), nil, objects.State{Version: ledgerVersion + 1, Data: state.Data}); !errors.Is(err, objects.ErrStateVersion) {
		t.Errorf("a later version: %v", err)
	}
	if err := new(ledger).Restore(t.Context(), nil, objects.State{Version: ledgerVersion, Data: state.Data[:len(state.Data)/2]}); err == nil {
		t.Error("half a state is taken")
	}

	var full ledger
	for err == nil {
		err = full.kept.add(ledgerEntry{strings.Repeat("c", MaxClient), 1, "", strings.Repeat("n", 64), 1})
	}
	if state, err = full.Capture(t.Context(), nil); err != nil || len(full.kept.list) != MaxEntries || len(state.Data) > maxLedgerState {
		t.Errorf("%d entries have %d bytes, %d are allowed (%v)", len(full.kept.list), len(state.Data), maxLedgerState, err)
	}
}
