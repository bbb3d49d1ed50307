package channels

import "time"

const (
	// detourFirst is how long a channel goes around its queue group after a request vanished in it. Each time that it
	// happens again within detourMemory of the last one, the time doubles, up to detourLast.
	detourFirst  = 30 * time.Second
	detourLast   = 8 * time.Minute
	detourMemory = 10 * time.Minute
	// maxDetours bounds the channels that are remembered.
	maxDetours = 1024
)

// detour is a channel's way around its queue group.
//
// A queue group may hold subscriptions that nobody is behind: those of a server that is frozen or cut off from the
// cluster stay known to the other servers for minutes with the pings at their defaults, while the members they belong
// to have long moved to another server and answer every probe. No peer is to be suspected then; what is bad is the
// group. So for some time after a request through it ended without any sign of life, callers pick among the ready
// members themselves, as they do while a member is suspect. That is the same selection by another way.
type detour struct {
	until time.Time
	span  time.Duration
}

// active reports whether the way around is taken at now.
func (d *detour) active(now time.Time) bool { return d != nil && now.Before(d.until) }

// next returns the detour that follows d (nil: none before) when a request vanished at now.
func (d *detour) next(now time.Time) *detour {
	span := detourFirst
	if d != nil && now.Sub(d.until) <= detourMemory {
		span = min(2*d.span, detourLast)
	}
	return &detour{until: now.Add(span), span: span}
}

// detourAround makes the given channels go around their queue groups.
func (ls *links) detourAround(channels map[string]bool) {
	now := time.Now()
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for name := range channels {
		d := ls.detours[name]
		if d.active(now) || d == nil && len(ls.detours) >= maxDetours {
			continue
		}
		d = d.next(now)
		if ls.detours == nil {
			ls.detours = make(map[string]*detour)
		}
		ls.detours[name] = d
		ls.r.counters.detours.Add(1)
		ls.turnBackAt(d.until)
	}
	if len(channels) > 0 {
		ls.rerouteLocked()
	}
}

// turnBackAt notes when the routes have to be computed anew because a detour ends.
func (ls *links) turnBackAt(at time.Time) {
	if ls.turnBack.IsZero() || at.Before(ls.turnBack) {
		ls.turnBack = at
	}
}

// endDetours lets the channels whose time is up go through their queue groups again.
func (ls *links) endDetours() {
	now := time.Now()
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if ls.turnBack.IsZero() || now.Before(ls.turnBack) {
		return
	}
	ls.turnBack = time.Time{}
	for name, d := range ls.detours {
		switch {
		case d.active(now):
			ls.turnBackAt(d.until)
		case now.Sub(d.until) > detourMemory:
			delete(ls.detours, name)
		default:
			ls.turnBackAt(d.until.Add(detourMemory + time.Second)) // to be forgotten then
		}
	}
	ls.rerouteLocked()
}
