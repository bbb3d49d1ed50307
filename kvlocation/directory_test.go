package kvlocation

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"natsfabric/fabrictest"
	"natsfabric/outcome"
)

func (p program) publish(t testing.TB, l *Lease, state NodeState, channels ...string) {
	t.Helper()
	d := Descriptor{State: state}
	for _, c := range channels {
		d.Channels = append(d.Channels, ChannelInfo{Name: c, Kind: RouteMesh, Weight: 1})
	}
	if err := p.PublishDescriptor(testContext(t), l, d); err != nil {
		t.Fatal(err)
	}
}

func TestDirectoryFollows(t *testing.T) {
	t.Parallel()
	m := newMesh(t)
	a, b := m.program("a"), m.program("b")
	la, lb := a.acquire(t, steadyLease("a")), b.acquire(t, steadyLease("b"))
	a.publish(t, la, StatePreparing)
	d := a.directory(t, DirectoryConfig{Lease: la})
	wantMembers(t, d, "a")
	changed := d.Changed()
	b.publish(t, lb, StateServing, "work", "echo")
	select {
	case <-changed:
	case <-time.After(readyIn):
		t.Fatal("no change was told")
	}
	wantMembers(t, d, "a", "b")
	got, ok := d.Members().Get("b")
	if !ok || got.State != StateServing || got.Lifecycle != lb.Lifecycle() || got.Revision == 0 || got.LeaseTTLMillis != 18000 {
		t.Fatalf("member %+v", got)
	}
	if c := d.Members().Channel("work"); len(c) != 1 || c[0].RID != "b" || len(d.Members().Channel("none")) != 0 {
		t.Fatalf("members of a channel: %+v", c)
	}
	b.publish(t, lb, StateDraining, "echo")
	fabrictest.Eventually(t, readyIn, "b drains", func() bool {
		mb, _ := d.Members().Get("b")
		return mb.State == StateDraining && len(d.Members().Channel("work")) == 0
	})
	if s := d.Stats(); s.Resyncs != 1 || s.Gaps != 0 || s.Rebuilds != 0 {
		t.Errorf("followed with %+v, one read and notices suffice", s)
	}

	// A live node is not forgotten, a dead one is.
	err := a.ForgetNode(testContext(t), "b")
	if !errors.Is(err, ErrNodeAlive) || !errors.Is(err, outcome.InvalidOperation) {
		t.Fatalf("forget of a live node: %v", err)
	}
	wantText(t, err, "until 2", "at most", fmt.Sprint(lb.Lifecycle()))
	if err := lb.Release(testContext(t)); err != nil {
		t.Fatal(err)
	}
	if err := b.PublishDescriptor(testContext(t), lb, Descriptor{State: StateServing}); !errors.Is(err, outcome.NotAccepted) || !errors.Is(err, ErrOwnershipLost) {
		t.Fatalf("published without a lease: %v", err)
	}
	if err := a.ForgetNode(testContext(t), "b"); err != nil {
		t.Fatal(err)
	}
	wantMembers(t, d, "a")
	if err := a.ForgetNode(testContext(t), "b"); !errors.Is(err, outcome.NotFound) {
		t.Fatalf("forget of nobody: %v", err)
	}
}

// A notice that is lost is found by the next one of its key, or by the check at the next interval.
func TestDirectoryGap(t *testing.T) {
	t.Parallel()
	m := newMesh(t)
	a, b := m.program("a"), m.program("b")
	la, lb := a.acquire(t, steadyLease("a")), b.acquire(t, steadyLease("b"))
	for _, c := range []struct {
		name     string
		interval time.Duration
		again    bool
	}{{"next notice", time.Hour, true}, {"interval", 200 * time.Millisecond, false}} {
		t.Run(c.name, func(t *testing.T) {
			b.publish(t, lb, StatePreparing)
			d := a.directory(t, DirectoryConfig{Lease: la, Interval: c.interval, Grace: 2 * time.Hour, Resync: 2 * time.Hour})
			wantMembers(t, d, "b")
			lost := a.proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToClient, Subject: m.notice("desc.b"), Action: fabrictest.Drop})
			b.publish(t, lb, StateServing)
			lost.Wait(t)
			if c.again {
				b.publish(t, lb, StateServing, "work")
			}
			fabrictest.Eventually(t, readyIn, "b serves", func() bool { mb, _ := d.Members().Get("b"); return mb.State == StateServing })
			fabrictest.Eventually(t, readyIn, "the gap is counted", func() bool { s := d.Stats(); return s.Gaps == 1 && s.Resyncs == 2 })
		})
	}
}

// A source that delivers nothing any more is noticed by the own renewals' notices, replaced, and everything is read.
func TestDirectorySilentSource(t *testing.T) {
	t.Parallel()
	m := newMesh(t)
	a, b := m.program("a"), m.program("b")
	la, lb := a.acquire(t, steadyLease("a")), b.acquire(t, steadyLease("b"))
	d := a.directory(t, DirectoryConfig{Lease: la, Interval: time.Hour, Grace: 2 * time.Hour, Resync: 2 * time.Hour})
	silent := a.proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToClient, Subject: m.notice(">"), Times: -1, Action: fabrictest.Drop})
	b.publish(t, lb, StateServing)
	wantMembers(t, d, "b")
	if d.Stats().Rebuilds == 0 {
		t.Error("the source was not replaced")
	}
	silent.Disarm()
	b.publish(t, lb, StateDraining)
	fabrictest.Eventually(t, readyIn, "the new source works", func() bool { mb, _ := d.Members().Get("b"); return mb.State == StateDraining })
	if err := la.Admit(); err != nil {
		t.Fatal(err)
	}
}

func TestDirectoryReconnect(t *testing.T) {
	t.Parallel()
	m := newMesh(t)
	a, b := m.program("a"), m.program("b")
	lb := b.acquire(t, steadyLease("b"))
	d := a.directory(t, DirectoryConfig{Interval: time.Hour, Grace: 2 * time.Hour, Resync: 2 * time.Hour})
	a.proxy.Apply(fabrictest.Cut, fabrictest.RefuseReconnect)
	fabrictest.Eventually(t, readyIn, "the loss is told", func() bool { return d.State() == DirectoryStale })
	b.publish(t, lb, StateServing)
	if d.Members().Len() != 0 {
		t.Fatal("members from nowhere")
	}
	a.proxy.Heal()
	wantMembers(t, d, "b")
	fabrictest.Eventually(t, readyIn, "fresh again", d.Healthy)
}

func TestDirectoryResyncAndClose(t *testing.T) {
	t.Parallel()
	m := newMesh(t)
	a := m.program("a")
	d := a.directory(t, DirectoryConfig{})
	if err := d.Resync(testContext(t)); err != nil {
		t.Fatal(err)
	}
	if d.Stats().Resyncs != 2 {
		t.Errorf("%+v", d.Stats())
	}
	a.proxy.Apply(fabrictest.HalfOpen)
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	if err := d.Resync(ctx); !errors.Is(err, outcome.Unavailable) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() { _ = d.Close() })
	}
	wg.Wait()
	if err := d.Resync(context.Background()); !errors.Is(err, outcome.Unavailable) {
		t.Errorf("got %v", err)
	}
	for _, c := range []struct {
		cfg  DirectoryConfig
		want string
	}{
		{DirectoryConfig{Interval: time.Millisecond}, "interval 1ms"},
		{DirectoryConfig{Grace: time.Second}, "grace 1s clashes with directory interval 3s"},
		{DirectoryConfig{Resync: time.Second}, "resync 1s clashes"},
	} {
		_, err := a.OpenDirectory(context.Background(), c.cfg)
		wantText(t, err, c.want)
	}
}

// A descriptor's unknown fields survive, and what cannot be read is no member.
func TestDescriptorForms(t *testing.T) {
	var d Descriptor
	if err := d.UnmarshalJSON([]byte(`{"v":1,"rid":"n1","lifecycle":7,"state":"Serving","later":{"a":1}}`)); err != nil {
		t.Fatal(err)
	}
	b, err := d.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	wantText(t, errors.New(string(b)), `"later":{"a":1}`, `"lifecycle":7`)
	for _, v := range []string{`{`, `{"v":2,"rid":"n1"}`, `{"v":1,"rid":"n2"}`} {
		if _, err := decodeDescriptor(&storedMsg{key: "desc.n1", value: []byte(v)}); err == nil {
			t.Errorf("%s was read", v)
		}
	}
}

func TestMembersConstructor(t *testing.T) {
	m := NewMembers([]Member{
		{Descriptor: Descriptor{RID: "b"}, Revision: 1},
		{Descriptor: Descriptor{RID: "a", State: StateStopped}, Revision: 2},
		{Descriptor: Descriptor{RID: "a", State: StateServing}, Revision: 3},
	})
	if m.Len() != 2 || m.All()[0].RID != "a" || m.All()[0].State != StateServing || m.All()[1].RID != "b" {
		t.Fatalf("%+v", m.All())
	}
}

// TestDisplaced shows that a node hears when its own descriptor is not the one that it published.
func TestDisplaced(t *testing.T) {
	t.Parallel()
	m := newMesh(t)
	p, other := m.program("n1"), m.program("n2")
	// What an earlier process run left behind displaces nobody.
	if _, err := other.write(testContext(t), write{bucket: p.nodes, key: descKey("n1"), value: []byte(`{"v":1,"rid":"n1","lifecycle":1}`), opID: nuid.Next()}); err != nil {
		t.Fatal(err)
	}
	l := p.acquire(t, steadyLease("n1"))
	d := p.directory(t, DirectoryConfig{Lease: l})
	publish := func(wave string) {
		t.Helper()
		if err := p.PublishDescriptor(testContext(t), l, Descriptor{Wave: wave}); err != nil {
			t.Fatal(err)
		}
		fabrictest.Eventually(t, readyIn, "the directory has it", func() bool {
			me, _ := d.Members().Get("n1")
			return me.Wave == wave
		})
		if d.Displaced() {
			t.Fatal("displaced by its own descriptor")
		}
	}
	for i := range 2 * maxOps {
		publish(fmt.Sprint(i))
		if i > 0 {
			continue
		}
		// As another tool writes, while the node remembers only one write of its own.
		if _, err := other.nc.Request(m.key(descKey("n1")), []byte(`{"v":1,"rid":"n1","lifecycle":1}`), 5*time.Second); err != nil {
			t.Fatal(err)
		}
		fabrictest.Eventually(t, readyIn, "another tool's write is noticed", d.Displaced)
	}
	for name, displace := range map[string]func(last []byte) *nats.Msg{
		// The value is the node's own but for one field: its operation ID stays in it.
		"an edit by hand": func(last []byte) *nats.Msg {
			return &nats.Msg{Data: bytes.Replace(last, []byte(`"state":""`), []byte(`"state":"Draining"`), 1)}
		},
		"a value that nobody can read": func([]byte) *nats.Msg { return &nats.Msg{Data: []byte("{")} },
		"a deletion by hand": func([]byte) *nats.Msg {
			return &nats.Msg{Header: nats.Header{"KV-Operation": {"PURGE"}, "Nats-Rollup": {"sub"}}}
		},
	} {
		snap, err := p.snapshot(testContext(t), p.nodes, 0, descKey("n1"))
		if err != nil {
			t.Fatal(err)
		}
		changed := d.Changed()
		msg := displace(snap.get(descKey("n1")).value)
		msg.Subject = m.key(descKey("n1"))
		if _, err := other.nc.RequestMsg(msg, 5*time.Second); err != nil {
			t.Fatal(err)
		}
		select {
		case <-changed:
		case <-time.After(readyIn):
			t.Fatalf("%s: no change", name)
		}
		fabrictest.Eventually(t, readyIn, name, d.Displaced)
		publish(name)
	}
	// Nothing tells of it, and nothing is left of it: only a full read shows it.
	js, err := jetstream.New(other.nc)
	if err != nil {
		t.Fatal(err)
	}
	st, err := js.Stream(testContext(t), "KV_FABRIC_m_NODES")
	if err != nil {
		t.Fatal(err)
	}
	if err := st.Purge(testContext(t), jetstream.WithPurgeSubject(m.key(descKey("n1")))); err != nil {
		t.Fatal(err)
	}
	fabrictest.Eventually(t, readyIn, "a full read shows it", func() bool { return d.Resync(testContext(t)) == nil && d.Displaced() })
	publish("again")
}

func TestMembersByType(t *testing.T) {
	t.Parallel()
	member := func(rid string, types ...TypeInfo) Member {
		return Member{Descriptor: Descriptor{RID: rid, Types: types}, Revision: 1}
	}
	actor := TypeInfo{Name: "ledger", Class: ClassActor, Capacity: 10, Full: true}
	spot := TypeInfo{Name: "ledger", Class: ClassUserSpot}
	m := NewMembers([]Member{member("b", spot), member("c"), member("a", spot, actor)})
	for _, c := range []struct {
		class Class
		name  string
		want  string
	}{
		{ClassUserSpot, "ledger", "a b "}, {ClassActor, "ledger", "a "}, {ClassInstanceSpot, "ledger", ""}, {ClassActor, "other", ""},
	} {
		got := ""
		for _, m := range m.Type(c.class, c.name) {
			got += m.RID + " "
		}
		if got != c.want {
			t.Errorf("%s %s: %q, want %q", c.class, c.name, got, c.want)
		}
	}
	a, _ := m.Get("a")
	if got, ok := a.Type(ClassActor, "ledger"); !ok || got != actor {
		t.Errorf("got %+v, %v", got, ok)
	}
	if _, ok := a.Type(ClassInstanceSpot, "ledger"); ok {
		t.Error("a type of another class is listed")
	}
	// As it stands in the bucket.
	b, err := json.Marshal(a.Descriptor)
	if err != nil || !strings.Contains(string(b), `"types":[{"name":"ledger","class":"user_spot"},{"name":"ledger","class":"actor","capacity":10,"full":true}]`) {
		t.Errorf("%s, %v", b, err)
	}
}
