package kvlocation

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"natsfabric/fabrictest"
)

// holder is a process that holds a lease and runs turns under it.
type holder struct {
	*fabrictest.Process
	proxy                 *fabrictest.Proxy
	key, file             string
	lifecycle, generation uint64
}

func (m *mesh) holder(t testing.TB, rid string) *holder {
	t.Helper()
	h := m.startHolder(t, rid)
	h.waitHeld(t)
	return h
}

func (m *mesh) startHolder(t testing.TB, rid string) *holder {
	t.Helper()
	bin := fabrictest.BuildBinary(t, "./testdata/holder")
	h := &holder{proxy: fabrictest.NewProxy(t, m.server()), key: m.key(leaseKey(rid)), file: filepath.Join(t.TempDir(), "deeds")}
	c := shortLease(rid)
	h.Process = fabrictest.StartProcess(t, exec.Command(bin, "-mesh", m.name, "-url", h.proxy.URL(), "-rid", rid, "-file", h.file,
		"-ttl", c.TTL.String(), "-renew", c.Renew.String(), "-margin", c.Margin.String()))
	return h
}

func (h *holder) waitHeld(t testing.TB) {
	t.Helper()
	line := h.WaitOutput(t, "holds lifecycle")
	if _, err := fmt.Sscanf(line, "holds lifecycle %d generation %d", &h.lifecycle, &h.generation); err != nil {
		t.Fatalf("%q: %v", line, err)
	}
}

// waitTurn waits until the process is inside a turn.
func (h *holder) waitTurn(t testing.TB) {
	t.Helper()
	fabrictest.Eventually(t, readyIn, "a turn", func() bool { return len(readDeeds(t, h.file)) > 0 })
}

// freezeUntilExpiry freezes the process in the middle of a turn and of a write: a renewal whose acknowledgement is
// kept back until the server has let the lease expire. It returns when the process was stopped.
func (h *holder) freezeUntilExpiry(t testing.TB, admin program, rid string) time.Time {
	t.Helper()
	h.waitTurn(t)
	ack := h.proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: h.key, Answer: true, Action: fabrictest.HoldAlone})
	ack.Wait(t)
	h.Freeze(t)
	frozen := time.Now()
	fabrictest.Eventually(t, readyIn, "the server lets the lease expire", func() bool {
		st, err := admin.LeaseOf(testContext(t), rid)
		return err == nil && !(st.Live && st.Lifecycle == h.lifecycle)
	})
	ack.Release()
	return frozen
}

// wantNoneAfter checks that nothing was admitted under a generation after the process was stopped.
func (h *holder) wantNoneAfter(t testing.TB, generation uint64, frozen time.Time) {
	t.Helper()
	for _, d := range readDeeds(t, h.file) {
		if d.verb == "admit" && d.generation == generation && d.at.After(frozen) {
			t.Errorf("admitted under generation %d, %v after the freeze", generation, d.at.Sub(frozen))
		}
	}
}

// wantLifecycle checks whose lease of n1 stands. On a busy machine a lease this short may lapse once more and come back.
func wantLifecycle(t testing.TB, admin program, lifecycle uint64) {
	t.Helper()
	fabrictest.Eventually(t, readyIn, "a lease that lives", func() bool {
		st, err := admin.LeaseOf(testContext(t), "n1")
		if err != nil || st.Live && st.Lifecycle != lifecycle {
			t.Fatalf("lease %+v, %v; the lifecycle was %d", st, err, lifecycle)
		}
		return st.Live
	})
}

// A real process frozen beyond the server's expiry and thawed in the middle of a turn and of a write: the turn is
// cancelled, nothing starts under the old lease, and the process comes back under a new generation.
func testFrozenOwner(t *testing.T, m *mesh) {
	admin := m.program("admin")
	h := m.holder(t, "n1")
	frozen := h.freezeUntilExpiry(t, admin, "n1")
	h.Thaw(t)
	h.WaitOutput(t, "turn cancelled: "+ErrOwnershipLost.Error())
	line := h.WaitOutput(t, "event regained")
	var generation uint64
	if _, err := fmt.Sscanf(line, "event regained generation %d", &generation); err != nil || generation <= h.generation {
		t.Fatalf("%q, had generation %d", line, h.generation)
	}
	fabrictest.Eventually(t, readyIn, "turns under the new lease", func() bool {
		deeds := readDeeds(t, h.file)
		return deeds[len(deeds)-1].generation == generation && deeds[len(deeds)-1].verb == "admit"
	})
	h.wantNoneAfter(t, h.generation, frozen)
	wantLifecycle(t, admin, h.lifecycle)
}

// Two processes with one RID: the second waits and says for how long, has the RID once the first one's lease expired,
// and the first one, thawed, ends.
func testTwoProcesses(t *testing.T, m *mesh) {
	admin := m.program("admin")
	old := m.holder(t, "n1")
	frozen := old.freezeNow(t)
	second := m.startHolder(t, "n1")
	second.WaitOutput(t, fmt.Sprintf("waiting for lifecycle %d", old.lifecycle))
	second.waitHeld(t)
	if second.lifecycle <= old.lifecycle {
		t.Fatalf("lifecycle %d after %d", second.lifecycle, old.lifecycle)
	}
	old.Thaw(t)
	line := old.WaitOutput(t, "event superseded")
	if !strings.Contains(line, fmt.Sprint(second.lifecycle)) {
		t.Errorf("%q does not name the successor", line)
	}
	if st := old.Wait(t); st.ExitCode() != 3 {
		t.Errorf("the old process ended with %v", st)
	}
	old.wantNoneAfter(t, old.generation, frozen)
	wantLifecycle(t, admin, second.lifecycle)

	// A third one is refused, because the second one renews.
	third := m.startHolder(t, "n1")
	third.WaitOutput(t, ErrRIDInUse.Error())
	third.Wait(t)
}

// freezeNow freezes the process at once.
func (h *holder) freezeNow(t testing.TB) time.Time {
	t.Helper()
	h.waitTurn(t)
	h.Freeze(t)
	return time.Now()
}
