package kvlocation

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nuid"

	"natsfabric/fabrictest"
)

// TestEveryAnswerIsRead has callers come and go, so that now a lone one reads the inbox, now the dispatcher does. An
// attempt takes a minute, so an answer that nobody reads is not asked for again in time.
func TestEveryAnswerIsRead(t *testing.T) {
	t.Parallel()
	b := newBed(t, 1)
	s := openStore(t, connect(t, b.servers[0].URL()), Config{Mesh: "m", AttemptTimeout: time.Minute})
	const callers, each = 6, 150
	var wg sync.WaitGroup
	for c := range callers {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(1, uint64(c)))
			key, revision := fmt.Sprintf("mux.%d", c), uint64(0)
			for i := range each {
				begin := time.Now()
				var err error
				if rnd.IntN(3) == 0 {
					_, err = s.snapshot(testContext(t), s.location, revision, key)
				} else {
					var res writeResult
					res, err = s.write(testContext(t), write{bucket: s.location, key: key, expect: revision, opID: nuid.Next()})
					revision = res.revision
				}
				if took := time.Since(begin); err != nil || took > 30*time.Second {
					t.Errorf("operation %d of caller %d: %v after %v", i, c, err, took)
					return
				}
				for range rnd.IntN(40) { // let the others be alone now and then
					runtime.Gosched()
				}
			}
		})
	}
	wg.Wait()
	s.mux.mu.Lock()
	defer s.mux.mu.Unlock()
	if len(s.mux.calls) != 0 || s.mux.unread != 0 {
		t.Errorf("%d calls are left, %d of them not reading", len(s.mux.calls), s.mux.unread)
	}
}

// TestLoneCallerWaits has the caller that reads the inbox wait for an answer that does not come, while others go on,
// and has others wait after it has ended.
func TestLoneCallerWaits(t *testing.T) {
	t.Parallel()
	b := newBed(t, 1)
	p := b.partyAt(t, 0, time.Minute)
	hold := func(key string) *fabrictest.Armed {
		return p.proxy.Arm(fabrictest.Trigger{Subject: p.location.publish + key, Answer: true, Action: fabrictest.HoldAlone})
	}
	put := func(key string) <-chan error {
		done := make(chan error, 1)
		go func() {
			_, err := p.write(testContext(t), write{bucket: p.location, key: key, opID: nuid.Next()})
			done <- err
		}()
		return done
	}
	wait := func(done <-chan error) {
		t.Helper()
		select {
		case err := <-done:
			if err != nil {
				t.Fatal(err)
			}
		case <-time.After(readyIn):
			t.Fatal("the answer was not read")
		}
	}
	first, second := hold("a"), hold("b")
	a := put("a")
	first.Wait(t)
	bb := put("b")
	second.Wait(t)
	wait(put("c"))
	first.Release()
	wait(a)
	wait(put("d"))
	second.Release()
	wait(bb)
	wait(put("e"))
}
