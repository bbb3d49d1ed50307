package channels_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"natsfabric/channels"
	"natsfabric/fabrictest"
	"natsfabric/outcome"
)

// TestThawedMemberRunsNothingThatCallersGaveUpOn freezes a real member process (SIGSTOP) and lets it go on. What it
// was sent meanwhile is handed to it by its own socket, and must not run: what has a deadline because that has
// passed, and what has none because nobody can tell.
func TestThawedMemberRunsNothingThatCallersGaveUpOn(t *testing.T) {
	t.Parallel()
	srv := server(t)
	p := startProcess(t, srv.URL(), "m1", envWorkers+"=1")
	dir := newDirectory(member("m1", processLifecycle, "work"))
	caller := start(t, srv.URL(), channels.Config{Directory: dir, Clock: newClock()})
	ch := caller.Channel("work")
	plain := dial(t, srv.URL())
	if _, err := ch.Request(within(t, patience), []byte("before")); err != nil {
		t.Fatal(err)
	}

	const n = 5
	ends := make(chan end, 2*n)
	call := func(id, order string, timeout time.Duration) {
		_, err := ch.Request(within(t, timeout), []byte(id+order))
		ends <- end{id, err}
	}
	// These are accepted before the freeze and wait behind one that runs: their deadlines pass in the queue.
	go call("running", " sleep=10000", patience)
	fabrictest.Eventually(t, patience, "it runs", func() bool { return p.ran(t)["running"] == 1 })
	for i := range n {
		go call(fmt.Sprint("queued-", i), "", 2*time.Second)
	}
	fabrictest.Eventually(t, patience, "they are queued", func() bool { return p.stats(t, plain).Served.Queued == n })
	p.Freeze(t)
	frozen := time.Now()
	for i := range n {
		go call(fmt.Sprint("swallowed-", i), "", 2*time.Second)
		if err := plain.PublishRequest(channelSubject("work"), "nowhere", fmt.Append(nil, "bare-", i)); err != nil {
			t.Fatal(err)
		}
		if err := plain.Publish(channelSubject("work"), fmt.Append(nil, "published-", i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := plain.Flush(); err != nil {
		t.Fatal(err)
	}
	for range 2 * n {
		e := receive(t, ends, "the end of a request")
		wantErr(t, e.err, outcome.DeadlineExceeded, outcome.Unknown)
	}
	fabrictest.Eventually(t, patience, "the freeze is long enough to count", func() bool { return time.Since(frozen) > 1500*time.Millisecond })
	p.Thaw(t)

	var s memberStats
	fabrictest.Eventually(t, patience, "it has refused what it was sent", func() bool {
		s = p.stats(t, plain)
		return s.Served.RefusedPast == n && s.Served.RefusedThawing == 2*n && s.Served.Expired == n
	})
	if s.Gaps == 0 {
		t.Error("the gap was not counted")
	}
	if err := checkServed(s.Served); err != nil {
		t.Error(err)
	}
	if e := receive(t, ends, "the end of the one that ran"); e.err != nil || e.id != "running" {
		t.Errorf("%s: %v", e.id, e.err)
	}
	// It has got over it: requests with and without a deadline run again.
	if _, err := ch.Request(within(t, patience), []byte("after")); err != nil {
		t.Fatal(err)
	}
	fabrictest.Eventually(t, patience, "a plain request runs again", func() bool {
		m, err := plain.Request(channelSubject("work"), []byte("plain-after"), patience)
		return err == nil && string(m.Data) == "m1"
	})
	for id, times := range p.ran(t) {
		if times != 1 || strings.HasPrefix(id, "queued") || strings.HasPrefix(id, "swallowed") || strings.HasPrefix(id, "bare") || strings.HasPrefix(id, "published") {
			t.Errorf("%s ran %d times", id, times)
		}
	}
}
