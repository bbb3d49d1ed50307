package supervise

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"natsfabric/fence"
	"natsfabric/internal/leash"
	"natsfabric/internal/monotime"
	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// Target says how workers whose ID matches a pattern are restarted, and where their logs are.
type Target struct {
	// Match is a pattern: "*" is any run of characters, "?" any one, "[a-c]" one of those and "[^a-c]" none of them; a
	// backslash makes the next character itself, as all others are. "gpu-*" is every ID that begins so.
	Match string
	// Restarter restarts the worker; nil leaves it to a person.
	Restarter Restarter
	// Collector gets its logs; nil sends alerts without.
	Collector Collector
}

// settleTime bounds the writing of an outcome, beyond the time that its command may take.
const settleTime = 5 * time.Second

// maxSteps bounds what is done for one worker before others have their turn.
const maxSteps = 40

// runner carries out the steps that Policy.next decides, one worker at a time on one goroutine each.
type runner struct {
	keys   keys
	policy *Policy
	self   string
	mesh   string
	mono   func() monotime.Time
	target func(worker string) Target
	notify []Notifier
	// record takes an event for the audit, told a worker whose alerts may be due.
	record func(Event)
	told   func(worker string)
	// before is called before each step and effect; a test ends or freezes the monitor there.
	before func(step)
	stats  *stats
	leash  leash.Leash // holds the calls of notifiers, by name, and of collectors and restarters, by worker

	mu    sync.Mutex
	hands map[string]*hand // guarded by mu; by worker; one that is worked on is its worker's goroutine's own
}

// hand is what is in hand, and the time by which its command must have begun.
type hand struct {
	inHand
	until monotime.Time
	// intent is the incident as the intent left it: an older reading says nothing about the attempt.
	intent kvlocation.SharedEntry
}

func (r *runner) hand(worker string) *hand {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.hands[worker] == nil {
		r.hands[worker] = &hand{}
	}
	return r.hands[worker]
}

// holds reports whether something was begun for the worker and not ended.
func (r *runner) holds(worker string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.hands[worker] != nil
}

func (r *runner) release(worker string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.hands, worker)
}

// work does what is due for a worker, step by step, until nothing is. An error ends it for this time: nothing is
// remembered but what is in hand, and the next check begins with what the store holds then.
func (r *runner) work(ctx context.Context, c clock, worker string, fleet fleet, expected bool) error {
	h := r.hand(worker)
	defer func() {
		if h.attempt == "" {
			r.release(worker)
		}
	}()
	confirm := false
	own := h.intent
	settling, cancel := r.settling(ctx)
	defer func() { cancel() }()
	for range maxSteps {
		op := ctx
		if h.attempt != "" {
			op = settling
		}
		v, err := readView(op, r.keys, c, worker, r.self, confirm, own)
		if err != nil {
			return err
		}
		h.late = h.attempt != "" && (r.mono() > h.until || ctx.Err() != nil)
		target := r.target(worker)
		v.fleet, v.hand, v.hands, v.expected = fleet, h.inHand, target.Restarter != nil, expected
		s := r.policy.next(v)
		r.before(s)
		confirm = false
		switch s.do {
		case doWait:
			r.note(v, s)
			return nil
		case doDrop:
			*h = hand{}
		case doConfirm:
			confirm = true
		case doCollect:
			r.collect(op, v, s, target.Collector)
			h.collected = true
		case doRun:
			if h.result = r.run(op, v, s, h, target.Restarter); h.result != nil {
				r.stats.command(h.result.Outcome)
			}
		case doWrite, doIntend:
			if own, err = r.write(op, s.change); err != nil {
				return err
			}
			r.note(v, s)
			if s.do == doIntend {
				h.attempt, h.late, h.result = s.attempt.ID, false, nil
				h.until, h.intent = v.read.Add(r.policy.LaunchWindow), own
				cancel()
				settling, cancel = r.settling(ctx) // what the collection has taken is not the command's loss
			} else if isOutcome(s.event) {
				*h = hand{}
			}
			if s.event != "" {
				r.told(worker)
			}
		}
	}
	return nil
}

// settling returns the context of what follows an intent: what this monitor has begun it settles, also when it is told to end
// meanwhile; nothing else is done then.
func (r *runner) settling(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), r.policy.until()+settleTime)
}

// isOutcome reports whether an event is what an attempt came to.
func isOutcome(k EventKind) bool {
	return k == DoneRestart || k == FailedRestart || k == UnknownRestart || k == CancelledRestart
}

// write makes a change and returns what the key then holds.
func (r *runner) write(ctx context.Context, c change) (kvlocation.SharedEntry, error) {
	switch {
	case c.value == nil:
		err := r.keys.Delete(ctx, c.at)
		return kvlocation.SharedEntry{Key: c.at.Key, Revision: c.at.Revision}, err
	case c.absent:
		return r.keys.Create(ctx, c.at.Key, c.value, c.ttl)
	}
	return r.keys.Update(ctx, c.at, c.value, c.ttl)
}

// lostRace reports errors that mean no more than that another monitor was faster.
func lostRace(err error) bool {
	return errors.Is(err, outcome.AlreadyExists) || errors.Is(err, kvlocation.ErrConflict)
}

// note records the step's event, if it is one.
func (r *runner) note(v *view, s step) {
	if s.event == "" {
		return
	}
	r.record(Event{Worker: v.worker, Incident: s.incident, Kind: s.event, Of: s.of, Reason: s.why, By: r.self, Time: ceil(v.now)})
}

// maxLook is how old the last look may be when the command begins: a worker that has recovered since is not seen.
const maxLook = time.Second

// run runs the restart command. The last look at the clock is here: whoever was frozen since the intent, or since the
// last look, must not touch the worker now. Then it returns nil, and next looks again or gives up.
func (r *runner) run(ctx context.Context, v *view, s step, h *hand, restarter Restarter) *Result {
	token, _ := escape(v.worker)
	o := Order{
		Worker: v.worker, Verdict: s.attempt.Verdict, Incident: s.attempt.Incident, Attempt: s.attempt.ID,
		Token:    fence.Token{Source: r.mesh + "/supervise/" + token, Epoch: r.keys.Epoch(), Sequence: v.incident.revision()},
		NotAfter: s.attempt.At.Add(r.policy.LaunchWindow),
	}
	ctx, cancel := context.WithTimeout(ctx, r.policy.CommandLimit)
	defer cancel()
	if now := r.mono(); now > h.until || now.Sub(v.began) > maxLook {
		return nil
	}
	res, err := leash.Call(ctx, &r.leash, "restart of "+v.worker, r.policy.grace(), func(ctx context.Context) (Result, error) {
		return order(ctx, restarter, o), nil
	})
	if err != nil { // one that is out may still restart the worker
		return &Result{Unknown, "the restarter: " + err.Error()}
	}
	return &res
}

// collect collects the worker's logs and keeps them for alerts.
func (r *runner) collect(ctx context.Context, v *view, s step, c Collector) *Logs {
	l := Logs{V: schemaVersion, Worker: v.worker, Incident: s.incident, Time: ceil(v.now), By: r.self}
	text, err := r.logsOf(ctx, c, v.worker)
	l.Text = text
	if err != nil {
		l.Error = clip(err.Error(), maxDetail)
		if !errors.Is(err, errNoCollector) {
			r.stats.collectFailed.Add(1)
		}
	}
	token, _ := escape(v.worker)
	// Without the store the alert goes out without logs.
	if err := put(ctx, r.keys, logsPrefix+token, encode(l), seconds(r.policy.Retention)); err != nil {
		r.stats.storeErrors.Add(1)
	}
	reason := fmt.Sprintf("%d bytes", len(l.Text))
	if l.Error != "" {
		reason += ", " + l.Error
	}
	r.record(Event{Worker: v.worker, Incident: s.incident, Kind: Collected, Of: fmt.Sprint(v.incident.value.Numbered + 1), Reason: reason, By: r.self, Time: ceil(v.now)})
	return &l
}
