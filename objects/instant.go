package objects

import (
	"sync/atomic"
	"time"
)

var began = time.Now()

// instant is a moment of this process's running time; 0 is none. Deadlines of calls within the process and the lengths
// of turns are measured on it. It reads one clock where monotime.Now reads two, and stands still while the machine is
// suspended; what must count that, the lease and the callers elsewhere, is asked at every turn that needs it.
type instant int64

// The clock as it was read last, and the processor's counter from just before that reading or an earlier one. Each lastTick
// is written before its lastCycles, and neither is ever too new: so whoever finds the counter near lastCycles finds a lastTick
// that is as near to now.
var (
	lastTick   atomic.Int64
	lastCycles atomic.Uint64
)

// freshFor is how far the processor's counter goes on before the clock is read again: 10 to 30 microseconds.
const freshFor = 1 << 15

// tick is now, less some microseconds. The clock costs a good part of what a turn does, the processor's counter a fifth of
// it. A freeze of the process stops neither, so no instant is from before one.
func tick() instant {
	if !steadyCycles {
		return readTick()
	}
	c := cycles()
	if c-lastCycles.Load() < freshFor {
		return instant(lastTick.Load())
	}
	now := readTick()
	for {
		last := lastTick.Load()
		if int64(now) <= last {
			now = instant(last)
			break
		}
		if lastTick.CompareAndSwap(last, int64(now)) {
			break
		}
	}
	lastCycles.Store(c)
	return now
}

func readTick() instant { return instant(time.Since(began)) + 1 }

func (t instant) add(d time.Duration) instant { return t + instant(d) }

func (t instant) sub(u instant) time.Duration { return time.Duration(t - u) }
