package fabrictest

import (
	"testing"
	"time"
)

// pollInterval is how often Eventually looks.
const pollInterval = 5 * time.Millisecond

// Eventually waits until cond returns true, looking every few milliseconds.
// After within it fails the test, saying that what did not happen. cond runs
// on the calling goroutine and should not block.
//
// It is for conditions that nobody signals. Where there is a channel to wait
// on, wait on the channel.
func Eventually(t testing.TB, within time.Duration, what string, cond func() bool) {
	t.Helper()
	deadline := time.Now().Add(within)
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		if cond() {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", within, what)
			return
		}
		<-tick.C
	}
}
