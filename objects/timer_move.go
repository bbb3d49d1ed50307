package objects

import (
	"container/heap"
	"slices"
	"strings"
	"time"
)

// capture takes an object's timers out of the clock, for a move, and returns what goes along: those that are armed, and those
// that are due and not in due. It says true in due of those whose mail may still run. Until restore the object starts no
// timer.
func (c *clock) capture(o *object, due map[*timer]bool) []cargoTimer {
	c.mu.Lock()
	defer c.mu.Unlock()
	set := o.timersLocked()
	set.away = true
	now := tick()
	var list []cargoTimer
	for _, t := range set.named {
		if _, work := due[t]; work && t.state == timerDue {
			due[t] = true
			continue
		}
		if t.state == timerArmed {
			heap.Remove(&c.heap, t.index)
		}
		t.state = timerAway
		list = append(list, cargoTimer{name: t.name, data: t.data, left: int64(max(0, t.due.sub(now)))})
	}
	for _, t := range set.own {
		c.overLocked(t)
	}
	set.own = nil
	slices.SortFunc(list, func(a, b cargoTimer) int { return strings.Compare(a.name, b.name) })
	return list
}

// closes reports whether the object's end was asked for, has failed, and is due again: it does not leave before.
func (c *clock) closes(o *object) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return o.timers != nil && slices.ContainsFunc(o.timers.own, func(t *timer) bool { return t.kind == timerClose })
}

// restore arms again what capture took out.
func (c *clock) restore(o *object) {
	c.mu.Lock()
	if o.timers == nil || !o.timers.away { // the object has ended
		c.mu.Unlock()
		return
	}
	o.timers.away = false
	for _, t := range o.timers.named {
		if t.state == timerAway && !c.stopped {
			c.armLocked(t)
		}
	}
	c.tidyLocked(o)
	c.mu.Unlock()
	if o.reg.IdleAfter > 0 {
		c.watchIdle(o)
	}
}

// bring arms timers that came with an object, and enters the due ones whose mail waits for it. since is for how long they
// have been under way.
func (c *clock) bring(o *object, timers []cargoTimer, since time.Duration, due []*timer) {
	if len(timers) == 0 && len(due) == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped {
		return
	}
	set := o.timersLocked()
	if set.named == nil {
		set.named = make(map[string]*timer, len(timers)+len(due))
	}
	for _, t := range due {
		set.named[t.name] = t
	}
	now := tick()
	for _, t := range timers {
		at := &timer{o: o, name: t.name, data: t.data, due: now.add(max(0, time.Duration(t.left)-since))}
		set.named[t.name] = at
		c.armLocked(at)
	}
}
