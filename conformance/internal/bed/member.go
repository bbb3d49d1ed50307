package bed

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"natsfabric/conformance/internal/act"
	"natsfabric/conformance/internal/job"
	"natsfabric/fabrictest"
	"natsfabric/relocate"
)

// Channel is the channel that members serve.
const Channel = "work"

// Member is a member process and its way to the servers.
type Member struct {
	*fabrictest.Process
	RID     string
	Proxies Proxies

	bed    *Bed
	args   []string
	input  io.Writer
	acted  *acted
	killed bool
}

// Proxy is the member's one way, in a bed of one server.
func (m *Member) Proxy() *fabrictest.Proxy { return m.Proxies[0] }

// Member starts a member behind proxies of its own and waits until it serves. More arguments are flags of the program
// internal/member, "-queue=1" for example.
func (b *Bed) Member(t testing.TB, rid string, args ...string) *Member {
	t.Helper()
	m := b.Prepare(t, rid, args...)
	m.Start(t)
	return m
}

// Prepare makes a member and its proxies without starting it.
func (b *Bed) Prepare(t testing.TB, rid string, args ...string) *Member {
	t.Helper()
	m, lease := &Member{RID: rid, bed: b}, b.lease
	if slices.Contains(b.brief, rid) {
		lease = Brief
	}
	var url string
	m.Proxies, url = b.Proxies(t)
	m.args = append([]string{"-mesh", Mesh, "-rid", rid, "-url", url, "-channel", Channel, "-ledger", b.ledgerPath(rid), "-journal", b.journalPath(),
		"-ttl", lease.TTL.String(), "-renew", lease.Renew.String(), "-margin", lease.Margin.String()}, args...)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.members[rid], b.order = m, append(b.order, rid)
	return m
}

// Launch starts the process of a prepared member and does not wait.
func (m *Member) Launch(t testing.TB) {
	t.Helper()
	// A file that is there from the start: evidence can be read while the first operation is on its way.
	f, err := os.OpenFile(m.bed.ledgerPath(m.RID), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	cmd := exec.Command(m.bed.binary, m.args...)
	if m.input, err = cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	m.acted = &acted{waiting: map[string]chan *act.Result{}}
	cmd.Stdout = m.acted
	m.Process = fabrictest.StartProcess(t, cmd)
}

// acted reads from a process's output how its operations ended.
type acted struct {
	mu      sync.Mutex
	line    []byte // without its end so far
	waiting map[string]chan *act.Result
}

// await returns where the operation's result will be.
func (a *acted) await(id string) <-chan *act.Result {
	a.mu.Lock()
	defer a.mu.Unlock()
	ch := make(chan *act.Result, 1)
	a.waiting[id] = ch
	return ch
}

func (a *acted) Write(b []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.line = append(a.line, b...)
	for {
		line, rest, whole := bytes.Cut(a.line, []byte("\n"))
		if !whole {
			return len(b), nil
		}
		r := &act.Result{}
		if text, ok := bytes.CutPrefix(line, []byte("acted ")); ok && json.Unmarshal(text, r) == nil && a.waiting[r.ID] != nil {
			a.waiting[r.ID] <- r
			delete(a.waiting, r.ID)
		}
		a.line = rest
	}
}

// Start starts the process, also again after it was killed, and waits until it serves.
func (m *Member) Start(t testing.TB) {
	t.Helper()
	m.Launch(t)
	m.WaitOutput(t, "ready ")
}

// Kill9 kills the process with SIGKILL and notes that it was.
func (m *Member) Kill9() {
	m.bed.mu.Lock()
	m.killed = true
	m.bed.mu.Unlock()
	m.Kill()
}

// After brings a fault about and waits until the member has become one state after the other since, however short it was in
// each.
func (m *Member) After(t testing.TB, fault func(), states ...string) {
	t.Helper()
	before := len(m.Changes())
	fault()
	fabrictest.Eventually(t, Long, fmt.Sprintf("%s becomes %v", m.RID, states), func() bool {
		left := states
		for _, change := range m.Changes()[before:] {
			if len(left) > 0 && strings.Fields(change)[1] == left[0] {
				left = left[1:]
			}
		}
		return len(left) == 0
	})
}

// Killed reports whether some process run of the member was killed.
func (m *Member) Killed() bool {
	m.bed.mu.Lock()
	defer m.bed.mu.Unlock()
	return m.killed
}

// CutStore loses what the member sends to the store; its connection and its callers' requests are left alone.
func (m *Member) CutStore() *StoreCut { return CutStore(m.Proxies) }

// Leave asks for an orderly end (SIGTERM).
func (m *Member) Leave(t testing.TB) { m.Signal(t, syscall.SIGTERM) }

// SetWeight changes the member's weight and waits until that is done.
func (m *Member) SetWeight(t testing.TB, weight int) {
	t.Helper()
	before := strings.Count(m.Stdout(), "weight done")
	if _, err := fmt.Fprintln(m.input, "weight", weight); err != nil {
		t.Fatal(err)
	}
	fabrictest.Eventually(t, Long, "the weight is changed", func() bool {
		return strings.Count(m.Stdout(), "weight done") > before
	})
}

// Relocate moves all that the member owns, and waits for what came of it.
func (m *Member) Relocate(t testing.TB, mode relocate.Mode) (r relocate.Result) {
	t.Helper()
	text, err := json.Marshal(mode)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintln(m.input, "relocate", string(text)); err != nil {
		t.Fatal(err)
	}
	line := m.WaitOutput(t, "relocated ")
	_, told, _ := strings.Cut(line, "relocated ")
	if err := json.Unmarshal([]byte(told), &r); err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	return r
}

// Changes returns the host state changes so far, "Serving Preparing REASON" and so on.
func (m *Member) Changes() (out []string) {
	for line := range strings.Lines(m.Stdout()) {
		if change, ok := strings.CutPrefix(strings.TrimSpace(line), "state "); ok {
			out = append(out, change)
		}
	}
	return out
}

// Became waits until the member's latest state is the given one.
func (m *Member) Became(t testing.TB, state string) {
	t.Helper()
	fabrictest.Eventually(t, Long, m.RID+" becomes "+state, func() bool { return m.State() == state })
}

// State returns the latest host state that the member reported; it serves from the start.
func (m *Member) State() string {
	changes := m.Changes()
	if len(changes) == 0 {
		return "Serving"
	}
	return strings.Fields(changes[len(changes)-1])[1]
}

// Ran waits until the member's ledger says that the operation began.
func (m *Member) Ran(t testing.TB, id string) {
	t.Helper()
	fabrictest.Eventually(t, Long, m.RID+" runs "+id, func() bool { return m.bed.Ledger(t, m.RID).Ran[id] > 0 })
}

// Hold keeps what the member's channel is asked to job.Hold waiting until open is called, at the end of the test at the latest.
func (m *Member) Hold(t testing.TB) (open func()) {
	t.Helper()
	return m.bed.close(t, job.MemberGate(m.bed.dir, m.RID))
}

// Occupy makes all of the member's workers wait and fills its only place in the queue, so that it refuses what comes until
// free is called. The member must have been started with so many -workers and -queue=1.
func (m *Member) Occupy(t testing.TB, c *Caller, workers int) (free func()) {
	t.Helper()
	free = m.Hold(t)
	for i := range workers + 1 {
		op := c.Call(t, Do{RID: m.RID, Send: true, Timeout: Long, Job: job.Job{Do: job.Hold}})
		if op.Err != nil {
			t.Fatalf("occupying %s: %v", m.RID, op.Err)
		}
		if i < workers {
			m.Ran(t, op.ID) // a worker has it, so the next one does not wait for that one
		}
	}
	return free
}
