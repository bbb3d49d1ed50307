package reference

import (
	"bytes"
	"context"
	"encoding/gob"
	"fmt"

	"natsfabric/objects"
)

// ledgerVersion is the version of what Capture hands out.
const ledgerVersion = 1

// maxLedgerState bounds it: the entries' bytes and what names and lengths add to them.
const maxLedgerState = MaxEntryBytes + 16<<20

// ledgerState is what of a ledger moves with it. Timers that are set move by themselves; their names go on from Timers.
type ledgerState struct {
	Entries []ledgerEntry
	Timers  uint64
}

// Capture hands out the entries.
func (l *ledger) Capture(context.Context, *objects.Self) (objects.State, error) {
	var b bytes.Buffer
	err := gob.NewEncoder(&b).Encode(ledgerState{l.kept.list, l.timers})
	return objects.State{Version: ledgerVersion, Data: b.Bytes()}, err
}

// Restore takes them in at the target.
func (l *ledger) Restore(_ context.Context, _ *objects.Self, state objects.State) error {
	if state.Version != ledgerVersion {
		return fmt.Errorf("a ledger of version %d: %w", state.Version, objects.ErrStateVersion)
	}
	var s ledgerState
	if err := gob.NewDecoder(bytes.NewReader(state.Data)).Decode(&s); err != nil {
		return fmt.Errorf("a ledger that cannot be read: %w", err)
	}
	for _, e := range s.Entries {
		if err := l.kept.add(e); err != nil {
			return err
		}
	}
	l.timers = s.Timers
	return nil
}
