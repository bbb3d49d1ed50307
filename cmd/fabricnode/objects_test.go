package main_test

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"natsfabric/fabrictest"
)

// ledgerAnswer is what a ledger says of itself.
type ledgerAnswer struct {
	Len             int
	Owner           string
	Lifecycle       uint64
	Generation      uint64
	OwnerGeneration uint64 `json:"owner_generation"`
	Token           string
	Entries         []struct {
		Client, Data, Owner string
		Seq                 int64
		OwnerGeneration     uint64 `json:"owner_generation"`
	}
	Next int
}

// commander runs commands on one mesh and reads what they answer with --json.
type commander struct {
	t    *testing.T
	bin  string
	mesh []string
}

// do fails the test when the command does not end with the code, and fills in from the first line of its JSON.
func (c commander) do(code int, in any, args ...string) ran {
	c.t.Helper()
	r := run(c.t, c.bin, "", append(append(args, "--json"), c.mesh...)...)
	if r.code != code {
		c.t.Fatalf("%q: exit code %d, want %d: %s%s", args, r.code, code, r.stdout, r.stderr)
	}
	if in != nil {
		// A failure stands behind the answer, where there is one.
		if err := json.NewDecoder(strings.NewReader(r.stdout)).Decode(in); err != nil {
			c.t.Fatalf("%q: %v: %s", args, err, r.stdout)
		}
	}
	return r
}

// ledger calls a ledger.
func (c commander) ledger(args ...string) (a ledgerAnswer) {
	c.t.Helper()
	var reply struct {
		OK     bool
		Data   string
		Header map[string][]string
	}
	c.do(0, &reply, append([]string{"call"}, args...)...)
	if err := json.Unmarshal([]byte(reply.Data), &a); err != nil || !reply.OK || len(reply.Header["Fabric-Served-By"]) != 1 {
		c.t.Fatalf("%q: %v: %+v", args, err, reply)
	}
	return a
}

// One object of each class goes through its life, as an operator sees it.
func TestObjectCommands(t *testing.T) {
	t.Parallel()
	n := startNode(t, program(t), "--mesh", "shop", "--rid", "n1", "--embedded", "--listen", "127.0.0.1:0", "--data", t.TempDir(), "--capacity", "4")
	c := commander{t, program(t), []string{"--mesh", "shop", "--server", n.Server}}

	var made struct {
		OK, Created bool
		Ref         string
		Generation  uint64
	}
	c.do(0, &made, "create", "--actor", "alice", "--type", "ledger")
	if !made.OK || !made.Created || made.Ref != fmt.Sprintf("actor/alice@%d", made.Generation) {
		t.Errorf("create: %+v", made)
	}
	alice := made
	c.do(6, nil, "create", "--actor", "alice", "--type", "ledger")
	c.do(0, &made, "create", "--get", "--actor", "alice", "--type", "ledger")
	if made.Created || made.Ref != alice.Ref {
		t.Errorf("create --get: %+v", made)
	}
	c.do(0, &made, "create", "--spot", "a.b *", "--type", "ledger", "--at", "n1")
	if made.Ref != fmt.Sprintf("spot/a=2Eb=20=2A@%d", made.Generation) {
		t.Errorf("create: %+v", made)
	}
	room := made

	for seq := range 2 { // the same (client, seq) again is another entry
		a := c.ledger("--actor", "alice", `{"op":"append","client":"c1","seq":7,"data":"x"}`)
		if a.Len != seq+1 || a.Owner != "n1" || a.Lifecycle != n.Lifecycle || a.Generation != alice.Generation || a.OwnerGeneration != 1 ||
			!strings.HasPrefix(a.Token, "shop/actor/alice:") {
			t.Errorf("append: %+v", a)
		}
	}
	a := c.ledger("--actor", "alice", `{"op":"read"}`)
	if a.Len != 2 || a.Next != 2 || len(a.Entries) != 2 || a.Entries[1].Seq != 7 || a.Entries[1].Client != "c1" || a.Entries[1].Owner != "n1" || a.Entries[1].OwnerGeneration != 1 {
		t.Errorf("read: %+v", a)
	}
	c.ledger("--spot", "a.b *", `{"op":"timer","after_ms":20,"client":"c2","seq":1,"data":"due"}`)
	fabrictest.Eventually(t, soon, "the timer appends", func() bool {
		a := c.ledger("--spot", "a.b *", `{"op":"read"}`)
		return len(a.Entries) == 1 && a.Entries[0].Data == "due" && a.Entries[0].Client == "c2"
	})
	c.ledger("--actor", "alice", `{"op":"sleep","ms":1}`)
	c.ledger("--actor", "alice", `{"op":"guard","resource":"r","value":"v"}`)
	if r := c.do(7, nil, "call", "--spot", "a.b *", `{"op":"guard","resource":"r","value":"v"}`); !strings.Contains(r.stderr, `takes tokens of "shop/actor/alice" only`) {
		t.Errorf("another object's guarded write: %s", r.stderr)
	}
	c.do(7, nil, "call", "--actor", "alice", `{"op":"panic"}`)

	c.do(5, nil, "call", "--spot", "lobby", `{"op":"read"}`)
	lobby := c.ledger("--spot", "lobby", "--instance", "ledger", `{"op":"append"}`)
	if a := c.ledger("--spot", "lobby", `{"op":"append"}`); a.Len != 2 || a.Generation != lobby.Generation {
		t.Errorf("the second message: %+v after %+v", a, lobby)
	}
	c.do(0, nil, "call", "--send", "--spot", "lobby", `{"op":"append"}`)
	c.listed(3)

	var at struct {
		OK                                     bool
		Kind, ID, Class, Type, Phase, RID, Ref string
		Alive                                  bool
	}
	c.do(0, &at, "locate", room.Ref)
	if at.Kind != "spot" || at.ID != "a.b *" || at.Class != "user_spot" || at.Type != "ledger" || at.Phase != "ready" || at.RID != "n1" || at.Ref != room.Ref || !at.Alive {
		t.Errorf("locate: %+v", at)
	}
	if c.do(0, &at, "locate", "lobby"); at.Class != "instance_spot" {
		t.Errorf("locate by a bare ID: %+v", at)
	}
	c.do(5, nil, "locate", "nobody")
	c.do(5, nil, "locate", "actor/alice@99999")
	c.do(5, nil, "explain", "actor/alice@99999")
	if r := c.do(5, nil, "explain", "nobody"); !strings.Contains(r.stderr, "find object") {
		t.Errorf("explain of a bare ID: %s", r.stderr)
	}
	if r := c.do(2, nil, "objects", "--cursor", "junk"); !strings.Contains(r.stderr, `--cursor is not allowed: cursor "junk"`) {
		t.Errorf("a cursor of no page: %s", r.stderr)
	}
	var why struct {
		WouldSucceed bool `json:"would_succeed"`
		Rule, Why    string
		Error        string
		Object       *struct{ State string }
		Placement    []struct{ RID string }
	}
	if c.do(0, &why, "explain", "--actor", "alice"); !why.WouldSucceed || why.Rule != "FO-4.1" || why.Object == nil || why.Object.State != "ready" {
		t.Errorf("explain: %+v", why)
	}
	if c.do(0, &why, "explain", "--spot", "nobody"); why.WouldSucceed || why.Error != "NotFound" {
		t.Errorf("explain: %+v", why)
	}
	if c.do(0, &why, "explain", "--spot", "nobody", "--type", "ledger"); !why.WouldSucceed || why.Rule != "FO-4.4a" || len(why.Placement) != 1 {
		t.Errorf("explain: %+v", why)
	}

	c.do(0, nil, "create", "--actor", "fourth", "--type", "ledger")
	if r := c.do(6, nil, "create", "--actor", "fifth", "--type", "ledger"); !strings.Contains(r.stderr, "no free slot") {
		t.Errorf("one more than the capacity: %s", r.stderr)
	}
	c.do(5, nil, "destroy", "actor/alice@99999")
	c.do(0, nil, "destroy", alice.Ref)
	c.do(5, nil, "call", "--actor", "alice", `{"op":"read"}`)
	var gone struct {
		OK         bool
		Kind, ID   string
		Generation uint64
	}
	c.do(0, &gone, "destroy", "--spot", "lobby", "--generation", strconv.FormatUint(lobby.Generation, 10))
	if !gone.OK || gone.Kind != "spot" || gone.ID != "lobby" || gone.Generation != lobby.Generation {
		t.Errorf("destroy: %+v", gone)
	}
	if again := c.ledger("--spot", "lobby", "--instance", "ledger", `{"op":"append"}`); again.Len != 1 || again.Generation <= lobby.Generation {
		t.Errorf("a new incarnation: %+v after %+v", again, lobby)
	}
	_, metrics := get(t, n.HTTP+"/metrics")
	for _, line := range []string{
		`fabric_objects_owned{class="instance_spot",type="ledger"} 1`, `fabric_objects_turns_panics_total{class="actor",type="ledger"} 1`,
		`fabric_objects_timer_turns_total{class="user_spot",type="ledger"} 1`, `fabric_objects_closed_total 2`, `fabric_objects_creations_total{result="created"} 5`,
	} {
		if !strings.Contains(metrics, "\n"+line) {
			t.Errorf("/metrics has no line %s", line)
		}
	}
	if r := run(t, c.bin, "", append([]string{"nodes"}, c.mesh...)...); !strings.Contains(r.stdout, "ledger (actor") || !strings.Contains(r.stdout, "instance_spot") {
		t.Errorf("nodes shows no types:\n%s", r.stdout)
	}
}

// listed checks how many objects the mesh has, in pages of two.
func (c commander) listed(want int, filter ...string) {
	c.t.Helper()
	got, cursor := 0, ""
	for {
		var page struct {
			OK      bool
			Objects []struct{ RID string }
			Next    string
		}
		args := append([]string{"objects", "--limit", "2"}, filter...)
		if cursor != "" {
			args = append(args, "--cursor", cursor)
		}
		c.do(0, &page, args...)
		if got += len(page.Objects); page.Next == "" {
			break
		}
		cursor = page.Next
	}
	if got != want {
		c.t.Errorf("%d objects %q, want %d", got, filter, want)
	}
}

// What a killed node owned stays Unavailable until it is released, in bulk or one by one, and begins anew then.
func TestRelease(t *testing.T) {
	t.Parallel()
	bin, srv := program(t), fabrictest.StartServer(t)
	c := commander{t, bin, []string{"--mesh", "shop", "--server", srv.URL()}}
	c.do(0, nil, "init")
	short := append(c.mesh, "--lease-ttl", "4s", "--lease-renew", "500ms", "--lease-margin", "1s")
	startNode(t, bin, append(short, "--rid", "n1")...)
	n2 := startNode(t, bin, append(short, "--rid", "n2")...)
	refs := map[string]string{}
	for _, id := range []string{"a", "b", "c"} {
		var made struct{ Ref string }
		c.do(0, &made, "create", "--actor", id, "--type", "ledger", "--at", "n2")
		refs[id] = made.Ref
	}
	c.do(0, nil, "create", "--actor", "d", "--type", "ledger", "--at", "n1")
	owner := fmt.Sprintf("n2/%d", n2.Lifecycle)
	if r := c.do(5, nil, "release", "--owner", fmt.Sprintf("n2/%d", n2.Lifecycle+1)); strings.Contains(r.stderr, "makes sure") || !strings.Contains(r.stderr, "fabricnode objects --owner n2 shows") {
		t.Errorf("release of a run that owns nothing: %s", r.stderr)
	}
	var report struct {
		OK, Done          bool
		DryRun            bool `json:"dry_run"`
		Released, Skipped int
		Objects           []struct{ ID, Outcome string }
	}
	if r := c.do(6, nil, "release", "--owner", owner); !strings.Contains(r.stderr, "alive") {
		t.Errorf("release of a living owner: %s", r.stderr)
	}
	if c.do(0, &report, "release", "--owner", owner, "--dry-run"); report.Released != 0 || report.Skipped != 3 {
		t.Errorf("dry run of a living owner: %+v", report)
	}
	n2.Kill()
	if r := c.do(6, nil, "call", "--actor", "a", `{"op":"read"}`); !strings.Contains(r.stderr, "Unavailable (NotAccepted") {
		t.Errorf("a call to an object whose owner was killed: %s", r.stderr)
	}
	c.listed(3, "--owner", owner)
	fabrictest.Eventually(t, soon, "the lease of n2 ends", func() bool {
		c.do(0, &report, "release", "--owner", owner, "--dry-run")
		return report.DryRun && report.Released == 3
	})
	fabrictest.Eventually(t, soon, "the release begins", func() bool {
		r := run(t, bin, "", append([]string{"release", refs["a"], "--json", "--reason", "test"}, c.mesh...)...)
		return r.code == 0
	})
	c.do(5, nil, "call", "--actor", "a", `{"op":"read"}`)
	var why struct {
		Error, Rule string
		Location    struct{ Alive bool }
	}
	if c.do(0, &why, "explain", "--actor", "b"); why.Error != "Unavailable" || why.Rule != "FO-4.2c" || why.Location.Alive {
		t.Errorf("explain: %+v", why)
	}
	if c.do(0, &report, "release", "--owner", owner, "--type", "ledger"); !report.OK || !report.Done || report.Released != 2 {
		t.Errorf("release: %+v", report)
	}
	c.listed(0, "--owner", owner)
	c.listed(1)
	var made struct {
		Generation uint64
		Created    bool
	}
	if c.do(0, &made, "create", "--actor", "b", "--type", "ledger"); !made.Created {
		t.Errorf("create after the release: %+v", made)
	}
	_, text, _ := strings.Cut(refs["b"], "@")
	before, err := strconv.ParseUint(text, 10, 64)
	if a := c.ledger("--actor", "b", `{"op":"append"}`); err != nil || a.Owner != "n1" || a.Generation != made.Generation || a.Generation <= before {
		t.Errorf("the new incarnation: %+v after %s (%v)", a, refs["b"], err)
	}
	if r := c.do(5, nil, "release", refs["b"]); !strings.Contains(r.stderr, "generation") {
		t.Errorf("release of a stale reference: %s", r.stderr)
	}
}
