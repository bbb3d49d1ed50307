package channels

import (
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// tokenSlotBits is the part of a token that names the waiter's slot; the rest counts the slot's uses, so that no
// token comes twice in the life of a router.
const tokenSlotBits = 20

// ending is why a waiter ended without a message.
type ending uint8

const (
	endAnswered     ending = iota // a message came
	endDisconnected               // the connection of its epoch was lost
	endClosed                     // the router closed
)

// answer is what a waiter gets, exactly once.
type answer struct {
	msg *nats.Msg
	end ending
}

// waiter is one attempt that waits for its answer. Waiters are pooled; all fields but done and timer are guarded by
// the table's lock.
//
// Invariant: busy is true from acquire until exactly one of deliver, sweep and abandon ends the wait (FO-2.5). Who
// turns it false and is not the waiting goroutine puts one answer into done.
type waiter struct {
	slot    uint64
	use     uint64
	busy    bool
	noticed bool
	// noticeEnds is true for a Send: the acceptance notice is its answer.
	noticeEnds bool
	// channel or link says whom the attempt was sent to, for the probes; both are empty for a probe itself.
	channel string
	link    *link
	// since is the tick at which the attempt began, or was last followed by a probe.
	since uint32

	done  chan answer
	timer *time.Timer
	reply []byte
}

func (w *waiter) token() uint64 { return w.use<<tokenSlotBits | w.slot }

// waiters is the table of the attempts that wait for an answer, bounded in count.
type waiters struct {
	max int

	mu     sync.Mutex
	epoch  *epoch // nil while disconnected
	ending bool   // the epoch takes no new attempts, while what has arrived for it is still handed over
	closed bool
	all    []*waiter
	free   []*waiter
}

type refusal uint8

const (
	refusedNot    refusal = iota
	refusedFull           // too many operations in flight
	refusedDown           // not connected
	refusedClosed         // the router closed
)

// acquire registers a waiter in the present epoch.
func (t *waiters) acquire(tick uint32, channel string, l *link, noticeEnds bool) (*waiter, *epoch, uint64, refusal) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.closed:
		return nil, nil, 0, refusedClosed
	case t.epoch == nil || t.ending:
		return nil, nil, 0, refusedDown
	}
	var w *waiter
	if n := len(t.free); n > 0 {
		w, t.free = t.free[n-1], t.free[:n-1]
	} else {
		if len(t.all) >= t.max {
			return nil, nil, 0, refusedFull
		}
		w = &waiter{slot: uint64(len(t.all)), done: make(chan answer, 1)}
		t.all = append(t.all, w)
	}
	w.use++
	w.busy, w.noticed, w.noticeEnds = true, false, noticeEnds
	w.channel, w.link, w.since = channel, l, tick
	return w, t.epoch, w.token(), refusedNot
}

// delivery is what became of an arrived message.
type delivery uint8

const (
	deliveredAnswer     delivery = iota // it ended the wait
	deliveredNotice                     // an acceptance notice; the wait goes on
	deliveredLate                       // a reply to nobody: the operation ended before
	deliveredLateNotice                 // a notice to nobody
	deliveredStale                      // of an earlier epoch
)

// deliver gives a message that arrived on the prefix of epoch e to its waiter.
func (t *waiters) deliver(e *epoch, token uint64, notice bool, m *nats.Msg) delivery {
	slot := token & (1<<tokenSlotBits - 1)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.epoch != e {
		return deliveredStale
	}
	var w *waiter
	if slot < uint64(len(t.all)) {
		w = t.all[slot]
	}
	if w == nil || !w.busy || w.token() != token {
		if notice {
			return deliveredLateNotice
		}
		return deliveredLate
	}
	if notice {
		w.noticed = true
		if !w.noticeEnds {
			return deliveredNotice
		}
	}
	w.busy = false
	w.done <- answer{msg: m}
	return deliveredAnswer
}

// abandon ends the wait from the waiting side. When it returns false the answer was fixed before, and is in done.
func (t *waiters) abandon(w *waiter) (ok, noticed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	ok, noticed = w.busy, w.noticed
	w.busy = false
	return ok, noticed
}

// release gives a waiter back whose wait has ended and whose answer, if any, was taken out of done.
func (t *waiters) release(w *waiter) (noticed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	noticed = w.noticed
	w.channel, w.link = "", nil
	t.free = append(t.free, w)
	return noticed
}

// sweepLocked ends every wait. The caller holds the lock.
func (t *waiters) sweepLocked(why ending) (ended int) {
	for _, w := range t.all {
		if w.busy {
			w.busy = false
			w.done <- answer{end: why}
			ended++
		}
	}
	return ended
}

// overdue calls f for every attempt that has waited for at least age ticks since it began or was last reported.
func (t *waiters) overdue(tick, age uint32, f func(channel string, l *link)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.free) == len(t.all) {
		return
	}
	for _, w := range t.all {
		if w.busy && (w.channel != "" || w.link != nil) && tick-w.since >= age {
			w.since = tick
			f(w.channel, w.link)
		}
	}
}

// present reports whether e is the epoch now.
func (t *waiters) present(e *epoch) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.epoch == e
}

func (t *waiters) inFlight() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.all) - len(t.free)
}
