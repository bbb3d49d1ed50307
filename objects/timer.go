package objects

import (
	"container/heap"
	"strconv"
	"sync"
	"time"

	"natsfabric/outcome"
)

const (
	// MaxTimers is how many timers an object may have.
	MaxTimers = 1024
	// maxTimerName is the greatest length of a timer's name, in bytes.
	maxTimerName = 255
	// fireBatch is how many due timers are handed over in one go.
	fireBatch = 256
)

// timerKind is what happens when a timer is due.
type timerKind uint8

const (
	timerUser  timerKind = iota // a turn of the object
	timerIdle                   // look whether the object is idle
	timerClose                  // try the close again
)

// timer is one timer of an object, guarded by clock.mu.
//
//	armed -> due:  it is mail in the object's mailbox
//	armed -> over: cancelled, replaced, or its object is gone
//	due -> over:   its turn has begun, or as above
//	due -> armed:  its object could not be made ready; tried again
//	armed, due -> away: its object moves to another node, and it goes along
//	away -> armed: the move was aborted
type timer struct {
	o      *object
	kind   timerKind
	state  timerState
	name   string
	data   []byte
	reason CloseReason
	due    instant
	index  int // in the heap
}

type timerState uint8

const (
	timerArmed timerState = iota
	timerDue
	timerOver
	timerAway
)

// timers are those of one object: the user's by name, and the runtime's own.
type timers struct {
	named map[string]*timer
	own   []*timer
	away  bool // the object moves to another node, and they go along
}

// clock runs the timers of all objects: one goroutine, which sleeps until the earliest is due. It never runs a turn: a
// timer that is due becomes mail, which waits like any other while the lease has lapsed.
type clock struct {
	rt *runtime

	mu      sync.Mutex
	heap    timerHeap
	wake    chan struct{}
	started bool
	stopped bool
	done    chan struct{}
}

func newClock(rt *runtime) *clock {
	return &clock{rt: rt, wake: make(chan struct{}, 1), done: make(chan struct{})}
}

// setTimer is Self.SetTimer.
func (o *object) setTimer(name string, after time.Duration, data []byte) error {
	const op = "set timer"
	fail := func(kind outcome.Kind, detail string) error {
		return outcome.New(op, kind, outcome.NotAccepted, o.target(), detail)
	}
	switch {
	case name == "" || len(name) > maxTimerName:
		return fail(outcome.InvalidOperation, "the name must have 1 to 255 bytes, not "+strconv.Itoa(len(name)))
	case after < 0:
		return fail(outcome.InvalidOperation, "the time "+after.String()+" is negative")
	case len(data) > o.reg.MailboxBytes:
		return fail(outcome.CapacityExceeded, "the data is larger than the object's mailbox")
	case o.rt.sched.lapsed.Load():
		return fail(outcome.Unavailable, "the node's lease has lapsed")
	}
	if err := o.rt.back.admit(); err != nil {
		return err
	}
	if o.is() == objectArriving {
		return fail(outcome.InvalidOperation, "the object's move to this node is not certain yet")
	}
	t := &timer{o: o, name: name, data: data, due: tick().add(after)}
	c := o.rt.clock
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped || o.isClosed() {
		return fail(outcome.Unavailable, "the object is closed, or its node stops")
	}
	set := o.timersLocked()
	if set.away {
		return fail(outcome.Unavailable, "the object moves to another node, and its timers with it")
	}
	if old := set.named[name]; old != nil {
		c.overLocked(old)
	} else if len(set.named) >= MaxTimers {
		return fail(outcome.CapacityExceeded, "the object has "+strconv.Itoa(MaxTimers)+" timers")
	}
	if set.named == nil {
		set.named = make(map[string]*timer)
	}
	set.named[name] = t
	c.armLocked(t)
	return nil
}

// cancelTimer is Self.CancelTimer.
func (o *object) cancelTimer(name string) bool {
	c := o.rt.clock
	c.mu.Lock()
	defer c.mu.Unlock()
	if o.timers == nil || o.timers.away || o.timers.named[name] == nil {
		return false
	}
	c.overLocked(o.timers.named[name])
	delete(o.timers.named, name)
	c.tidyLocked(o)
	return true
}

// timerCount is how many timers the object has.
func (o *object) timerCount() int {
	o.rt.clock.mu.Lock()
	defer o.rt.clock.mu.Unlock()
	if o.timers == nil {
		return 0
	}
	return len(o.timers.named)
}

func (o *object) timersLocked() *timers {
	if o.timers == nil {
		o.timers = &timers{}
	}
	return o.timers
}

// watchIdle looks from time to time whether the object has been idle for long enough.
func (c *clock) watchIdle(o *object) {
	c.addOwn(&timer{o: o, kind: timerIdle, due: tick().add(o.reg.IdleAfter)})
}

// closeAgain asks for the object's end once more after a while.
func (c *clock) closeAgain(o *object, reason CloseReason) {
	c.addOwn(&timer{o: o, kind: timerClose, reason: reason, due: tick().add(retryAfter)})
}

func (c *clock) addOwn(t *timer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped || t.o.isClosed() {
		return
	}
	set := t.o.timersLocked()
	if set.away { // it is set anew when the object stays
		return
	}
	set.own = append(set.own, t)
	c.armLocked(t)
}

// begin is called when the turn of a due timer begins. It returns false when the timer was cancelled meanwhile.
func (c *clock) begin(t *timer) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t.state != timerDue {
		return false
	}
	t.state = timerOver
	delete(t.o.timers.named, t.name)
	c.tidyLocked(t.o)
	return true
}

// again arms a due timer whose turn could not begin.
func (c *clock) again(t *timer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t.state == timerDue && !c.stopped {
		t.due = tick().add(retryAfter)
		c.armLocked(t)
	}
}

// forget ends the timers of an object that is gone.
func (c *clock) forget(o *object) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if o.timers == nil {
		return
	}
	for _, t := range o.timers.named {
		c.overLocked(t)
	}
	for _, t := range o.timers.own {
		c.overLocked(t)
	}
	o.timers = nil
}

func (c *clock) overLocked(t *timer) {
	if t.state == timerArmed {
		heap.Remove(&c.heap, t.index)
	}
	t.state = timerOver
}

// tidyLocked frees what an object without timers does not need.
func (c *clock) tidyLocked(o *object) {
	if len(o.timers.named) == 0 && len(o.timers.own) == 0 && !o.timers.away {
		o.timers = nil
	}
}

func (c *clock) armLocked(t *timer) {
	t.state = timerArmed
	heap.Push(&c.heap, t)
	if !c.started {
		c.started = true
		go c.run()
	} else if t.index == 0 {
		c.nudge()
	}
}

func (c *clock) nudge() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// run hands over what is due.
func (c *clock) run() {
	defer close(c.done)
	sleep := time.NewTimer(0)
	defer sleep.Stop()
	batch := make([]*timer, 0, fireBatch)
	for {
		c.mu.Lock()
		now := tick()
		for len(batch) < cap(batch) && len(c.heap) > 0 && c.heap[0].due <= now {
			t := heap.Pop(&c.heap).(*timer)
			t.state = timerDue
			batch = append(batch, t)
		}
		wait := time.Hour
		if len(c.heap) > 0 {
			wait = max(0, c.heap[0].due.sub(now))
		}
		stopped := c.stopped
		c.mu.Unlock()
		if stopped {
			return
		}
		for _, t := range batch {
			c.fire(t)
		}
		clear(batch)
		batch = batch[:0]
		sleep.Reset(wait)
		select {
		case <-sleep.C:
		case <-c.wake:
		}
	}
}

// fire hands one due timer to its object.
func (c *clock) fire(t *timer) {
	switch t.kind {
	case timerUser:
		e := newOwn(mailTimer)
		e.own().timer, e.data = t, t.data
		if t.o.offer(e) != whyNot {
			e.release()
		}
		return
	case timerIdle:
		now := tick()
		next := now.add(t.o.reg.IdleAfter)
		if since, ok := t.o.idleSince(); ok {
			if end := since.add(t.o.reg.IdleAfter); end > now {
				next = end
			} else {
				t.o.offerOwn(mailIdle)
			}
		}
		c.mu.Lock()
		if t.state == timerDue {
			t.due = next
			c.armLocked(t)
		}
		c.mu.Unlock()
	case timerClose:
		c.mu.Lock()
		over := t.state == timerOver
		if !over {
			t.state = timerOver
			set := t.o.timers
			set.own = remove(set.own, t)
			c.tidyLocked(t.o)
		}
		c.mu.Unlock()
		if !over {
			t.o.askClose(t.reason)
		}
	}
}

func remove(list []*timer, t *timer) []*timer {
	for i := range list {
		if list[i] == t {
			return append(list[:i], list[i+1:]...)
		}
	}
	return list
}

// count is how many timers are set, the runtime's own included.
func (c *clock) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.heap)
}

// stop ends the clock and waits for its goroutine.
func (c *clock) stop() {
	c.mu.Lock()
	c.stopped = true
	c.nudge()
	started := c.started
	c.mu.Unlock()
	if started {
		<-c.done
	}
}

// timerHeap has the earliest timer first.
type timerHeap []*timer

func (h timerHeap) Len() int           { return len(h) }
func (h timerHeap) Less(i, j int) bool { return h[i].due < h[j].due }
func (h timerHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

// Push and Pop are for container/heap.
func (h *timerHeap) Push(x any) {
	t := x.(*timer)
	t.index = len(*h)
	*h = append(*h, t)
}

func (h *timerHeap) Pop() any {
	last := len(*h) - 1
	t := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return t
}
