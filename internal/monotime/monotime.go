package monotime

import "time"

var start = time.Now()

// Time is an instant on this process's monotonic clock. Only differences mean anything.
type Time time.Duration

// Now returns the present instant. It costs about as much as time.Now and allocates nothing, except at the first call
// and after the wall clock was set or the machine slept.
func Now() Time { return Time(now()) }

// Since returns the time elapsed since t.
func Since(t Time) time.Duration { return time.Duration(Now() - t) }

// Add returns t+d.
func (t Time) Add(d time.Duration) Time { return t + Time(d) }

// Sub returns t-u.
func (t Time) Sub(u Time) time.Duration { return time.Duration(t - u) }
