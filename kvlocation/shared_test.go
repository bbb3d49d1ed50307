package kvlocation

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"natsfabric/fabrictest"
	"natsfabric/outcome"
)

// member is a program with an RID, which may use shared keys and relay moves.
func (b *bed) member(t *testing.T, server int, rid string, attempt time.Duration) party {
	t.Helper()
	proxy := fabrictest.NewProxy(t, b.servers[server].URL())
	return party{Store: openStore(t, connect(t, proxy.URL()), Config{Mesh: "m", RID: rid, AttemptTimeout: attempt}), proxy: proxy}
}

// keyTrigger selects the sendings of a shared key.
func keyTrigger(h *Shared, key string, f func(*fabrictest.Trigger)) fabrictest.Trigger {
	tr := fabrictest.Trigger{Subject: h.b.publish + key}
	f(&tr)
	return tr
}

func loseAnswer(tr *fabrictest.Trigger) { tr.Answer, tr.Action = true, fabrictest.Drop }

func mustShared(t *testing.T, e SharedEntry, err error) SharedEntry {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func wantValue(t *testing.T, e SharedEntry, err error, want string) {
	t.Helper()
	if err != nil || string(e.Value) != want {
		t.Fatalf("got %q at %d, %v, want %q", e.Value, e.Revision, err, want)
	}
}

func TestShared(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, b *bed) {
		p, q := b.member(t, 0, "n1", shortAttempt), b.member(t, len(b.servers)-1, "n2", shortAttempt)
		for _, bucket := range []Bucket{BucketSupervise, BucketFence} {
			t.Run("life in "+string(bucket), func(t *testing.T) { testSharedLife(t, p.Shared(bucket), q.Shared(bucket)) })
		}
		h := p.Shared(BucketSupervise)
		other := q.Shared(BucketSupervise)

		t.Run("one of many creates wins", func(t *testing.T) {
			t.Parallel()
			var (
				wg   sync.WaitGroup
				mu   sync.Mutex
				wins []SharedEntry
				lost []SharedEntry
			)
			for i := range 16 {
				wg.Go(func() {
					e, err := []*Shared{h, other}[i%2].Create(testContext(t), "lock.race", fmt.Appendf(nil, "%d", i), time.Minute)
					mu.Lock()
					defer mu.Unlock()
					switch {
					case err == nil:
						wins = append(wins, e)
					case errors.Is(err, outcome.AlreadyExists) && errors.Is(err, outcome.NotAccepted):
						lost = append(lost, e)
					default:
						t.Errorf("create: %v", err)
					}
				})
			}
			wg.Wait()
			if len(wins) != 1 {
				t.Fatalf("%d creates won", len(wins))
			}
			for _, e := range lost {
				if e.Revision != wins[0].Revision || string(e.Value) != string(wins[0].Value) {
					t.Errorf("a loser was shown %s at %d, the winner wrote %s at %d", e.Value, e.Revision, wins[0].Value, wins[0].Revision)
				}
			}
		})

		t.Run("expiry", func(t *testing.T) {
			t.Parallel()
			e, err := h.Create(testContext(t), "lock.short", []byte(`1`), time.Second)
			mustShared(t, e, err)
			if got, err := h.Get(testContext(t), "lock.short"); err == nil && got.Expires.Sub(got.Time) != time.Second {
				t.Errorf("expires at %v, written at %v", got.Expires, got.Time)
			}
			fabrictest.Eventually(t, 30*time.Second, "the key to expire", func() bool {
				_, err := h.Confirm(testContext(t), "lock.short")
				return errors.Is(err, outcome.NotFound)
			})
			e2, err := other.Create(testContext(t), "lock.short", []byte(`2`), time.Minute)
			if mustShared(t, e2, err); e2.Revision <= e.Revision {
				t.Errorf("revision %d after %d", e2.Revision, e.Revision)
			}
			if _, err := h.Update(testContext(t), e, []byte(`3`), time.Minute); !errors.Is(err, ErrConflict) {
				t.Errorf("the earlier holder's update: %v", err)
			}
		})

		t.Run("an update sets the life anew", func(t *testing.T) {
			t.Parallel()
			e, err := h.Create(testContext(t), "lock.renewed", []byte(`1`), 2*time.Second)
			mustShared(t, e, err)
			e, err = h.Update(testContext(t), e, []byte(`2`), 0)
			mustShared(t, e, err)
			gone, err := h.Create(testContext(t), "lock.witness", []byte(`1`), 3*time.Second)
			mustShared(t, gone, err)
			fabrictest.Eventually(t, 30*time.Second, "the witness to expire", func() bool {
				_, err := h.Confirm(testContext(t), "lock.witness")
				return errors.Is(err, outcome.NotFound)
			})
			got, err := h.Confirm(testContext(t), "lock.renewed")
			if wantValue(t, got, err, `2`); !got.Expires.IsZero() {
				t.Errorf("expires at %v, want never", got.Expires)
			}
		})

		t.Run("several as they are now", func(t *testing.T) {
			t.Parallel()
			var at [2]SharedEntry
			for i := range 20 {
				for k, key := range []string{"worker.one", "worker.two"} {
					at[k].Key = key
					e, err := h.Update(testContext(t), at[k], fmt.Append(nil, i), 0)
					at[k] = mustShared(t, e, err)
				}
				all, err := other.ConfirmAll(testContext(t), "worker.two", "worker.none", "worker.one")
				if err != nil {
					t.Fatal(err)
				}
				for n, want := range []SharedEntry{at[1], {Key: "worker.none"}, at[0]} {
					if got := all[n]; got.Key != want.Key || got.Revision != want.Revision || string(got.Value) != string(want.Value) {
						t.Fatalf("after write %d: %q is %q at %d, want %q at %d", i, got.Key, got.Value, got.Revision, want.Value, want.Revision)
					}
				}
			}
			if _, err := h.ConfirmAll(testContext(t), "worker.one", "probe.x"); !errors.Is(err, outcome.InvalidOperation) {
				t.Errorf("a key that is not allowed: %v", err)
			}
		})

		t.Run("lost answers", func(t *testing.T) {
			t.Parallel()
			key := "incident.answers"
			lose := func() *fabrictest.Armed { return p.proxy.Arm(keyTrigger(h, key, loseAnswer)) }
			armed := lose()
			e, err := h.Create(testContext(t), key, []byte(`1`), 0)
			mustShared(t, e, err)
			armed.Wait(t)
			armed = lose()
			e2, err := h.Update(testContext(t), e, []byte(`2`), time.Hour)
			if wantValue(t, e2, err, `2`); e2.Revision <= e.Revision {
				t.Errorf("revision %d after %d", e2.Revision, e.Revision)
			}
			armed.Wait(t)
			armed = lose()
			if err := h.Delete(testContext(t), e2); err != nil {
				t.Fatal(err)
			}
			armed.Wait(t)
			if _, err := other.Confirm(testContext(t), key); !errors.Is(err, outcome.NotFound) {
				t.Errorf("after the delete: %v", err)
			}
		})

		t.Run("applied, then overwritten by another", func(t *testing.T) {
			t.Parallel()
			key := "incident.overwritten"
			e := mustSharedCreate(t, h, key)
			// The answer is held until another has written over it.
			armed := p.proxy.Arm(keyTrigger(h, key, func(tr *fabrictest.Trigger) { tr.Answer, tr.Action = true, fabrictest.Drop }))
			done := make(chan error, 1)
			var got SharedEntry
			go func() {
				var err error
				got, err = h.Update(testContext(t), e, []byte(`"mine"`), 0)
				done <- err
			}()
			armed.Wait(t)
			for i := range 3 {
				at, err := other.Confirm(testContext(t), key)
				mustShared(t, at, err)
				at, err = other.Update(testContext(t), at, fmt.Appendf(nil, `"theirs %d"`, i), 0)
				mustShared(t, at, err)
			}
			if err := <-done; err != nil || !strings.HasPrefix(string(got.Value), `"theirs`) && string(got.Value) != `"mine"` {
				t.Fatalf("got %s, %v: it was applied", got.Value, err)
			}
		})

		t.Run("overwritten so often that nobody can tell", func(t *testing.T) {
			t.Parallel()
			key := "incident.forgotten"
			e := mustSharedCreate(t, h, key)
			armed := p.proxy.Arm(keyTrigger(h, key, func(tr *fabrictest.Trigger) { tr.Answer, tr.Action, tr.Times = true, fabrictest.Drop, -1 }))
			ctx := briefly(t)
			_, err := h.Update(ctx, e, []byte(`"mine"`), 0)
			wantError(t, err, outcome.Unavailable, outcome.Unknown)
			var pending *SharedPending
			if !errors.As(err, &pending) || pending.Key() != key {
				t.Fatalf("no pending write in %v", err)
			}
			armed.Release()
			for i := range maxOps + 1 {
				at, err := other.Confirm(testContext(t), key)
				mustShared(t, at, err)
				at, err = other.Update(testContext(t), at, fmt.Appendf(nil, `%d`, i), 0)
				mustShared(t, at, err)
			}
			pending.sd.opID = "of-another" // as if the server had forgotten the message ID: only the list tells
			_, err = h.Resolve(briefly(t), pending)
			wantError(t, err, outcome.Unavailable, outcome.Unknown)
		})

		t.Run("never sent", func(t *testing.T) {
			t.Parallel()
			key := "incident.resolved"
			e := mustSharedCreate(t, h, key)
			armed := p.proxy.Arm(keyTrigger(h, key, func(tr *fabrictest.Trigger) { tr.Action, tr.Times = fabrictest.Drop, -1 }))
			_, err := h.Update(briefly(t), e, []byte(`"mine"`), 0)
			armed.Release()
			var pending *SharedPending
			if !errors.As(err, &pending) {
				t.Fatalf("no pending write in %v", err)
			}
			// Whoever writes over the same entry settles it.
			e2, err := h.Update(testContext(t), e, []byte(`"instead"`), 0)
			wantValue(t, e2, err, `"instead"`)
			_, err = h.Resolve(testContext(t), pending)
			if wantError(t, err, outcome.InvalidOperation, outcome.NotAccepted); !errors.Is(err, ErrConflict) {
				t.Errorf("got %v", err)
			}
		})

		t.Run("the clock", func(t *testing.T) {
			t.Parallel()
			now, bound, err := h.Now(testContext(t))
			if off := time.Since(now).Abs(); err != nil || bound <= 0 || off > bound+time.Second {
				t.Errorf("%v ± %v (off by %v), %v", now, bound, off, err)
			}
		})

		t.Run("facts", func(t *testing.T) {
			t.Parallel()
			n, err := p.Shared(BucketFence).Replicas(testContext(t))
			if err != nil || n != b.replicas || p.Shared(BucketFence).Epoch() == 0 || p.Shared(BucketFence).Epoch() == h.Epoch() {
				t.Errorf("%d replicas, %v; epochs %d and %d", n, err, p.Shared(BucketFence).Epoch(), h.Epoch())
			}
		})
	})
}

func mustSharedCreate(t *testing.T, h *Shared, key string) SharedEntry {
	t.Helper()
	e, err := h.Create(testContext(t), key, []byte(`"first"`), 0)
	return mustShared(t, e, err)
}

func testSharedLife(t *testing.T, h, other *Shared) {
	ctx := testContext(t)
	if _, err := h.Get(ctx, "worker.w1"); !errors.Is(err, outcome.NotFound) {
		t.Fatalf("get of nothing: %v", err)
	}
	e, err := h.Create(ctx, "worker.w1", []byte(`{"n":1}`), 0)
	if wantValue(t, e, err, `{"n":1}`); e.Revision == 0 {
		t.Errorf("%+v", e)
	}
	present, err := other.Create(ctx, "worker.w1", []byte(`{"n":9}`), 0)
	wantError(t, err, outcome.AlreadyExists, outcome.NotAccepted)
	if string(present.Value) != `{"n":1}` || present.Revision != e.Revision || time.Since(present.Time).Abs() > time.Minute {
		t.Errorf("the present entry is %+v", present)
	}
	e2, err := other.Update(ctx, present, []byte(`{"n":2}`), time.Hour)
	wantValue(t, e2, err, `{"n":2}`)
	present, err = h.Update(ctx, e, []byte(`{"n":3}`), 0)
	wantError(t, err, outcome.InvalidOperation, outcome.NotAccepted)
	if !errors.Is(err, ErrConflict) || string(present.Value) != `{"n":2}` || present.Expires.IsZero() {
		t.Errorf("lost with %v, the present entry is %+v", err, present)
	}
	got, err := h.Confirm(ctx, "worker.w1")
	if wantValue(t, got, err, `{"n":2}`); len(got.ops) != 2 || got.count != 2 {
		t.Errorf("%d operations, %d writes", len(got.ops), got.count)
	}
	if err := h.Delete(ctx, e); !errors.Is(err, ErrConflict) {
		t.Errorf("delete of an older entry: %v", err)
	}
	if err := h.Delete(ctx, e2); err != nil {
		t.Fatal(err)
	}
	marker, err := h.Confirm(ctx, "worker.w1")
	wantError(t, err, outcome.NotFound, outcome.NotAccepted)
	m, err := h.s.get(ctx, h.b, "worker.w1")
	if err != nil || marker.Revision == 0 || marker.Exists() || len(marker.ops) != 3 || first(m.header, "Nats-TTL") != "600" {
		t.Errorf("the marker is %+v with %v, %v", marker, m.header, err)
	}
	// Over the marker, by who read it and by who did not.
	e3, err := h.Update(ctx, marker, []byte(`{"n":4}`), 0)
	wantValue(t, e3, err, `{"n":4}`)
	if err := h.Delete(ctx, e3); err != nil {
		t.Fatal(err)
	}
	e4, err := other.Create(ctx, "worker.w1", []byte(`{"n":5}`), 0)
	wantValue(t, e4, err, `{"n":5}`)
	for i := range 12 {
		e4, err = h.Update(ctx, e4, fmt.Appendf(nil, `{"n":%d}`, 10+i), 0)
		mustShared(t, e4, err)
	}
	if got, err = other.Confirm(ctx, "worker.w1"); err != nil || len(got.ops) != maxOps || got.count != 18 {
		t.Errorf("%d operations, %d writes, %v", len(got.ops), got.count, err)
	}

	for _, key := range []string{"worker.w2", "workers.w3", "timer.w1"} {
		mustSharedCreate(t, h, key)
	}
	gone := mustSharedCreate(t, h, "worker.gone")
	if err := h.Delete(ctx, gone); err != nil {
		t.Fatal(err)
	}
	if err := h.s.Audit(ctx, AuditEntry{By: "me", Action: "release"}, time.Hour); err != nil {
		t.Fatal(err)
	}
	for prefix, want := range map[string]string{
		"":        "worker.w1 worker.w2 workers.w3 timer.w1",
		"worker.": "worker.w1 worker.w2",
		"worker":  "worker.w1 worker.w2 workers.w3",
		"timer.w": "timer.w1",
		"none.":   "",
	} {
		fabrictest.Eventually(t, 10*time.Second, fmt.Sprintf("%q to list %s", prefix, want), func() bool {
			var keys []string
			if err := h.List(ctx, prefix, func(e SharedEntry) bool { keys = append(keys, e.Key); return e.Exists() && !e.Time.IsZero() }); err != nil {
				t.Fatal(err)
			}
			return strings.Join(keys, " ") == want
		})
	}
	n := 0
	if err := h.List(ctx, "", func(SharedEntry) bool { n++; return false }); err != nil || n != 1 {
		t.Errorf("%d entries after the end, %v", n, err)
	}
}

// TestSharedRefuses has what is not allowed.
func TestSharedRefuses(t *testing.T) {
	t.Parallel()
	b := newBed(t, 1)
	p := b.member(t, 0, "n1", time.Second)
	h, ctx := p.Shared(BucketFence), testContext(t)
	for _, key := range []string{"", ".", "a.", ".a", "a..b", "a b", "a*", "ä", "probe.n1", "probe", "audit.x", strings.Repeat("k", MaxSharedKey+1)} {
		_, err := h.Create(ctx, key, []byte(`1`), 0)
		wantError(t, err, outcome.InvalidOperation, outcome.NotAccepted)
	}
	for _, value := range []string{"", "{", "x"} {
		_, err := h.Create(ctx, "k", []byte(value), 0)
		wantError(t, err, outcome.InvalidOperation, outcome.NotAccepted)
	}
	_, err := h.Create(ctx, "k", []byte(`"`+strings.Repeat("x", MaxShared)+`"`), 0)
	wantError(t, err, outcome.CapacityExceeded, outcome.NotAccepted)
	for _, ttl := range []time.Duration{-time.Second, time.Millisecond, 1500 * time.Millisecond, MaxSharedTTL + time.Second} {
		_, err := h.Create(ctx, "k", []byte(`1`), ttl)
		wantError(t, err, outcome.InvalidOperation, outcome.NotAccepted)
	}
	for _, prefix := range []string{".", "a..", "*", strings.Repeat("k", MaxSharedKey+1)} {
		wantError(t, h.List(ctx, prefix, func(SharedEntry) bool { return true }), outcome.InvalidOperation, outcome.NotAccepted)
	}
	e, err := h.Create(ctx, strings.Repeat("k", MaxSharedKey), []byte(`"`+strings.Repeat("x", MaxShared-2)+`"`), MaxSharedTTL)
	mustShared(t, e, err)

	anonymous := b.party(t).Shared(BucketFence)
	_, err = anonymous.Get(ctx, "k")
	wantError(t, err, outcome.InvalidOperation, outcome.NotAccepted)
	wantText(t, err, "RID")
	_, err = anonymous.Confirm(ctx, "k")
	wantError(t, err, outcome.InvalidOperation, outcome.NotAccepted)
}

// TestSharedCreateBehindAnOldMarker loses the answer to a create that was refused for a marker which was there before
// it: that marker may be about to go, so the create is not said to be lost.
func TestSharedCreateBehindAnOldMarker(t *testing.T) {
	t.Parallel()
	b := newBed(t, 1)
	p := b.member(t, 0, "n1", shortAttempt)
	h := p.Shared(BucketSupervise)
	e := mustSharedCreate(t, h, "k")
	if err := h.Delete(testContext(t), e); err != nil {
		t.Fatal(err)
	}
	armed := p.proxy.Arm(keyTrigger(h, "k", loseAnswer))
	pending, err := h.prepare("create", SharedEntry{Key: "k"}, []byte(`1`), 0) // from a read that was stale
	if err != nil {
		t.Fatal(err)
	}
	_, err = h.Resolve(testContext(t), pending)
	armed.Wait(t)
	wantError(t, err, outcome.Unavailable, outcome.Unknown)
}

// TestSharedOfReplicaBehind shows that a create is not refused for what only a replica that is behind still has.
func TestSharedOfReplicaBehind(t *testing.T) {
	t.Parallel()
	b := newBed(t, 3)
	leader := b.cluster.StreamLeader(t, "KV_FABRIC_m_SUPERVISE")
	li := 0
	for i, s := range b.servers {
		if s == leader {
			li = i
		}
	}
	behind, reader := (li+1)%3, (li+2)%3
	p := b.member(t, reader, "n1", time.Second)
	h, ctx := p.Shared(BucketSupervise), testContext(t)
	e := mustSharedCreate(t, h, "k")
	fabrictest.Eventually(t, 10*time.Second, "all replicas to have it", func() bool {
		for range 12 {
			if got, err := h.Get(ctx, "k"); err != nil || got.Revision != e.Revision {
				return false
			}
		}
		return true
	})
	link := b.cluster.Link(t, li, behind)
	link.Apply(fabrictest.Hang)
	defer link.Heal()
	if err := h.Delete(ctx, e); err != nil {
		t.Fatal(err)
	}
	fabrictest.Eventually(t, 10*time.Second, "an answer of the replica that is behind", func() bool {
		got, err := h.Get(ctx, "k")
		return err == nil && got.Exists()
	})
	for i := range 8 {
		if _, err := h.Confirm(ctx, "k"); !errors.Is(err, outcome.NotFound) {
			t.Fatalf("confirm: %v", err)
		}
		e, err := h.Create(ctx, "k", []byte(`1`), 0)
		if err != nil {
			t.Fatalf("create %d: %v", i, err)
		}
		if err := h.Delete(ctx, e); err != nil {
			t.Fatal(err)
		}
	}
}

// TestFenceMadeAgain removes the stream of leadership terms and makes it again: a process that knew the old one doesn't
// go on with the new one's revisions.
func TestFenceMadeAgain(t *testing.T) {
	t.Parallel()
	b := newBed(t, 1)
	p := b.member(t, 0, "n1", time.Second)
	h, ctx := p.Shared(BucketFence), testContext(t)
	e := mustSharedCreate(t, h, "leader.a")
	for range 5 {
		var err error
		e, err = h.Update(ctx, e, []byte(`1`), 0)
		mustShared(t, e, err)
	}
	js, err := jetstream.New(p.nc)
	if err != nil {
		t.Fatal(err)
	}
	if err := js.DeleteStream(ctx, "KV_FABRIC_m_FENCE"); err != nil {
		t.Fatal(err)
	}
	if _, err := Init(ctx, p.nc, Setup{Mesh: "m"}); err != nil {
		t.Fatal(err)
	}
	_, err = h.Create(ctx, "leader.a", []byte(`2`), 0)
	wantError(t, err, outcome.DataLost, outcome.NotAccepted)
	if !errors.Is(err, ErrRolledBack) {
		t.Errorf("got %v", err)
	}
}
