package objects

import "time"

var began = time.Now()

// instant is a moment of this process's running time; 0 is none. Deadlines of calls within the process and the lengths
// of turns are measured on it. It reads one clock where monotime.Now reads two, and stands still while the machine is
// suspended; what must count that, the lease and the callers elsewhere, is asked at every turn that needs it.
type instant int64

func tick() instant { return instant(time.Since(began)) + 1 }

func (t instant) add(d time.Duration) instant { return t + instant(d) }

func (t instant) sub(u instant) time.Duration { return time.Duration(t - u) }
