package fence

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"natsfabric/fabrictest"
	"natsfabric/outcome"
)

// arrivals is one server, or three, with a bucket and a stream of an application's.
type arrivals struct {
	server *fabrictest.Server
	js     jetstream.JetStream
}

// onEach runs f on one server and on three.
func onEach(t *testing.T, f func(t *testing.T, a arrivals)) {
	for _, replicas := range []int{1, 3} {
		t.Run(fmt.Sprintf("servers=%d", replicas), func(t *testing.T) {
			t.Parallel()
			var server *fabrictest.Server
			if replicas == 1 {
				server = fabrictest.StartServer(t)
			} else {
				c := fabrictest.StartCluster(t, 3)
				c.WaitReady(t)
				server = c.Server(0)
			}
			a := arrivals{server: server, js: jetStream(t, server.Connect(t))}
			ctx := testContext(t)
			if _, err := a.js.CreateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: "app", Replicas: replicas}); err != nil {
				t.Fatal(err)
			}
			if _, err := a.js.CreateStream(ctx, jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}, Replicas: replicas}); err != nil {
				t.Fatal(err)
			}
			f(t, a)
		})
	}
}

func jetStream(t testing.TB, nc *nats.Conn) jetstream.JetStream {
	t.Helper()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

// readyIn bounds waits for what should happen soon, on a slow machine.
const readyIn = 2 * time.Minute

func testContext(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), readyIn)
	t.Cleanup(cancel)
	return ctx
}

func (a arrivals) kv(t testing.TB, js jetstream.JetStream, key string) *KVGuard {
	t.Helper()
	b, err := OpenBucket(testContext(t), js, "app")
	if err != nil {
		t.Fatal(err)
	}
	g, err := b.Guard(key, "")
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func (a arrivals) stream(t testing.TB, js jetstream.JetStream) *StreamGuard {
	t.Helper()
	s, err := OpenStream(testContext(t), js, "ORDERS")
	if err != nil {
		t.Fatal(err)
	}
	return s.Guard("orders.guard", "")
}

// far returns guards of a program behind a proxy of its own.
func (a arrivals) far(t testing.TB) (*fabrictest.Proxy, *KVGuard, *StreamGuard) {
	t.Helper()
	proxy := a.server.Proxy(t)
	js := jetStream(t, fabrictest.Connect(t, proxy.URL()))
	return proxy, a.kv(t, js, "alice"), a.stream(t, js)
}

// value is what a plain client reads, "" when there is nothing.
func (a arrivals) value(t testing.TB, key string) string {
	t.Helper()
	kv, err := a.js.KeyValue(testContext(t), "app")
	if err != nil {
		t.Fatal(err)
	}
	e, err := kv.Get(testContext(t), key)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return ""
	}
	if err != nil {
		t.Fatal(err)
	}
	return string(e.Value())
}

// becomes waits until every replica shows the value.
func (a arrivals) becomes(t testing.TB, key, want string) {
	t.Helper()
	fabrictest.Eventually(t, readyIn, "key "+key+" to be "+want, func() bool { return a.value(t, key) == want })
}

// published are the messages at orders.new, in order.
func (a arrivals) published(t testing.TB) string {
	t.Helper()
	s, err := a.js.Stream(testContext(t), "ORDERS")
	if err != nil {
		t.Fatal(err)
	}
	info, err := s.Info(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for seq := uint64(1); seq <= info.State.LastSeq; seq++ {
		var m *jetstream.RawStreamMsg
		fabrictest.Eventually(t, readyIn, "message to be readable", func() bool {
			m, err = s.GetMsg(testContext(t), seq)
			return err == nil
		})
		if m.Subject == "orders.new" {
			out = append(out, string(m.Data))
		}
	}
	return strings.Join(out, " ")
}

func tokenContext(t testing.TB, sequence uint64) context.Context {
	t.Helper()
	return WithToken(testContext(t), at(sequence))
}

func wantStale(t *testing.T, err error, presented, seen uint64) {
	t.Helper()
	var s *StaleError
	if !errors.As(err, &s) || s.Presented != at(presented) || s.Seen != at(seen) || s.StoppedBy != ByToken || !errors.Is(err, outcome.NotAccepted) {
		t.Fatalf("the write of %d ended with %v, want it stopped by %d", presented, err, seen)
	}
}

func order(text string) *nats.Msg { return &nats.Msg{Subject: "orders.new", Data: []byte(text)} }

// guardsOfNATS are the rules that a KV key and a stream keep.
func guardsOfNATS(t *testing.T) {
	onEach(t, func(t *testing.T, a arrivals) {
		// Two programs: the old holder with 33, whose guard knows nothing of 34, and the new one.
		oldKV, newKV := a.kv(t, a.js, "alice"), a.kv(t, jetStream(t, a.server.Connect(t)), "alice")
		oldStream, newStream := a.stream(t, a.js), a.stream(t, jetStream(t, a.server.Connect(t)))
		c33, c34 := tokenContext(t, 33), tokenContext(t, 34)
		for i := range 2 { // equal tokens pass
			if _, err := oldKV.Put(c33, fmt.Append(nil, "33-", i)); err != nil {
				t.Fatal(err)
			}
			if _, err := oldStream.Publish(c33, order(fmt.Sprint("33-", i))); err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(newKV.Raise(c34), newStream.Raise(c34)); err != nil {
			t.Fatal(err)
		}
		if e, err := newKV.Get(c34); err != nil || string(e.Value) != "33-1" || e.Token != at(34) {
			t.Fatalf("after Raise the key holds %+v, %v", e, err)
		}
		_, err := oldKV.Put(c33, []byte("late"))
		wantStale(t, err, 33, 34)
		wantStale(t, oldKV.Delete(c33), 33, 34)
		_, err = oldStream.Publish(c33, order("late"))
		wantStale(t, err, 33, 34)
		wantStale(t, oldKV.Raise(c33), 33, 34)
		wantStale(t, oldStream.Raise(c33), 33, 34)
		if _, err := newKV.Put(c34, []byte("34-0")); err != nil {
			t.Fatal(err)
		}
		if _, err := newStream.Publish(c34, order("34-0")); err != nil {
			t.Fatal(err)
		}
		a.becomes(t, "alice", "34-0")
		if got := a.published(t); got != "33-0 33-1 34-0" {
			t.Fatalf("the stream holds %q", got)
		}

		// Another source.
		bob := WithToken(testContext(t), Token{Source: "m/actor/b", Epoch: 9, Generation: 9, Sequence: 99})
		var other *SourceError
		if _, err := newKV.Put(bob, nil); !errors.As(err, &other) || other.Bound != "m/actor/a" {
			t.Fatalf("a token of another source got %v", err)
		}
		if _, err := newStream.Publish(bob, order("bob")); !errors.As(err, &other) || other.Bound != "m/actor/a" {
			t.Fatalf("a token of another source got %v", err)
		}

		// What is deleted is remembered.
		if err := newKV.Delete(c34); err != nil {
			t.Fatal(err)
		}
		a.becomes(t, "alice", "")
		if e, err := newKV.Get(c34); err != nil || !e.Deleted || e.Value != nil || e.Token != at(34) {
			t.Fatalf("after Delete the key holds %+v, %v", e, err)
		}
		if err := a.kv(t, a.js, "alice").Raise(c34); err != nil {
			t.Fatal(err)
		}
		_, err = oldKV.Put(c33, []byte("late"))
		wantStale(t, err, 33, 34)

		if s := oldKV.Stats(); s.Passed != 2 || s.StoppedByToken != 4 {
			t.Fatalf("the old holder's guard of the key counted %+v", s)
		}
		if s := oldStream.Stats(); s.Passed != 2 || s.StoppedByToken != 2 {
			t.Fatalf("the old holder's guard of the stream counted %+v", s)
		}
	})
}

// A raise of a key that never held anything keeps older holders out, and shows no value.
func TestRaiseOfAnEmptyKey(t *testing.T) {
	onEach(t, func(t *testing.T, a arrivals) {
		if err := a.kv(t, a.js, "k").Raise(tokenContext(t, 34)); err != nil {
			t.Fatal(err)
		}
		_, err := a.kv(t, a.js, "k").Put(tokenContext(t, 33), []byte("late"))
		wantStale(t, err, 33, 34)
		if got := a.value(t, "k"); got != "" {
			t.Fatalf("the key holds %q", got)
		}
		kv, err := a.js.KeyValue(testContext(t), "app")
		if err != nil {
			t.Fatal(err)
		}
		fabrictest.Eventually(t, readyIn, "a plain client to create the key", func() bool {
			_, err := kv.Create(testContext(t), "k", []byte("plain"))
			return err == nil
		})
	})
}

// Holders with different tokens write at once. Whoever was let in was the highest at that moment, so the tokens of what
// a stream took never fall, and the last value of a key is the highest holder's.
func TestHoldersRace(t *testing.T) {
	onEach(t, func(t *testing.T, a arrivals) {
		const holders, writes = 5, 4
		var wg sync.WaitGroup
		for h := range holders {
			kv, st := a.kv(t, a.js, "alice"), a.stream(t, a.js)
			ctx := tokenContext(t, uint64(h))
			wg.Go(func() {
				for i := range writes {
					_, err1 := kv.Put(ctx, fmt.Append(nil, h, "-", i))
					_, err2 := st.Publish(ctx, order(fmt.Sprint(h)))
					for _, err := range []error{err1, err2} {
						var s *StaleError
						if err != nil && (!errors.As(err, &s) || h == holders-1) {
							t.Errorf("holder %d: %v", h, err)
						}
					}
				}
			})
		}
		wg.Wait()
		a.becomes(t, "alice", fmt.Sprint(holders-1, "-", writes-1))
		last := ""
		for h := range strings.SplitSeq(a.published(t), " ") {
			if h < last {
				t.Fatalf("%s was stored after %s: %s", h, last, a.published(t))
			}
			last = h
		}
	})
}

// The server's answer to a write is lost: the write is sent again and takes place once.
func TestLostAnswers(t *testing.T) {
	onEach(t, func(t *testing.T, a arrivals) {
		proxy, kv, st := a.far(t)
		ctx := tokenContext(t, 33)
		for _, subject := range []string{"$KV.app.alice", "orders.guard", "orders.new"} {
			proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: subject, Answer: true, Action: fabrictest.Drop})
		}
		rev, err := kv.Put(ctx, []byte("once"))
		if err != nil {
			t.Fatal(err)
		}
		if rev != 1 {
			t.Fatalf("the value stands at revision %d, so it was written more than once", rev)
		}
		ack, err := st.Publish(ctx, order("once"))
		if err != nil {
			t.Fatal(err)
		}
		if !ack.Duplicate || a.published(t) != "once" {
			t.Fatalf("%+v, the stream holds %q", ack, a.published(t))
		}
	})
}

// A stream that knows a message by its ID for less time than an answer is waited for: what has no answer is not stored twice,
// neither where the message's own subject is compared nor where another one is.
func TestShortDuplicateWindow(t *testing.T) {
	t.Parallel()
	server := fabrictest.StartServer(t)
	a := arrivals{server: server, js: jetStream(t, server.Connect(t))}
	const window = 500 * time.Millisecond
	for _, c := range []jetstream.StreamConfig{
		{Name: "KV_app", Subjects: []string{"$KV.app.>"}, MaxMsgsPerSubject: 1, Discard: jetstream.DiscardNew, AllowRollup: true, DenyDelete: true, AllowDirect: true},
		{Name: "ORDERS", Subjects: []string{"orders.>"}},
	} {
		c.Duplicates = window
		if _, err := a.js.CreateStream(testContext(t), c); err != nil {
			t.Fatal(err)
		}
	}
	proxy, kv, st := a.far(t)
	ctx := tokenContext(t, 33)
	if err := st.Raise(ctx); err != nil {
		t.Fatal(err)
	}
	for _, subject := range []string{"$KV.app.alice", "orders.new"} {
		proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: subject, Answer: true, Action: fabrictest.Drop})
	}
	if rev, err := kv.Put(ctx, []byte("once")); err != nil || rev != 1 {
		t.Errorf("the value stands at revision %d: %v", rev, err)
	}
	if _, err := st.Publish(ctx, order("once")); outcome.AcceptanceOf(err) != outcome.Unknown {
		t.Errorf("nobody knows whether the message was stored, and Publish says %v", err)
	}
	if _, err := st.Publish(ctx, order("next")); err != nil {
		t.Error(err)
	}
	if got := a.published(t); got != "once next" {
		t.Errorf("the stream holds %q", got)
	}
}

// A connection that is closed for good while a write has no answer leaves it unknown.
func TestClosedWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	server := fabrictest.StartServer(t)
	a := arrivals{server: server, js: jetStream(t, server.Connect(t))}
	if _, err := a.js.CreateKeyValue(testContext(t), jetstream.KeyValueConfig{Bucket: "app"}); err != nil {
		t.Fatal(err)
	}
	proxy := server.Proxy(t)
	nc := fabrictest.Connect(t, proxy.URL())
	kv := a.kv(t, jetStream(t, nc), "alice")
	lost := proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: "$KV.app.alice", Answer: true, Action: fabrictest.Drop})
	go func() { <-lost.Reached(); nc.Close() }()
	if _, err := kv.Put(tokenContext(t, 33), []byte("once")); !errors.Is(err, outcome.Unavailable) || outcome.AcceptanceOf(err) != outcome.Unknown {
		t.Errorf("%v", err)
	}
	if got := a.value(t, "alice"); got != "once" {
		t.Errorf("the key holds %q", got)
	}
}

// A holder that is overtaken while its own write is under way without an answer is told that the write may have taken
// place, never that it did not.
func TestOvertakenWithoutAnAnswer(t *testing.T) {
	onEach(t, func(t *testing.T, a arrivals) {
		proxy, kv, st := a.far(t)
		ctx := tokenContext(t, 33)
		if err := st.Raise(ctx); err != nil {
			t.Fatal(err)
		}
		lost := map[string]*fabrictest.Armed{}
		for _, subject := range []string{"$KV.app.alice", "orders.new"} {
			lost[subject] = proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: subject, Answer: true, Action: fabrictest.Drop})
		}
		next := func(subject string, raise func() error) func() error {
			return func() error {
				<-lost[subject].Reached()
				return raise()
			}
		}
		raiseKV := next("$KV.app.alice", func() error { return a.kv(t, a.js, "alice").Raise(tokenContext(t, 34)) })
		raiseStream := next("orders.new", func() error { return a.stream(t, a.js).Raise(tokenContext(t, 34)) })
		for name, write := range map[string]struct{ old, next func() error }{
			"key":    {func() error { _, err := kv.Put(ctx, []byte("33")); return err }, raiseKV},
			"stream": {func() error { _, err := st.Publish(ctx, order("33")); return err }, raiseStream},
		} {
			raised := make(chan error, 1)
			go func() { raised <- write.next() }()
			err := write.old()
			if r := <-raised; r != nil {
				t.Fatal(r)
			}
			// Three servers know the message ID and say that it was stored; one compares first and refuses.
			var s *StaleError
			switch {
			case err == nil:
			case !errors.As(err, &s), outcome.AcceptanceOf(err) != outcome.Unknown:
				t.Errorf("%s: the overtaken write ended with %v", name, err)
			}
		}
		a.becomes(t, "alice", "33")
		if got := a.published(t); got != "33" {
			t.Errorf("the stream holds %q", got)
		}
	})
}

// Streams and buckets that would forget the highest token are refused.
func TestForgetfulStreams(t *testing.T) {
	js := jetStream(t, fabrictest.StartServer(t).Connect(t))
	ctx := testContext(t)
	for name, c := range map[string]jetstream.StreamConfig{
		"WORK":  {Retention: jetstream.WorkQueuePolicy},
		"COUNT": {MaxMsgs: 10},
		"BYTES": {MaxBytes: 1 << 20},
		"AGE":   {MaxAge: time.Hour},
		"RAM":   {Storage: jetstream.MemoryStorage},
	} {
		c.Name, c.Subjects = name, []string{name + ".>"}
		if _, err := js.CreateStream(ctx, c); err != nil {
			t.Fatal(err)
		}
		if _, err := OpenStream(ctx, js, name); !errors.Is(err, outcome.InvalidOperation) {
			t.Errorf("stream %s was opened: %v", name, err)
		}
	}
	if _, err := js.CreateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: "ttl", TTL: time.Hour}); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenBucket(ctx, js, "nosuch"); !errors.Is(err, outcome.NotConfigured) || !strings.Contains(err.Error(), `"KV_nosuch": `) {
		t.Fatalf("a bucket that is not there: %v", err)
	}
	if _, err := OpenBucket(ctx, js, "ttl"); !errors.Is(err, outcome.InvalidOperation) {
		t.Errorf("a bucket with a TTL was opened: %v", err)
	}
	// With message TTLs the record outlives the maximum age.
	if _, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}, MaxAge: time.Second, AllowMsgTTL: true}); err != nil {
		t.Fatal(err)
	}
	s, err := OpenStream(ctx, js, "ORDERS")
	if err != nil {
		t.Fatal(err)
	}
	g := s.Guard("orders.guard", "")
	if _, err := g.Publish(tokenContext(t, 34), order("34")); err != nil {
		t.Fatal(err)
	}
	st, err := js.Stream(ctx, "ORDERS")
	if err != nil {
		t.Fatal(err)
	}
	fabrictest.Eventually(t, readyIn, "the message to age", func() bool {
		info, err := st.Info(ctx)
		return err == nil && info.State.Msgs == 1
	})
	_, err = s.Guard("orders.guard", "").Publish(tokenContext(t, 33), order("late"))
	wantStale(t, err, 33, 34)
	for _, m := range []*nats.Msg{
		{Subject: "orders.guard"}, {Subject: "orders.new", Header: nats.Header{jetstream.ExpectedLastSubjSeqHeader: {"1"}}},
	} {
		if _, err := g.Publish(tokenContext(t, 34), m); !errors.Is(err, outcome.InvalidOperation) {
			t.Errorf("%v was published: %v", m.Header, err)
		}
	}
}

// Nothing is written by a turn that has lost its ownership, by one without a token, and after the context's end.
func TestArrivalWithoutRight(t *testing.T) {
	onEach(t, func(t *testing.T, a arrivals) {
		kv, st := a.kv(t, a.js, "alice"), a.stream(t, a.js)
		lost := errors.New("ownership lost")
		ctx, h := holding(t, at(33))
		h.fail(lost)
		ended, cancel := context.WithCancel(tokenContext(t, 33))
		cancel()
		for _, write := range []func(ctx context.Context) error{
			func(ctx context.Context) error { _, err := kv.Put(ctx, []byte("x")); return err },
			func(ctx context.Context) error { _, err := st.Publish(ctx, order("x")); return err },
		} {
			var s *StaleError
			if err := write(ctx); !errors.As(err, &s) || s.StoppedBy != ByLease || !errors.Is(err, lost) {
				t.Fatalf("a turn that lost its ownership got %v", err)
			}
			if err := write(testContext(t)); !errors.Is(err, outcome.InvalidOperation) {
				t.Fatalf("no token got %v", err)
			}
			if err := write(ended); !errors.Is(err, outcome.DeadlineExceeded) || !errors.Is(err, outcome.NotAccepted) {
				t.Fatalf("an ended context got %v", err)
			}
		}
		if a.value(t, "alice") != "" || a.published(t) != "" {
			t.Fatalf("written: %q, %q", a.value(t, "alice"), a.published(t))
		}
	})
}
