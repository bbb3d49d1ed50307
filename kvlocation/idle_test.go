package kvlocation

import (
	"errors"
	"fmt"
	"testing"

	"github.com/nats-io/nuid"

	"natsfabric/fabrictest"
	"natsfabric/outcome"
)

// fill writes descriptors of n nodes that are not there.
func (p program) fill(t testing.TB, n int) {
	t.Helper()
	for i := range n {
		rid := fmt.Sprintf("x%d", i)
		v := fmt.Appendf(nil, `{"v":1,"rid":%q,"lifecycle":1,"state":"Serving","channels":[{"name":"work","kind":"route_mesh","weight":1}]}`, rid)
		if _, err := p.write(testContext(t), write{bucket: p.nodes, key: descKey(rid), value: v, opID: nuid.Next()}); err != nil {
			t.Fatal(err)
		}
	}
}

// What an idle node exchanges with the store per renewal does not depend on the size of the mesh.
func TestIdleCost(t *testing.T) {
	t.Parallel()
	url := fabrictest.StartServer(t).URL()
	const renewals = 8
	for _, members := range []int{3, 900} {
		t.Run(fmt.Sprint(members), func(t *testing.T) {
			t.Parallel()
			m := makeMesh(t, fmt.Sprintf("m%d", members), 1, url)
			p := m.program("n1")
			m.program("admin").fill(t, members)
			l := p.acquire(t, steadyLease("n1"))
			d := p.directory(t, DirectoryConfig{Lease: l})
			if d.Members().Len() != members || len(d.Members().Channel("work")) != members {
				t.Fatalf("%d members", d.Members().Len())
			}
			start := l.acked.Load().revision
			out := p.proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Times: -1, Action: fabrictest.Signal})
			in := p.proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToClient, Times: -1, Action: fabrictest.Signal})
			// Nothing else writes to this bucket, so the revisions count the renewals.
			fabrictest.Eventually(t, readyIn, "renewals", func() bool { return l.acked.Load().revision >= start+renewals })
			sent, got := out.Count(), in.Count()
			t.Logf("%d messages to the store and %d from it in %d renewals", sent, got, renewals)
			if sent > 4*(renewals+2) || got > 5*(renewals+2) {
				t.Errorf("%d messages to the store and %d from it in %d renewals, 4 and 5 each are to be expected", sent, got, renewals)
			}
		})
	}
}

func TestMaxMembers(t *testing.T) {
	t.Parallel()
	m := newMesh(t)
	p := m.program("n1")
	l := p.acquire(t, steadyLease("n1"))
	p.fill(t, MaxMembers)
	d := p.directory(t, DirectoryConfig{})
	if d.Members().Len() != MaxMembers {
		t.Fatalf("%d members", d.Members().Len())
	}
	err := p.PublishDescriptor(testContext(t), l, Descriptor{})
	if !errors.Is(err, outcome.CapacityExceeded) || !errors.Is(err, outcome.NotAccepted) {
		t.Fatalf("one too many: %v", err)
	}
	wantText(t, err, "1000", "forget")
	if err := p.ForgetNode(testContext(t), "x7"); err != nil {
		t.Fatal(err)
	}
	if err := p.PublishDescriptor(testContext(t), l, Descriptor{Wave: string(make([]byte, MaxDescriptor))}); !errors.Is(err, outcome.CapacityExceeded) {
		t.Fatalf("a descriptor above the limit: %v", err)
	}
	// The marker of the forgotten one counts, until it is gone.
	if err := p.PublishDescriptor(testContext(t), l, Descriptor{}); !errors.Is(err, outcome.CapacityExceeded) {
		t.Fatalf("got %v", err)
	}
	fabrictest.Eventually(t, readyIn, "the forgotten one has left", func() bool { return d.Members().Len() == MaxMembers-1 })
}
