package kvlocation

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"natsfabric/fabrictest"
	"natsfabric/internal/monotime"
	"natsfabric/outcome"
)

var seed = flag.Uint64("seed", 0, "seed of TestLinearizable; 0 means a random one, which is printed")

// What TestLinearizable runs on each bed: 6 programs with a path of their own, each 120 operations on 4 objects.
const (
	linPrograms = 6
	linSteps    = 120
	linKeys     = 4
)

// TestLinearizable has several programs work on few objects while their paths lose, repeat and delay messages and
// connections, and the leader changes. What they were told must be explained by one order of their operations, those
// with an unknown result anywhere after their call, or nowhere.
func TestLinearizable(t *testing.T) {
	t.Parallel()
	s := *seed
	if s == 0 {
		s = rand.Uint64()
	}
	onEach(t, func(t *testing.T, b *bed) {
		t.Logf("go test -run TestLinearizable -seed %d", s)
		h := &history{}
		var wg sync.WaitGroup
		for i := range linPrograms {
			w := &worker{
				t: t, h: h, party: b.partyAt(t, i%len(b.servers), 150*time.Millisecond), client: i,
				rnd: rand.New(rand.NewPCG(s, uint64(i))), owner: linOwner(i),
				known: map[string]Entry{},
			}
			w.makeSpot()
			wg.Go(w.run)
		}
		if b.cluster != nil {
			wg.Go(func() { stepDown(t, b, h) })
		}
		wg.Wait()

		last := b.party(t)
		for k := range linKeys {
			last.readFor(t, h, linKey(k))
		}
		h.check(t)
	})
}

// stepDown makes the leader give up its role twice, at a third and at two thirds of the run.
func stepDown(t *testing.T, b *bed, h *history) {
	nc := connect(t, b.servers[0].URL())
	for i := 1; i <= 2; i++ {
		fabrictest.Eventually(t, time.Minute, "operations", func() bool { return h.len() >= i*linPrograms*linSteps/3 })
		if _, err := nc.Request("$JS.API.STREAM.LEADER.STEPDOWN.KV_FABRIC_m_LOCATION", nil, 5*time.Second); err != nil {
			t.Errorf("step down: %v", err)
		}
	}
}

func linOwner(i int) Owner {
	return Owner{RID: fmt.Sprintf("n%d", i), Lifecycle: uint64(i + 1), Lease: 1}
}

func linKey(i int) ObjectKey { return ObjectKey{Kind: KindActor, ID: fmt.Sprintf("lin%d", i)} }

// history collects what the programs did.
type history struct {
	mu      sync.Mutex
	ops     []porcupine.Operation
	entries map[string][]Entry // what writes and reads returned
}

func (h *history) add(client int, call monotime.Time, in modelInput, out modelOutput) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, op(client, int64(call), int64(monotime.Now()), in, out))
}

func (h *history) saw(key ObjectKey, e Entry) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.entries == nil {
		h.entries = map[string][]Entry{}
	}
	h.entries[key.ID] = append(h.entries[key.ID], e)
}

func (h *history) len() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.ops)
}

// linRare are the verbs without which a run shows little.
var linRare = []Verb{VerbAccept, VerbJoin}

// applied reports whether each of the verbs was applied at least once.
func (h *history) applied(verbs ...Verb) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, v := range verbs {
		if !slices.ContainsFunc(h.ops, func(o porcupine.Operation) bool {
			return o.Input.(modelInput).verb == v && o.Output.(modelOutput).end == endApplied
		}) {
			return false
		}
	}
	return true
}

func (h *history) check(t *testing.T) {
	t.Helper()
	count, applied := map[modelEnd]int{}, map[Verb]int{}
	for _, o := range h.ops {
		end := o.Output.(modelOutput).end
		if count[end]++; end == endApplied {
			applied[o.Input.(modelInput).verb]++
		}
	}
	t.Logf("%d operations: %v; applied: %v", len(h.ops), count, applied)
	if !h.applied(linRare...) {
		t.Error("nothing was moved, or nothing joined: the run shows little")
	}
	for _, end := range []modelEnd{endApplied, endRefused, endUnknown, endSaw} {
		if count[end] == 0 {
			t.Errorf("no operation ended as %s: the run shows little", end)
		}
	}
	result, info := porcupine.CheckOperationsVerbose(recordModel, h.ops, time.Minute)
	if result != porcupine.Ok {
		f, err := os.CreateTemp("", "linearizable-*.html")
		if err == nil {
			err = porcupine.Visualize(recordModel, info, f)
			_ = f.Close()
			t.Errorf("the history is in %s (%v)", f.Name(), err)
		}
		t.Fatalf("no order of the operations explains what was answered: %s", result)
	}
	for key, es := range h.entries {
		if err := validateGenerations(es); err != nil {
			t.Errorf("%s: %v", key, err)
		}
	}
}

// worker is one program.
type worker struct {
	party
	t      *testing.T
	h      *history
	client int
	rnd    *rand.Rand
	owner  Owner
	known  map[string]Entry // what it last heard of each object
	spot   Entry            // its own, which Actors that it owns may join

	armed   *fabrictest.Armed
	holding bool // armed holds every write until it is released
}

func (w *worker) makeSpot() {
	ctx, key := testContext(w.t), ObjectKey{Kind: KindSpot, ID: w.owner.RID}
	ch, err := w.Create(ctx, room(key, w.owner, nil))
	if err == nil {
		ch, err = w.Ready(ctx, ch.Entry, w.owner)
	}
	w.spot = mustChange(w.t, ch, err).Entry
}

func (w *worker) run() {
	for n := 0; n < linSteps || n < 2*linSteps && !w.h.applied(linRare...); n++ {
		key := linKey(w.rnd.IntN(linKeys))
		for range linKeys { // rather where there is something to do
			if at, ok := w.known[key.ID]; !ok || len(w.fitting(at)) > 0 {
				break
			}
			key = linKey(w.rnd.IntN(linKeys))
		}
		w.breakSomething()
		if at, ok := w.known[key.ID]; !ok || w.rnd.IntN(4) == 0 || len(w.fitting(at)) == 0 && w.rnd.IntN(6) > 0 {
			w.known[key.ID] = w.readFor(w.t, w.h, key)
		} else {
			w.write(key, at)
		}
	}
	w.heal()
}

func (w *worker) heal() {
	if w.armed != nil {
		w.armed.Release()
		w.armed, w.holding = nil, false
	}
}

// breakSomething arms a fault on the next write of this program, or ends the last one.
func (w *worker) breakSomething() {
	if w.armed != nil && w.rnd.IntN(3) > 0 {
		return // what it holds comes later
	}
	w.heal()
	tr := fabrictest.Trigger{Subject: w.location.publish + "actor.>"}
	switch w.rnd.IntN(12) {
	case 0, 1:
		tr.Answer, tr.Action = true, fabrictest.Drop
	case 2:
		tr.Action = fabrictest.Drop
	case 3, 4:
		tr.Action = fabrictest.Duplicate
	case 5:
		tr.Action, tr.Times = fabrictest.HoldAlone, -1
	case 6:
		tr.Answer, tr.Action, tr.Times = true, fabrictest.HoldAlone, -1
	case 7:
		tr.Action = fabrictest.CutBefore
	case 8:
		tr.Answer, tr.Action = true, fabrictest.CutBefore
	default:
		return
	}
	w.armed, w.holding = w.proxy.Arm(tr), tr.Times < 0
}

// write tries what seems possible after at, now and then something else.
func (w *worker) write(key ObjectKey, at Entry) {
	verbs := w.fitting(at)
	verb := VerbCreate
	if len(verbs) > 0 {
		verb = verbs[w.rnd.IntN(len(verbs))]
	}
	for _, rare := range linRare { // first what no run may be without
		if slices.Contains(verbs, rare) && !w.h.applied(rare) {
			verb = rare
		}
	}
	if w.rnd.IntN(8) == 0 {
		verb = []Verb{VerbCreate, VerbReady, VerbAdopt, VerbWith, VerbClose, VerbAccept, VerbAbort, VerbCommit}[w.rnd.IntN(8)]
	}
	if verb == VerbAdopt {
		w.owner.Lease++
	}
	by := w.owner
	if (verb == VerbWith || verb == VerbPrepare || verb == VerbJoin) && at.Record.Owner.RID == by.RID {
		by = at.Record.Owner // as adopted
	}
	a := at.action(verb, by)
	_, member := at.Record.Reference()
	if member {
		by = w.spot.Record.Owner
		a = at.memberAction(verb, by, &w.spot)
	} else if verb == VerbJoin {
		a.Spot = &w.spot
	}
	m, _ := at.Move()
	if a.Move.Op = m.Op; verb == VerbPrepare {
		to := (w.client + 1 + w.rnd.IntN(linPrograms-1)) % linPrograms
		a.Move = Move{Op: fmt.Sprintf("m%d-%d", w.client, w.h.len()), Target: linOwner(to)}
	}
	a.Absent = Absence{rid: at.Record.Owner.RID, lifecycle: at.Record.Owner.Lifecycle}
	in := modelInput{
		key: key.ID, verb: verb, by: by.RID, lease: by.Lease,
		incarnation: at.Record.Type, ownerGen: a.OwnerGeneration, evidence: at.Record.Owner.RID,
		move: a.Move.Op, target: a.Move.Target.RID, member: member && (verb == VerbLeave || verb == VerbClose),
	}
	switch verb {
	case VerbCreate:
		in.incarnation = fmt.Sprintf("i%d-%d", w.client, w.h.len()) // each is of a type of its own
		a.Class, a.Type = ClassActor, in.incarnation
	case VerbWith:
		in.with = fmt.Sprintf("%d.%d", w.client, w.h.len())
		a.With = json.RawMessage(`"` + in.with + `"`)
	}
	limit := 20 * time.Second
	if w.holding || w.rnd.IntN(3) == 0 {
		limit = 250 * time.Millisecond
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	call := monotime.Now()
	ch, err := w.change(ctx, at, a)
	var pending *Pending
	if errors.As(err, &pending) {
		err = w.settle(pending, &ch, err)
	}
	w.h.add(w.client, call, in, modelOutput{end: w.endOf(key, ch, err)})
}

// fitting are the verbs that this program may make of at.
func (w *worker) fitting(at Entry) []Verb {
	m, told := at.Move()
	if ref, ok := at.Record.Reference(); ok {
		if ref.Spot != w.owner.RID {
			return nil
		}
		return []Verb{VerbLeave, VerbLeave, VerbClose}
	}
	mine, target := at.Record.Owner.RID == w.owner.RID, told && m.Target.RID == w.owner.RID
	switch {
	case at.Phase() == PhaseMissing:
		return []Verb{VerbCreate}
	case at.Phase() == PhaseCreating && mine:
		return []Verb{VerbReady, VerbReady, VerbReady, VerbCancel}
	case at.Phase() == PhaseCreating:
		return []Verb{VerbTakeover, VerbTakeover, VerbTakeover, VerbCancel}
	case at.Phase() == PhaseReady && mine && told:
		return []Verb{VerbAdopt, VerbWith, VerbPrepare, VerbPrepare, VerbClearMove}
	case at.Phase() == PhaseReady && mine:
		return []Verb{VerbAdopt, VerbWith, VerbJoin, VerbPrepare, VerbPrepare, VerbPrepare, VerbClose}
	case at.Preparing() && mine:
		return []Verb{VerbAccept, VerbAccept, VerbAccept, VerbAccept, VerbAbort, VerbAdopt}
	case at.Preparing() && target && w.rnd.IntN(4) == 0:
		return []Verb{VerbAbort}
	case at.Accepted() && target:
		return []Verb{VerbCommit}
	}
	return nil
}

// settle goes on with a write of unknown result: resolves it, gives it up, or leaves it.
func (w *worker) settle(p *Pending, ch *Change, err error) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if w.rnd.IntN(2) == 0 {
		w.heal()
	}
	switch w.rnd.IntN(4) {
	case 0, 1:
		*ch, err = w.Resolve(ctx, p)
	case 2:
		var applied bool
		if *ch, applied, err = w.GiveUp(ctx, p); err == nil && !applied {
			err = errGivenUp
		}
	}
	return err
}

var errGivenUp = outcome.Wrap("give up", outcome.Unavailable, outcome.NotAccepted, "", "", ErrConflict)

func (w *worker) endOf(key ObjectKey, ch Change, err error) modelEnd {
	var illegal *IllegalMove
	if err == nil || errors.Is(err, errGivenUp) {
		w.known[key.ID] = ch.Entry
		w.h.saw(key, ch.Entry)
	} else {
		delete(w.known, key.ID)
	}
	switch {
	case err == nil:
		return endApplied
	case errors.Is(err, outcome.Unknown):
		return endUnknown
	case errors.As(err, &illegal):
		return endRefused
	case errors.Is(err, outcome.NotAccepted):
		return endNothing
	}
	w.t.Errorf("%v claims acceptance", err)
	return endUnknown
}

// readFor reads an object as it is now, until that works, and records it.
func (p party) readFor(t *testing.T, h *history, key ObjectKey) Entry {
	call := monotime.Now()
	l, err := p.ReadWith(testContext(t), key)
	if err != nil {
		t.Errorf("read: %v", err)
		return Entry{Key: key, Record: Record{Phase: PhaseMissing}, read: true}
	}
	e, st := l.Entry, modelState{}
	if l.Phase() != PhaseMissing {
		st = modelState{
			incarnation: e.Record.Type, phase: l.Phase(), owner: l.Owner().RID, ownerGen: l.OwnerGeneration(), lease: l.Owner().Lease, member: l.Spot != nil,
		}
		if m, ok := e.Move(); ok {
			st.move, st.target, st.accepted = m.Op, m.Target.RID, m.Accepted
		}
		if !st.member {
			_ = json.Unmarshal(e.Record.With, &st.with) // nothing before it is set
		}
	}
	h.add(0, call, modelInput{key: key.ID}, modelOutput{end: endSaw, state: st})
	if e.Revision != 0 {
		h.saw(key, e)
	}
	return e
}
