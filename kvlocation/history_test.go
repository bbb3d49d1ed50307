package kvlocation

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

// validateLeases is I6 for leases: what one lease key shows in the order of its revisions never goes backwards.
// A process run may come back only with a newer lease generation, and never after a later run.
func validateLeases(history []LeaseState) error {
	var lifecycle, generation, revision uint64
	for i, st := range history {
		if st.Revision == revision {
			continue // a new leader may republish what the old one had
		}
		if st.Revision < revision {
			return fmt.Errorf("entry %d: revision %d after %d", i, st.Revision, revision)
		}
		revision = st.Revision
		if !st.Live {
			continue
		}
		switch {
		case st.Lifecycle < lifecycle:
			return fmt.Errorf("entry %d: lifecycle %d after %d", i, st.Lifecycle, lifecycle)
		case st.Generation < generation:
			return fmt.Errorf("entry %d: lease generation %d after %d", i, st.Generation, generation)
		case st.Generation < st.Lifecycle || st.Generation > st.Revision:
			return fmt.Errorf("entry %d: lease generation %d of lifecycle %d at revision %d", i, st.Generation, st.Lifecycle, st.Revision)
		}
		lifecycle, generation = st.Lifecycle, st.Generation
	}
	return nil
}

func TestValidateLeases(t *testing.T) {
	live := func(rev, lifecycle, generation uint64) LeaseState {
		return LeaseState{Live: true, Revision: rev, Lifecycle: lifecycle, Generation: generation}
	}
	for _, c := range []struct {
		name    string
		history []LeaseState
		ok      bool
	}{
		{"good", []LeaseState{live(1, 1, 1), live(2, 1, 1), {Revision: 3}, live(4, 1, 4), {Revision: 5, Proof: "x"}, live(7, 7, 7)}, true},
		{"older run comes back", []LeaseState{live(1, 1, 1), {Revision: 2}, live(3, 3, 3), {Revision: 4}, live(5, 1, 5)}, false},
		{"old generation comes back", []LeaseState{live(1, 1, 1), live(3, 1, 3), live(4, 1, 1)}, false},
		{"revision goes back", []LeaseState{live(3, 3, 3), live(2, 3, 3)}, false},
		{"generation from the future", []LeaseState{live(3, 3, 9)}, false},
	} {
		if err := validateLeases(c.history); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// watchLeases records every change of every lease key, and judges them when the test ends.
func (m *mesh) watchLeases(nc *nats.Conn) {
	t := m.t
	t.Helper()
	var (
		mu     sync.Mutex
		states = map[string][]LeaseState{}
	)
	prefix := m.notice(leaseKey(""))
	_, err := nc.Subscribe(prefix+">", func(msg *nats.Msg) {
		rid := strings.TrimPrefix(msg.Subject, prefix)
		rev, _ := strconv.ParseUint(first(msg.Header, "Nats-Sequence"), 10, 64)
		st, _, err := leaseState(rid, &storedMsg{key: leaseKey(rid), revision: rev, value: msg.Data, header: msg.Header})
		if err != nil {
			t.Error(err)
		}
		mu.Lock()
		defer mu.Unlock()
		states[rid] = append(states[rid], st)
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		mu.Lock()
		defer mu.Unlock()
		for rid, history := range states {
			if err := validateLeases(history); err != nil {
				t.Errorf("I6: lease %s: %v", rid, err)
			}
		}
	})
}

// deed is one line of what a holder process wrote down.
type deed struct {
	verb       string
	generation uint64
	at         time.Time
}

func readDeeds(t testing.TB, file string) []deed {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var deeds []deed
	for sc := bufio.NewScanner(f); sc.Scan(); {
		w := strings.Fields(sc.Text())
		if len(w) < 3 {
			continue // the last line of a killed process
		}
		g, err1 := strconv.ParseUint(w[len(w)-2], 10, 64)
		ns, err2 := strconv.ParseInt(w[len(w)-1], 10, 64)
		if err1 != nil || err2 != nil {
			t.Fatalf("line %q", sc.Text())
		}
		deeds = append(deeds, deed{strings.Join(w[:len(w)-2], " "), g, time.Unix(0, ns)})
	}
	return deeds
}
