package session

import (
	"bytes"
	"sync"

	"natsfabric/session/internal/frame"
)

// transport carries frames to one client.
type transport interface {
	kind() Transport
	// most is the greatest frame that it carries; 0 means any.
	most() int
	// send carries one frame, which it does not keep. It may block, for a bounded time. It is called by one goroutine at a
	// time.
	send(data []byte) error
	// close ends the connection, after the last frame. It may block, for a bounded time.
	close(why *ending)
	// cut ends the connection at once. It does not block.
	cut()
}

// outbound is what waits for one client. A goroutine carries it while there is something, and none when there is not.
type outbound struct {
	to    transport
	start func(func()) bool
	// failed is called, once, when a frame could not be carried.
	failed func(error)
	most   int // of frames and of bytes that wait
	bytes  int
	slow   SlowPolicy
	stats  *counters

	mu     sync.Mutex
	queue  []outFrame
	held   int // bytes that wait
	pushes int // frames in queue that may be dropped
	busy   bool
	last   *ending // no frame is taken after it
	broken bool
}

type outFrame struct {
	data []byte
	push bool
}

// carryNow is put by a goroutine that may block: it carries the frame itself, and what comes meanwhile, unless another
// goroutine does. The buffer is given back.
func (o *outbound) carryNow(b *frame.Buffer) bool {
	defer b.GiveBack()
	o.mu.Lock()
	switch {
	case o.last != nil || o.broken:
		o.mu.Unlock()
		return true // nobody is there any more
	case o.busy:
		o.mu.Unlock()
		return o.put(bytes.Clone(b.Frame()), false)
	}
	o.busy = true // so nothing waits
	o.mu.Unlock()
	o.send(b.Frame())
	o.carry()
	return true
}

// put takes a frame. It returns false when there is no room for it, and the session is to be closed.
func (o *outbound) put(data []byte, push bool) bool {
	o.mu.Lock()
	if o.last != nil || o.broken {
		o.mu.Unlock()
		return true // nobody is there any more
	}
	if !o.roomLocked(len(data)) {
		switch {
		case o.slow == CloseSlow:
			o.mu.Unlock()
			return false
		case push && o.slow == DropNewest, !o.dropLocked(len(data)) && push:
			o.stats.pushesDropped.Add(1)
			o.mu.Unlock()
			return true
		case !o.roomLocked(len(data)):
			o.mu.Unlock()
			return false
		}
	}
	o.queue = append(o.queue, outFrame{data, push})
	o.held += len(data)
	if push {
		o.pushes++
	}
	o.wakeLocked()
	return true
}

func (o *outbound) roomLocked(n int) bool {
	return len(o.queue) == 0 || len(o.queue) < o.most && o.held+n <= o.bytes
}

// dropLocked drops pushes, the oldest first, until there is room; false when that is not enough.
func (o *outbound) dropLocked(n int) bool {
	if o.pushes == 0 {
		return false
	}
	kept := o.queue[:0]
	enough := false
	for i, f := range o.queue {
		if enough || !f.push {
			kept = append(kept, f)
			continue
		}
		o.held -= len(f.data)
		o.pushes--
		o.stats.pushesDropped.Add(1)
		rest := len(kept) + len(o.queue) - i - 1
		enough = rest < o.most && o.held+n <= o.bytes
	}
	clear(o.queue[len(kept):])
	o.queue = kept
	return enough || len(kept) == 0
}

// wakeLocked makes sure that somebody carries, and unlocks.
func (o *outbound) wakeLocked() {
	wake := !o.busy
	o.busy = true
	o.mu.Unlock()
	if wake && !o.start(o.carry) {
		o.to.cut()
	}
}

// end takes the last frame: what waits goes out before it, unless drop says otherwise, and then the connection ends.
func (o *outbound) end(last *ending) {
	o.mu.Lock()
	if o.last != nil {
		o.mu.Unlock()
		return
	}
	o.last = last
	if last.drop {
		o.queue, o.held, o.pushes = nil, 0, 0
	}
	o.wakeLocked()
}

// carry sends what waits.
func (o *outbound) carry() {
	for {
		o.mu.Lock()
		if len(o.queue) == 0 || o.broken {
			last := o.last
			if last == nil {
				o.queue = nil
				o.busy = false
			}
			broken := o.broken
			o.mu.Unlock()
			switch {
			case last == nil:
			case broken:
				o.to.cut()
			default:
				if data := last.frame(); data != nil {
					_ = o.to.send(data) // the connection ends in either case
				}
				o.to.close(last)
			}
			return
		}
		f := o.queue[0]
		o.queue[0] = outFrame{}
		o.queue = o.queue[1:]
		o.held -= len(f.data)
		if f.push {
			o.pushes--
		}
		o.mu.Unlock()
		o.send(f.data)
	}
}

// send sends one frame; only who has made the outbound busy may.
func (o *outbound) send(data []byte) {
	if err := o.to.send(data); err != nil {
		o.mu.Lock()
		o.broken = true
		o.mu.Unlock()
		o.failed(err)
	}
}

// waiting returns what waits.
func (o *outbound) waiting() (frames, bytes int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.queue), o.held
}
