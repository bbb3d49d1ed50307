package session

import (
	"slices"
	"time"

	"natsfabric/objects"
	"natsfabric/session/internal/frame"
)

// inflow puts the pushes of one binding in order, on their way to the client. It is guarded by session.mu, which also keeps
// the order of what it hands on.
type inflow struct {
	next  uint64 // the number that comes next
	owner uint64 // the greatest owner generation that was handed on
	// wait holds what came too early, sorted by number; bytes is its size.
	wait  []push
	bytes int
	// gap goes off when what is missing has been waited for long enough; nil while nothing is missing.
	gap  *time.Timer
	gaps uint64 // the number of the gap that is being watched
	// end is the binding's end, which waits for the pushes before it.
	end *notice
}

// push is one push of an Actor's.
type push struct {
	seq, owner uint64
	data       []byte
}

func (f *inflow) clear() {
	f.wait, f.bytes, f.end = nil, 0, nil
	f.calm()
}

func (f *inflow) calm() {
	if f.gap != nil {
		f.gap.Stop()
		f.gap = nil
	}
}

// The verdicts about pushes that came.
type verdict uint8

const (
	pushTaken verdict = iota
	pushFull          // too much waits for what is missing: it may be sent again
	pushOver          // the binding is over
)

// pushed takes pushes that came from the Actor's node. It does not block.
func (t *tie) pushed(items []push) verdict {
	c, f := t.c, &t.in
	c.mu.Lock()
	switch {
	case t.leaving:
		c.mu.Unlock()
		return pushTaken // the client does not want them any more
	case t.state == tieOver:
		c.mu.Unlock()
		return pushOver
	}
	for _, p := range items {
		switch {
		case p.seq < f.next || p.owner < f.owner:
			c.s.stats.pushesStale.Add(1) // it came twice, or after its time
			continue
		case len(f.wait) >= c.s.cfg.Outbound || f.bytes+len(p.data) > c.s.cfg.OutboundBytes && len(f.wait) > 0:
			if p.seq != f.next || t.state != tieOpen {
				ok := t.flowLocked()
				c.mu.Unlock()
				c.endUnless(ok)
				return pushFull
			}
		}
		i, found := slices.BinarySearchFunc(f.wait, p.seq, func(w push, seq uint64) int {
			if w.seq < seq {
				return -1
			}
			return int(min(w.seq-seq, 1))
		})
		if found {
			c.s.stats.pushesStale.Add(1)
			continue
		}
		f.wait = slices.Insert(f.wait, i, p)
		f.bytes += len(p.data)
		if p.seq == f.next && t.state == tieOpen && !t.flowLocked() {
			c.mu.Unlock()
			c.endUnless(false)
			return pushTaken
		}
	}
	ok := t.flowLocked()
	c.mu.Unlock()
	c.endUnless(ok)
	t.maybeEnd()
	return pushTaken
}

// endUnless closes the session of a client that is too slow.
func (c *session) endUnless(ok bool) {
	if !ok {
		c.end(endSlow)
	}
}

// openLocked lets the pushes through that came before the bind's answer. It returns false when the client has no room.
func (t *tie) openLocked() bool {
	t.state = tieOpen
	return t.flowLocked()
}

// flowLocked hands on what is in order, and watches the gap before the rest. It returns false when the client has no room.
func (t *tie) flowLocked() bool {
	f := &t.in
	if t.state != tieOpen {
		return true
	}
	n := 0
	for n < len(f.wait) && f.wait[n].seq == f.next {
		p := f.wait[n]
		f.next++
		f.owner = p.owner
		f.bytes -= len(p.data)
		n++
		t.c.s.stats.pushes.Add(1)
		if !t.c.out.put(frame.Make(&frame.Header{Type: frame.Push, Token: t.token, Seq: p.seq, Owner: p.owner}, p.data), true) {
			return false
		}
	}
	f.wait = slices.Delete(f.wait, 0, n)
	if len(f.wait) == 0 {
		f.wait = nil
	}
	switch missing := len(f.wait) > 0 || f.end != nil && f.end.Last >= f.next; {
	case !missing, n > 0:
		f.calm()
		if missing {
			t.watchGapLocked()
		}
	case f.gap == nil:
		t.watchGapLocked()
	}
	return true
}

func (t *tie) watchGapLocked() {
	t.in.gaps++
	gap := t.in.gaps
	t.in.gap = time.AfterFunc(t.c.s.cfg.GapWait, func() { t.skip(gap) })
}

// skip gives up what is missing: the client sees the gap in the numbers.
func (t *tie) skip(gap uint64) {
	c, f := t.c, &t.in
	c.mu.Lock()
	if f.gap == nil || f.gaps != gap || t.state != tieOpen {
		c.mu.Unlock()
		return
	}
	f.gap = nil
	c.s.stats.gaps.Add(1)
	switch {
	case len(f.wait) > 0:
		f.next = f.wait[0].seq
	case f.end != nil:
		f.next = f.end.Last + 1
	}
	ok := t.flowLocked()
	c.mu.Unlock()
	c.endUnless(ok)
	t.maybeEnd()
}

// maybeEnd ends the binding once everything before its end was handed on. Whoever has handed on something calls it.
func (t *tie) maybeEnd() {
	c := t.c
	c.mu.Lock()
	end := t.in.end
	due := end != nil && t.state == tieOpen && end.Last < t.in.next
	c.mu.Unlock()
	if due {
		t.finish(end.Why, end.Text)
	}
}

// ends takes the Actor's word that the binding is over: after the pushes before that.
func (t *tie) ends(n *notice) {
	c := t.c
	c.mu.Lock()
	if t.state == tieOver {
		c.mu.Unlock()
		return
	}
	t.in.end = n
	ok := t.flowLocked()
	c.mu.Unlock()
	c.endUnless(ok)
	t.maybeEnd()
}

// told takes a notice of the Actor's node and returns its status (FO-6a).
func (t *tie) told(n *notice) status {
	if n.Kind == noticeEnded {
		t.ends(n)
		return statusApplied
	}
	if t.follow(n.Place) {
		return statusApplied
	}
	switch at := t.at(); {
	case n.Place.Generation != t.ref.Generation:
		return statusStale
	case n.Place == at:
		return statusAlready
	case objects.Place.Newer(at, n.Place):
		return statusStale
	}
	return statusAlready
}
