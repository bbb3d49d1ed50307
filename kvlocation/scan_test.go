package kvlocation

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"natsfabric/fabrictest"
	"natsfabric/outcome"
)

// fill makes n Ready objects, 32 at a time.
func (p party) fill(t *testing.T, n int, object func(i int) NewObject) {
	t.Helper()
	var wg sync.WaitGroup
	next := make(chan int)
	for range 32 {
		wg.Go(func() {
			for i := range next {
				o := object(i)
				o.AssumeMissing = true
				ch, err := p.Create(testContext(t), o)
				if err == nil {
					_, err = p.Ready(testContext(t), ch.Entry, o.Owner)
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

// scan returns how often each object came.
func (p party) scan(t *testing.T, f ScanFilter) map[ObjectKey]int {
	t.Helper()
	seen := map[ObjectKey]int{}
	if err := p.Scan(testContext(t), f, func(e Entry) bool { seen[e.Key]++; return true }); err != nil {
		t.Fatal(err)
	}
	return seen
}

// pages does the same page by page.
func (p party) pages(t *testing.T, f ScanFilter, limit int) map[ObjectKey]int {
	t.Helper()
	seen := map[ObjectKey]int{}
	for after := ""; ; {
		es, next, err := p.ScanPage(testContext(t), f, after, limit)
		if err != nil {
			t.Fatal(err)
		}
		if len(es) > limit {
			t.Fatalf("%d entries on a page of %d", len(es), limit)
		}
		for _, e := range es {
			seen[e.Key]++
		}
		if after = next; after == "" {
			return seen
		}
	}
}

func TestScan(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, b *bed) {
		p := b.party(t)
		// More than one answer of the store holds.
		n := walkBatch + 150
		p.fill(t, n, func(i int) NewObject {
			o := room(ObjectKey{Kind: KindActor, ID: fmt.Sprintf("a/%d", i)}, n1, nil)
			switch {
			case i%10 == 1:
				o.Owner = n2
			case i%10 == 2:
				o.Key.Kind, o.Class = KindSpot, ClassUserSpot
			case i%10 == 3:
				o.Key.Kind, o.Class, o.Type = KindSpot, ClassInstanceSpot, "hall"
			case i == 4:
				o.Key.ID = "b/ü"
			}
			return o
		})
		// One that is closed, and one that is Creating.
		at := p.mustRead(t, ObjectKey{Kind: KindActor, ID: "a/5"})
		if _, err := p.CloseObject(testContext(t), at, n1); err != nil {
			t.Fatal(err)
		}
		p.create(t, ObjectKey{Kind: KindActor, ID: "a/creating"})
		// What is no object, and what nobody can read.
		for key, value := range map[string]string{"actor.=zz": "{}", "actor.unreadable": "{", "other.x": "{}"} {
			if _, err := p.nc.Request(p.location.publish+key, []byte(value), 5*time.Second); err != nil {
				t.Fatal(err)
			}
		}

		tenth := n / 10
		for _, c := range []struct {
			filter ScanFilter
			want   int
		}{
			{ScanFilter{}, n},
			{ScanFilter{Kind: KindActor}, n - 2*tenth},
			{ScanFilter{Kind: KindSpot}, 2 * tenth},
			{ScanFilter{Class: ClassInstanceSpot}, tenth},
			{ScanFilter{Class: ClassUserSpot, Type: "hall"}, 0},
			{ScanFilter{Type: "hall"}, tenth},
			{ScanFilter{RID: "n2"}, tenth},
			{ScanFilter{RID: "n2", Lifecycle: 6}, tenth},
			{ScanFilter{RID: "n2", Lifecycle: 7}, 0},
			{ScanFilter{Prefix: "b/"}, 1},
			{ScanFilter{Prefix: "a/cr"}, 1},
		} {
			for how, seen := range map[string]map[ObjectKey]int{"scan": p.scan(t, c.filter), "pages": p.pages(t, c.filter, 97)} {
				if len(seen) != c.want {
					t.Errorf("%s of %+v: %d objects, want %d", how, c.filter, len(seen), c.want)
				}
				for key, times := range seen {
					if times != 1 {
						t.Errorf("%s of %+v: %v came %d times, and nobody wrote it", how, c.filter, key, times)
					}
				}
			}
		}
		first := 0
		if err := p.Scan(testContext(t), ScanFilter{}, func(Entry) bool { first++; return first < 3 }); err != nil || first != 3 {
			t.Errorf("a scan that was to end after 3 entries: %d, %v", first, err)
		}
	})
}

// TestScanDuringWrites shows that nothing is missed that exists all the time, wherever writes move it meanwhile.
func TestScanDuringWrites(t *testing.T) {
	t.Parallel()
	b := newBed(t, 1)
	p := b.party(t)
	const n = walkBatch + 40
	key := func(i int) ObjectKey { return ObjectKey{Kind: KindActor, ID: fmt.Sprintf("o%d", i)} }
	p.fill(t, n, func(i int) NewObject { return room(key(i), n1, nil) })
	seen := map[ObjectKey][]uint64{}
	moved := false
	err := p.Scan(testContext(t), ScanFilter{}, func(e Entry) bool {
		seen[e.Key] = append(seen[e.Key], e.Revision)
		if !moved { // with the first answer in hand, everything is written again
			moved = true
			var wg sync.WaitGroup
			for w := range 16 {
				wg.Go(func() {
					for i := w; i < n; i += 16 {
						at, err := p.Peek(testContext(t), key(i))
						if err == nil {
							_, err = p.Adopt(testContext(t), at, n1later)
						}
						if err != nil {
							t.Error(err)
						}
					}
				})
			}
			wg.Wait()
		}
		return true
	})
	if err != nil || len(seen) != n {
		t.Fatalf("%d of %d objects, %v", len(seen), n, err)
	}
	twice := 0
	for k, revisions := range seen {
		if !slices.IsSorted(revisions) || len(revisions) > 2 {
			t.Errorf("%v came at %v", k, revisions)
		}
		if len(revisions) == 2 {
			twice++
		}
	}
	if twice != walkBatch {
		t.Errorf("%d objects came twice, want the %d of the first answer", twice, walkBatch)
	}
}

// TestScanOfReplicaBehind shows that the end of a scan is not concluded from a replica that lacks the last writes.
func TestScanOfReplicaBehind(t *testing.T) {
	t.Parallel()
	b := newBed(t, 3)
	leader := b.leader(t)
	behind, reader := (leader+1)%3, (leader+2)%3
	p := b.partyAt(t, reader, time.Second)
	want := map[ObjectKey]int{}
	object := func(i int) NewObject {
		o := room(ObjectKey{Kind: KindActor, ID: fmt.Sprintf("o%d", i)}, n1, nil)
		want[o.Key] = 1
		return o
	}
	p.create(t, object(0).Key)
	link := b.cluster.Link(t, leader, behind)
	link.Apply(fabrictest.Hang)
	defer link.Heal()
	for i := range 3 {
		p.create(t, object(i+1).Key)
	}
	stale := 0
	for start := time.Now(); stale == 0 && time.Since(start) < 10*time.Second; {
		msgs, more, err := p.readBatch(testContext(t), p.location, p.location.subject+">", 1, walkBytes)
		if err != nil || more {
			t.Fatal(more, err)
		}
		if len(msgs) < len(want) {
			stale++
		}
	}
	if stale == 0 {
		t.Fatal("no answer of the replica that is behind was provoked")
	}
	for range 8 {
		if got := p.scan(t, ScanFilter{}); !maps.Equal(got, want) {
			t.Fatalf("got %v, want %v", got, want)
		}
	}
}

// TestScanLosesNoPart loses one part of an answer.
func TestScanLosesNoPart(t *testing.T) {
	t.Parallel()
	b := newBed(t, 1)
	p := b.party(t)
	want := map[ObjectKey]int{}
	for i := range 5 {
		key := ObjectKey{Kind: KindActor, ID: fmt.Sprintf("o%d", i)}
		p.create(t, key)
		want[key] = 1
	}
	lost := p.proxy.Arm(fabrictest.Trigger{
		Dir: fabrictest.ToClient, Action: fabrictest.Drop,
		Match: func(m fabrictest.Message) bool {
			return m.Headers().Get("Nats-Subject") == "$KV.FABRIC_m_LOCATION.actor.o3"
		},
	})
	if got := p.scan(t, ScanFilter{}); !maps.Equal(got, want) || lost.Count() != 1 {
		t.Fatalf("got %v, want %v; %d parts lost", got, want, lost.Count())
	}
}

// TestScanWaitsForSlowParts has every part of an answer come late, but come: only an answer that stands still is asked
// for again.
func TestScanWaitsForSlowParts(t *testing.T) {
	t.Parallel()
	b := newBed(t, 1)
	// The first attempt at a read gets a quarter of this, the later ones at most the whole: less than all parts take.
	const attempt = 2 * time.Second
	p := b.partyAt(t, 0, attempt)
	want := map[ObjectKey]int{}
	late := func(i int, match func(nats.Header) bool) {
		p.proxy.Arm(fabrictest.Trigger{
			Dir: fabrictest.ToClient, Times: -1, Action: fabrictest.DelayAlone(time.Duration(i+1) * attempt / 6),
			Match: func(m fabrictest.Message) bool { return match(m.Headers()) },
		})
	}
	const n = 7
	for i := range n {
		key := ObjectKey{Kind: KindActor, ID: fmt.Sprintf("o%d", i)}
		p.create(t, key)
		want[key] = 1
		late(i, func(h nats.Header) bool { return h.Get("Nats-Subject") == "$KV.FABRIC_m_LOCATION.actor."+key.ID })
	}
	late(n, func(h nats.Header) bool {
		return h.Get("Nats-Subject") == "" && h.Get("Nats-Num-Pending") != "" && h.Get("Nats-Last-Sequence") == fmt.Sprint(n)
	})
	asked := p.proxy.Arm(fabrictest.Trigger{Subject: p.location.direct, Times: -1, Action: fabrictest.Signal})
	if got := p.scan(t, ScanFilter{}); !maps.Equal(got, want) {
		t.Fatalf("got %v, want %v", got, want)
	}
	if asked.Count() > 3 { // the objects, and the write that confirms the end
		t.Errorf("%d reads", asked.Count())
	}
}

func TestScanPageBounds(t *testing.T) {
	t.Parallel()
	b := newBed(t, 1)
	p := b.party(t)
	for i := range 3 {
		p.create(t, ObjectKey{Kind: KindActor, ID: fmt.Sprintf("o%d", i)})
	}
	es, next, err := p.ScanPage(testContext(t), ScanFilter{}, "", 2)
	if err != nil || len(es) != 2 || next == "" {
		t.Fatalf("%d entries, %q, %v", len(es), next, err)
	}
	if es, next, err = p.ScanPage(testContext(t), ScanFilter{}, next, 2); err != nil || len(es) != 1 || next != "" {
		t.Fatalf("%d entries, %q, %v", len(es), next, err)
	}
	for name, try := range map[string]func() error{
		"limit":        func() error { _, _, err := p.ScanPage(testContext(t), ScanFilter{}, "", MaxScanPage+1); return err },
		"below 1":      func() error { _, _, err := p.ScanPage(testContext(t), ScanFilter{}, "", -1); return err },
		"cursor":       func() error { _, _, err := p.ScanPage(testContext(t), ScanFilter{}, "x", 1); return err },
		"other store":  func() error { _, _, err := p.ScanPage(testContext(t), ScanFilter{}, "7-12", 1); return err },
		"kind":         func() error { _, _, err := p.ScanPage(testContext(t), ScanFilter{Kind: "x"}, "", 1); return err },
		"class":        func() error { return p.Scan(testContext(t), ScanFilter{Class: "x"}, nil) },
		"audits limit": func() error { _, err := p.Audits(testContext(t), AuditFilter{Limit: MaxAudits + 1}); return err },
	} {
		t.Run(name, func(t *testing.T) { wantError(t, try(), outcome.InvalidOperation, outcome.NotAccepted) })
	}
	ctx, cancel := context.WithCancel(testContext(t))
	cancel()
	wantError(t, p.Scan(ctx, ScanFilter{}, func(Entry) bool { return true }), outcome.Unavailable, outcome.NotAccepted)
}
