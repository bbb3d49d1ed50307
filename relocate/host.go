package relocate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"natsfabric/kvlocation"
	"natsfabric/objects"
	"natsfabric/outcome"
)

// host is the move of all objects of this node, one at a time.
type host struct {
	mu       sync.Mutex
	progress Progress
}

// hosting is one Host under way.
type hosting struct {
	s    *Service
	mode Mode

	mu    sync.Mutex
	res   Result
	stays map[kvlocation.ObjectKey]stay // what is not tried again
	spots map[objects.SpotRef]spotMove  // what became of the Spots whose members follow
	halt  error                         // why nothing more is begun: the store is silent, or the lease is gone
}

// stay is a unit that is not tried again.
type stay struct {
	generation uint64
	reason     Reason // empty: it was closed meanwhile
}

// spotMove is what became of a PerActor Spot.
type spotMove struct {
	rid  string // where it went
	kept bool
}

// Host moves every unit of this node, Config.Concurrency at a time, until none is left that can: Spots before the Actors that have joined
// them, which follow to the same node; and what is being made, or arrives within 2 s, when it begins: what is on its way here for longer, and was not
// given up by its source for good, is refused and stays there. There is no leader, and nothing is tried a
// second time: what cannot move is kept, with the reason. The node goes on serving what it has. Result.Outcome is Relocated when no object is left but the Entry Spot.
//
// ctx bounds it: what has not begun then is kept, with DeadlineExceeded, or ShutdownRequested when the cause is ErrShutdown. A second Host
// while one runs is Blocked with OperationInProgress. The error says that the mode is wrong.
func (s *Service) Host(ctx context.Context, mode Mode) (Result, error) {
	if err := mode.Validate(s.cfg.AppVersion); err != nil {
		return Result{}, outcome.Wrap("relocate", outcome.InvalidOperation, outcome.NotAccepted, "node "+s.cfg.RID, "", err)
	}
	if !s.beginHost(mode) {
		return blocked(OperationInProgress, ""), nil
	}
	h := &hosting{
		s: s, mode: mode, stays: map[kvlocation.ObjectKey]stay{}, spots: map[objects.SpotRef]spotMove{},
	}
	defer s.endHost()
	if err := s.cfg.Lease.Admit(); err != nil {
		return blocked(RuntimeNotReady, err.Error()), nil
	}
	begun := time.Now()
	for ctx.Err() == nil { // what was made meanwhile by callers with an old list is found in the next round
		unsettled := s.cfg.Objects.Unsettled() > 0 // asked before: what has come meanwhile is in the list
		if items := h.todo(); len(items) > 0 {
			h.round(ctx, items)
		} else if unsettled && !h.halted() {
			if time.Since(begun) > arrivalPatience {
				s.refuseArrivals()
			}
			wait(ctx, againPause)
		} else {
			break
		}
	}
	return h.end(ctx), nil
}

// arrivalPatience is how long a Host waits for units on their way here that their sources have not given up for good: longer than Fallback, so that what
// was given up without its marker arriving is here by then.
const arrivalPatience = 2 * time.Second

// refuseArrivals gives up the units on their way here. One whose source waits for a long turn would otherwise hold this node's Host up for its
// source's time, and two hosts at once would wait for each other's turns. What its source has accepted comes nevertheless.
func (s *Service) refuseArrivals() {
	s.arrivals.each(func(a *arrival) {
		a.fail(errLeaving)
		a.post(event{kind: evGiveUp})
	})
}

// halted reports whether nothing more is begun.
func (h *hosting) halted() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.halt != nil
}

func blocked(r Reason, detail string) Result {
	if detail == "" {
		detail = r.Text()
	}
	return Result{Outcome: Blocked, Reason: r, Detail: short(detail)}
}

// todo is what is here and was not kept, Spots first.
func (h *hosting) todo() []objects.MoveItem {
	h.mu.Lock()
	defer h.mu.Unlock()
	items := slices.DeleteFunc(h.s.cfg.Objects.Movable(), func(i objects.MoveItem) bool { return h.stays[i.Key].generation == i.Generation })
	slices.SortFunc(items, func(a, b objects.MoveItem) int {
		return cmp.Or(-cmp.Compare(a.Key.Kind, b.Key.Kind), cmp.Compare(a.Key.ID, b.Key.ID)) // "spot" before "actor"
	})
	return items
}

// round moves the Spots, then the Actors.
func (h *hosting) round(ctx context.Context, items []objects.MoveItem) {
	h.s.hostProgress(func(p *Progress) { p.Total = p.Moved + p.Kept + len(items) })
	for len(items) > 0 {
		n := 1
		for n < len(items) && items[n].Key.Kind == items[0].Key.Kind {
			n++
		}
		h.together(ctx, items[:n])
		items = items[n:]
	}
}

// together moves units at one time, as many as are allowed.
func (h *hosting) together(ctx context.Context, items []objects.MoveItem) {
	var (
		wg   sync.WaitGroup
		next = make(chan objects.MoveItem)
	)
	for range min(h.s.cfg.Concurrency, len(items)) {
		wg.Go(func() {
			for i := range next {
				h.one(ctx, i)
			}
		})
	}
	for _, i := range items {
		next <- i
	}
	close(next)
	wg.Wait()
}

// one moves one unit, or keeps it.
func (h *hosting) one(ctx context.Context, i objects.MoveItem) {
	w := wish{version: h.mode.wants(h.s.cfg.AppVersion), wave: h.s.cfg.Wave}
	if h.mode.Kind == RollingUpdate {
		w.wave = "" // the version tells the old nodes from the new ones
	}
	h.mu.Lock()
	why := h.halt
	h.mu.Unlock()
	if ctx.Err() != nil {
		why = context.Cause(ctx)
	}
	if why != nil {
		h.keep(i, why)
		return
	}
	if i.Policy == objects.MoveDisabled {
		h.keep(i, objects.ErrMoveDisabled)
		return
	}
	if i.Key.Kind == kvlocation.KindActor && i.Spot != (objects.SpotRef{}) {
		h.mu.Lock()
		spot, known := h.spots[i.Spot]
		h.mu.Unlock()
		if known && !spot.kept {
			w.rid = spot.rid
		}
	}
	m, err := h.s.move(ctx, i.Key, i.Generation, w)
	if i.Key.Kind == kvlocation.KindSpot {
		h.mu.Lock()
		h.spots[objects.SpotRef{ID: i.Key.ID, Generation: i.Generation}] = spotMove{m.To.RID, err != nil}
		h.mu.Unlock()
	}
	switch {
	case err == nil:
		h.mu.Lock()
		h.res.Moved++
		h.res.Objects += m.Objects
		h.mu.Unlock()
		h.s.hostProgress(func(p *Progress) { p.Moved++ })
	case outcome.KindOf(err) == outcome.NotFound && !errors.Is(err, errNoTarget): // closed meanwhile
		h.mu.Lock()
		h.stays[i.Key] = stay{generation: i.Generation}
		h.mu.Unlock()
	case errors.Is(err, objects.ErrMoving): // somebody else moves or closes it: the next round sees what came of it
		wait(ctx, againPause)
	default:
		h.keep(i, err)
	}
}

// againPause is the pause before a unit is looked at again that somebody else moves or closes.
const againPause = 100 * time.Millisecond

// keep notes a unit that stays.
func (h *hosting) keep(i objects.MoveItem, err error) {
	k := Kept{Key: i.Key, Type: i.Type, Generation: i.Generation, Reason: reasonFor(err), Detail: short(detailOf(err))}
	h.mu.Lock()
	h.stays[i.Key] = stay{i.Generation, k.Reason}
	if k.Reason == StoreUnavailable || k.Reason == RuntimeNotReady { // it would be the same for all that follow, one time after the other
		h.halt = err
	}
	if len(h.res.Kept) < MaxKept {
		h.res.Kept = append(h.res.Kept, k)
	}
	h.mu.Unlock()
	h.s.hostProgress(func(p *Progress) { p.Kept++ })
}

// end makes the result, of what is here then: a unit that was kept may have left since, by another's move.
func (h *hosting) end(ctx context.Context) Result {
	h.mu.Lock()
	defer h.mu.Unlock()
	var (
		r    = h.res
		here = map[kvlocation.ObjectKey]uint64{}
		why  = map[Reason]int{}
		left = h.s.cfg.Objects.Unsettled() // and what was not tried
	)
	for _, i := range h.s.cfg.Objects.Movable() {
		here[i.Key] = i.Generation
		if st := h.stays[i.Key]; st.generation == i.Generation && st.reason != "" {
			r.KeptCount++
			why[st.reason]++
		} else {
			left++
		}
	}
	r.Kept = slices.DeleteFunc(r.Kept, func(k Kept) bool { return here[k.Key] != k.Generation })
	slices.SortFunc(r.Kept, func(a, b Kept) int {
		return cmp.Or(cmp.Compare(a.Key.Kind, b.Key.Kind), cmp.Compare(a.Key.ID, b.Key.ID))
	})
	switch {
	case ctx.Err() != nil && left+r.KeptCount > 0:
		r.Outcome, r.Reason = Blocked, reasonFor(context.Cause(ctx))
		if r.Reason == RelocationFailed { // cancelled by its caller, without a cause
			r.Reason = DeadlineExceeded
		}
		r.Detail = fmt.Sprintf("%d moved, %d stayed, when the time of the whole operation was over; %s", r.Moved, r.KeptCount+left, r.Reason.Text())
	case r.KeptCount+left == 0:
		r.Outcome = Relocated
	default:
		r.Outcome, r.Reason = Blocked, RelocationFailed
		for reason, n := range why {
			if best := why[r.Reason]; n > best || n == best && reason < r.Reason {
				r.Reason = reason
			}
		}
		r.Detail = fmt.Sprintf("%d moved, %d stayed; %s", r.Moved, r.KeptCount+left, r.Reason.Text())
	}
	return r
}

func (s *Service) beginHost(mode Mode) bool {
	s.host.mu.Lock()
	defer s.host.mu.Unlock()
	if s.host.progress.Running {
		return false
	}
	s.host.progress = Progress{Running: true, Mode: mode}
	return true
}

func (s *Service) endHost() { s.hostProgress(func(p *Progress) { p.Running = false }) }

func (s *Service) hostProgress(f func(*Progress)) {
	s.host.mu.Lock()
	f(&s.host.progress)
	s.host.mu.Unlock()
	s.changed()
}
