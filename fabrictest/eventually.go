package fabrictest

import (
	"testing"
	"time"
)

// How often Eventually looks: at first, and in the end.
const (
	firstPoll = 5 * time.Millisecond
	lastPoll  = 50 * time.Millisecond
)

// Eventually waits until cond returns true, looking every few milliseconds, and less often the longer it takes.
// After within it fails the test, saying that what did not happen. cond runs
// on the calling goroutine and should not block.
//
// It is for conditions that nobody signals. Where there is a channel to wait
// on, wait on the channel.
func Eventually(t testing.TB, within time.Duration, what string, cond func() bool) {
	t.Helper()
	deadline := time.Now().Add(within)
	pause := firstPoll
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for {
		if cond() {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", within, what)
			return
		}
		<-timer.C
		pause = min(pause+pause/8, lastPoll)
		timer.Reset(pause)
	}
}
