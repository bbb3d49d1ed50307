package bed

import (
	"context"
	"testing"
	"time"

	"natsfabric/kvlocation"
)

// watchEvery is the time between two readings of a lease.
const watchEvery = 100 * time.Millisecond

// WatchLeases reads the leases of the given nodes again and again, for the evidence, until the test ends or the returned
// function is called.
func (b *Bed) WatchLeases(t testing.TB, store *kvlocation.Store, rids ...string) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(b.ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(watchEvery)
		defer tick.Stop()
		for {
			for _, rid := range rids {
				read, cancel := context.WithTimeout(ctx, time.Second)
				st, err := store.LeaseOf(read, rid)
				cancel()
				if err == nil && st.Live {
					b.note(st)
				}
			}
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	}()
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	return stop
}

// note keeps a reading unless it is the same as the last one of the node.
func (b *Bed) note(st kvlocation.LeaseState) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := len(b.leases) - 1; i >= 0; i-- {
		if b.leases[i].RID == st.RID {
			if b.leases[i].Revision == st.Revision {
				return
			}
			break
		}
	}
	b.leases = append(b.leases, st)
}

// Lease reads a node's lease now.
func (b *Bed) Lease(t testing.TB, store *kvlocation.Store, rid string) kvlocation.LeaseState {
	t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, Long)
	defer cancel()
	st, err := store.LeaseOf(ctx, rid)
	if err != nil {
		t.Fatal(err)
	}
	return st
}
