package kvlocation

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"github.com/nats-io/nuid"

	"natsfabric/fabrictest"
	"natsfabric/outcome"
)

// stepsOfMove are the writes of one move, in order.
var stepsOfMove = []struct {
	name string
	do   func(ctx context.Context, p party, at Entry, op string) (Change, error)
	want func(e Entry, op string) bool
}{
	{
		"prepare", func(ctx context.Context, p party, at Entry, op string) (Change, error) {
			return p.Prepare(ctx, at, n1, op, n2)
		},
		func(e Entry, op string) bool {
			m, ok := e.Move()
			return e.Preparing() && !e.Accepted() && ok && m.Op == op && m.Target.Is("n2", 6) && e.Record.Owner.Is("n1", 5) && e.Record.OwnerGeneration == 1
		},
	},
	{
		"accept", func(ctx context.Context, p party, at Entry, op string) (Change, error) {
			return p.Accept(ctx, at, n1, op)
		},
		func(e Entry, op string) bool { return e.Accepted() && e.Record.Owner.Is("n1", 5) },
	},
	{
		"commit", func(ctx context.Context, p party, at Entry, op string) (Change, error) {
			return p.Commit(ctx, at, n2, op, 12)
		},
		func(e Entry, op string) bool {
			m, ok := e.Move()
			return e.Phase() == PhaseReady && e.Record.Owner.Is("n2", 6) && e.Record.OwnerGeneration == 2 && ok && m.Op == op && m.H == 12
		},
	},
	{
		"clear", func(ctx context.Context, p party, at Entry, op string) (Change, error) {
			return p.ClearMove(ctx, at, n2, op)
		},
		func(e Entry, op string) bool {
			_, ok := e.Move()
			return e.Phase() == PhaseReady && !ok && e.Record.Owner.Is("n2", 6)
		},
	},
}

// moved brings a fresh object to just before a step of its move.
func (p party) moved(t *testing.T, key ObjectKey, op string, steps int) Entry {
	t.Helper()
	at := p.ready(t, key).Entry
	for _, s := range stepsOfMove[:steps] {
		ch, err := s.do(testContext(t), p, at, op)
		at = mustChange(t, ch, err).Entry
	}
	return at
}

// TestConformanceMove has the writes of a move under faults in their path.
func TestConformanceMove(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, b *bed) {
		for i, step := range stepsOfMove {
			// What became of each write is told, not guessed.
			t.Run("FO-5c/"+step.name, func(t *testing.T) {
				t.Parallel()
				t.Run("in one round trip", func(t *testing.T) {
					t.Parallel()
					p, key, op := b.partyAt(t, 0, longAttempt), objectOf(t), nuid.Next()
					at := p.moved(t, key, op, i)
					any := p.proxy.Arm(fabrictest.Trigger{Action: fabrictest.Signal, Times: -1})
					ch, err := step.do(testContext(t), p, at, op)
					if e := mustChange(t, ch, err).Entry; !step.want(e, op) || e.Generation() != at.Generation() || any.Count() != 1 {
						t.Errorf("%d messages, and it is %+v, move %+v", any.Count(), e.Record, e.Record.Move)
					}
					if e := p.mustRead(t, key); !step.want(e, op) || e.Revision != ch.Entry.Revision {
						t.Errorf("the store has %+v, move %+v", e.Record, e.Record.Move)
					}
				})
				t.Run("answer lost", func(t *testing.T) {
					t.Parallel()
					p, key, op := b.party(t), objectOf(t), nuid.Next()
					at := p.moved(t, key, op, i)
					lost := p.loseAnswer(t, key)
					heard := p.hears(b.pick(saysWrongSequence, saysDuplicate))
					ch, err := step.do(testContext(t), p, at, op)
					if e := mustChange(t, ch, err).Entry; !step.want(e, op) || ch.Overwritten || !ch.Repeated {
						t.Errorf("%+v", ch)
					}
					if lost.Count() != 1 || heard.Count() == 0 {
						t.Errorf("%d answers lost, %d heard", lost.Count(), heard.Count())
					}
				})
				t.Run("answer lost for good, resolved later", func(t *testing.T) {
					t.Parallel()
					p, key, op := b.party(t), objectOf(t), nuid.Next()
					at := p.moved(t, key, op, i)
					lost := p.arm(t, key, func(tr *fabrictest.Trigger) { tr.Answer, tr.Action, tr.Times = true, fabrictest.Drop, -1 })
					_, err := step.do(briefly(t), p, at, op)
					pending := wantPending(t, err)
					lost.Release()
					ch, err := p.Resolve(testContext(t), pending)
					if e := mustChange(t, ch, err).Entry; !step.want(e, op) {
						t.Errorf("%+v", e.Record)
					}
				})
				t.Run("sending lost, given up", func(t *testing.T) {
					t.Parallel()
					p, key, op := b.party(t), objectOf(t), nuid.Next()
					at := p.moved(t, key, op, i)
					lost := p.arm(t, key, func(tr *fabrictest.Trigger) {
						tr.Action, tr.Times, tr.Match = fabrictest.Drop, -1, firstWriteOnly()
					})
					_, err := step.do(briefly(t), p, at, op)
					pending := wantPending(t, err)
					ch, applied, err := p.GiveUp(testContext(t), pending)
					lost.Release()
					if err != nil || applied || step.want(ch.Entry, op) || ch.Entry.Record.step() != at.Record.step() {
						t.Errorf("applied = %v, %v, and it is %+v", applied, err, ch.Entry.Record)
					}
				})
				t.Run("connection cut behind it", func(t *testing.T) {
					t.Parallel()
					p, key, op := b.party(t), objectOf(t), nuid.Next()
					at := p.moved(t, key, op, i)
					p.arm(t, key, func(tr *fabrictest.Trigger) { tr.Action = fabrictest.CutAfter })
					ch, err := step.do(testContext(t), p, at, op)
					if e := mustChange(t, ch, err).Entry; !step.want(e, op) {
						t.Errorf("%+v", e.Record)
					}
				})
			})
		}

		t.Run("FO-10.16/commit", func(t *testing.T) {
			t.Parallel()
			closedUntilReread(t, b, func(p party, key ObjectKey) (func(context.Context) (Change, error), Phase) {
				at := p.moved(t, key, "move1", 2)
				return func(ctx context.Context) (Change, error) { return p.Commit(ctx, at, n2, "move1", 0) }, PhaseReady
			})
		})
		t.Run("FO-5a", func(t *testing.T) { t.Parallel(); abortKeepsTheSource(t, b) })
		t.Run("FO-5b", func(t *testing.T) { t.Parallel(); acceptedHasOneWay(t, b) })
		t.Run("FO-5e", func(t *testing.T) { t.Parallel(); committedIsTheTargets(t, b) })
		t.Run("FO-5f", func(t *testing.T) { t.Parallel(); nobodyTakesAMoveOver(t, b) })

		t.Run("an abort and the boundary never both win", func(t *testing.T) {
			t.Parallel()
			s, target := b.party(t), b.partyAt(t, len(b.servers)-1, shortAttempt)
			won := map[string]int{}
			for i := range 24 {
				key, op := ObjectKey{Kind: KindActor, ID: fmt.Sprintf("race%d", i)}, nuid.Next()
				at := s.moved(t, key, op, 1)
				if i%3 == 0 {
					s.loseAnswer(t, key)
				}
				if i%3 == 1 {
					target.loseAnswer(t, key)
				}
				accept := async(func() (Change, error) { return s.Accept(testContext(t), at, n1, op) })
				abort := async(func() (Change, error) { return target.Abort(testContext(t), at, n2, op) })
				a, b := await(t, accept), await(t, abort)
				e := s.mustRead(t, key)
				switch {
				case a.err == nil && b.err != nil && e.Accepted():
					won["accept"]++
					wantError(t, b.err, outcome.InvalidOperation, outcome.NotAccepted)
					if !b.ch.Entry.Accepted() {
						t.Errorf("the target is shown %+v", b.ch.Entry.Record)
					}
					ch, err := target.Commit(testContext(t), e, n2, op, 0)
					mustChange(t, ch, err)
				case b.err == nil && a.err != nil && e.Phase() == PhaseReady && e.Record.Owner.Is("n1", 5):
					won["abort"]++
					wantError(t, a.err, outcome.InvalidOperation, outcome.NotAccepted)
				default:
					t.Fatalf("accept: %v, abort: %v, and the record is %+v", a.err, b.err, e.Record)
				}
			}
			t.Logf("won: %v", won)
		})

		t.Run("what is read may be older than the boundary", func(t *testing.T) {
			t.Parallel()
			p, key, op := b.party(t), objectOf(t), nuid.Next()
			preparing := p.moved(t, key, op, 1)
			p.mustAccept(t, preparing, op)
			ch, err := p.Commit(testContext(t), preparing, n2, op, 3)
			if e := mustChange(t, ch, err).Entry; !e.Record.Owner.Is("n2", 6) {
				t.Errorf("%+v", e.Record)
			}
			_, err = p.Accept(testContext(t), preparing, n1, op)
			wantError(t, err, outcome.InvalidOperation, outcome.NotAccepted)
		})

		t.Run("a late accept does not come true behind an abort", func(t *testing.T) {
			t.Parallel()
			p, q, key, op := b.party(t), b.party(t), objectOf(t), nuid.Next()
			at := p.moved(t, key, op, 1)
			held := p.arm(t, key, func(tr *fabrictest.Trigger) { tr.Action, tr.Times = fabrictest.HoldAlone, -1 })
			_, err := p.Accept(briefly(t), at, n1, op)
			pending := wantPending(t, err)
			ch, err := q.Abort(testContext(t), at, n2, op)
			mustChange(t, ch, err)
			held.Release()
			_, err = p.Resolve(testContext(t), pending)
			if wantError(t, err, outcome.InvalidOperation, outcome.NotAccepted); !errors.Is(err, ErrConflict) {
				t.Errorf("got %v", err)
			}
			if e := p.mustRead(t, key); e.Phase() != PhaseReady || !e.Record.Owner.Is("n1", 5) {
				t.Errorf("%+v", e.Record)
			}
		})
	})
}

// abortKeepsTheSource ends a move before the boundary, by either side: the source has the object as before, and the move can't
// go on.
func abortKeepsTheSource(t *testing.T, b *bed) {
	for _, by := range []Owner{n1, n2} {
		p, key, op := b.party(t), ObjectKey{Kind: KindActor, ID: "aborted-by-" + by.RID}, nuid.Next()
		at := p.moved(t, key, op, 1)
		ch, err := p.Abort(testContext(t), at, by, op)
		e := mustChange(t, ch, err).Entry
		if _, told := e.Move(); told || e.Phase() != PhaseReady || !e.Record.Owner.Is("n1", 5) || e.Record.OwnerGeneration != 1 || e.Generation() != at.Generation() {
			t.Errorf("aborted by %s: %+v", by.RID, e.Record)
		}
		for _, late := range stepsOfMove[1:3] {
			_, err := late.do(testContext(t), p, at, op)
			wantError(t, err, outcome.InvalidOperation, outcome.NotAccepted)
		}
		ch, err = p.SetWith(testContext(t), e, n1, json.RawMessage(`{"spot":"s"}`))
		mustChange(t, ch, err)
	}
}

// acceptedHasOneWay tries everything that would bring the object back to its source behind the boundary.
func acceptedHasOneWay(t *testing.T, b *bed) {
	p, key, op := b.party(t), objectOf(t), nuid.Next()
	at := p.moved(t, key, op, 2)
	ctx := testContext(t)
	for name, try := range map[string]func() (Change, error){
		"abort by the source": func() (Change, error) { return p.Abort(ctx, at, n1, op) },
		"abort by the target": func() (Change, error) { return p.Abort(ctx, at, n2, op) },
		"adopt":               func() (Change, error) { return p.Adopt(ctx, at, n1later) },
		"adopt by the target": func() (Change, error) { return p.Adopt(ctx, at, n2) },
		"set with":            func() (Change, error) { return p.SetWith(ctx, at, n1, nil) },
		"close":               func() (Change, error) { return p.CloseObject(ctx, at, n1) },
		"another move":        func() (Change, error) { return p.Prepare(ctx, at, n1, nuid.Next(), n2) },
		"commit by another":   func() (Change, error) { return p.Commit(ctx, at, Owner{RID: "n3", Lifecycle: 7, Lease: 7}, op, 0) },
		"takeover":            func() (Change, error) { return p.Takeover(ctx, at, n2, Absence{rid: "n1", lifecycle: 5}) },
		"create":              func() (Change, error) { return p.Create(ctx, room(key, n2, nil)) },
		"release, source gone": func() (Change, error) {
			return p.Release(ctx, at, GoneProof{rid: "n1", lifecycle: 5, before: 1 << 40})
		},
	} {
		if _, err := try(); !errors.Is(err, outcome.NotAccepted) || errors.Is(err, outcome.Unavailable) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if e := p.mustRead(t, key); e.Revision != at.Revision || !e.Accepted() {
		t.Fatalf("it was changed to %+v", e.Record)
	}
	ch, err := p.Commit(ctx, at, n2, op, 1)
	if e := mustChange(t, ch, err).Entry; !e.Record.Owner.Is("n2", 6) || e.Generation() != at.Generation() {
		t.Errorf("%+v", e.Record)
	}
}

// committedIsTheTargets shows that behind the commit the record waits for the target, dead or alive.
func committedIsTheTargets(t *testing.T, b *bed) {
	p, key, op := b.party(t), objectOf(t), nuid.Next()
	at := p.moved(t, key, op, 3)
	ctx := testContext(t)
	for name, try := range map[string]func() (Change, error){
		"adopt by the source":  func() (Change, error) { return p.Adopt(ctx, at, n1later) },
		"abort":                func() (Change, error) { return p.Abort(ctx, at, n1, op) },
		"commit again":         func() (Change, error) { return p.Commit(ctx, at, n2, op, 1) },
		"release, source gone": func() (Change, error) { return p.Release(ctx, at, GoneProof{rid: "n1", lifecycle: 5, before: 1 << 40}) },
		"takeover":             func() (Change, error) { return p.Takeover(ctx, at, n1, Absence{rid: "n2", lifecycle: 6}) },
		"create":               func() (Change, error) { return p.Create(ctx, room(key, n1, nil)) },
	} {
		if _, err := try(); !errors.Is(err, outcome.NotAccepted) || errors.Is(err, outcome.Unavailable) {
			t.Errorf("%s: %v", name, err)
		}
	}
	ch, err := p.Release(ctx, at, GoneProof{rid: "n2", lifecycle: 6, before: 1 << 40})
	if e := mustChange(t, ch, err).Entry; e.Phase() != PhaseMissing {
		t.Errorf("%+v", e.Record)
	}
}

// nobodyTakesAMoveOver has the record of a move whose source or target died: later runs of both and others find nothing
// that they may write; a target that lives frees itself by an abort, which leaves the object with its dead source.
func nobodyTakesAMoveOver(t *testing.T, b *bed) {
	n2again, n3 := Owner{RID: "n2", Lifecycle: 12, Lease: 12}, Owner{RID: "n3", Lifecycle: 7, Lease: 7}
	for steps, name := range map[int]string{1: "preparing", 2: "accepted"} {
		p, key, op := b.party(t), ObjectKey{Kind: KindActor, ID: "died-" + name}, nuid.Next()
		at := p.moved(t, key, op, steps)
		ctx := testContext(t)
		for _, by := range []Owner{n1again, n2again, n3} {
			for what, try := range map[string]func() (Change, error){
				"accept": func() (Change, error) { return p.Accept(ctx, at, by, op) },
				"abort":  func() (Change, error) { return p.Abort(ctx, at, by, op) },
				"commit": func() (Change, error) { return p.Commit(ctx, at, by, op, 0) },
				"adopt":  func() (Change, error) { return p.Adopt(ctx, at, by) },
				"prepare": func() (Change, error) {
					return p.Prepare(ctx, at, by, nuid.Next(), Owner{RID: "n4", Lifecycle: 8, Lease: 8})
				},
				"takeover": func() (Change, error) { return p.Takeover(ctx, at, by, Absence{rid: "n1", lifecycle: 5}) },
			} {
				_, err := try()
				if !errors.Is(err, outcome.InvalidOperation) || !errors.Is(err, outcome.NotAccepted) {
					t.Errorf("%s, %s by %s: %v", name, what, by, err)
				}
			}
		}
		if steps == 1 {
			ch, err := p.Abort(ctx, at, n2, op)
			if e := mustChange(t, ch, err).Entry; e.Phase() != PhaseReady || !e.Record.Owner.Is("n1", 5) || e.Record.Owner.Lease != at.Record.Owner.Lease {
				t.Errorf("%+v", e.Record)
			}
		}
	}
}

func (p party) mustAccept(t *testing.T, at Entry, op string) Entry {
	t.Helper()
	ch, err := p.Accept(testContext(t), at, n1, op)
	return mustChange(t, ch, err).Entry
}

// TestMoveAcrossALeaderChange kills the leader of the records' stream while each step of a move is under way.
func TestMoveAcrossALeaderChange(t *testing.T) {
	t.Parallel()
	for _, step := range []int{0, 1, 2} {
		t.Run(stepsOfMove[step].name, func(t *testing.T) {
			t.Parallel()
			b := newBed(t, 3)
			leader := b.leader(t)
			p, key, op := b.partyAt(t, (leader+1)%3, shortAttempt), objectOf(t), nuid.Next()
			at := p.moved(t, key, op, step)
			lost := p.loseAnswer(t, key)
			done := async(func() (Change, error) { return stepsOfMove[step].do(testContext(t), p, at, op) })
			lost.Wait(t)
			b.servers[leader].Kill()
			r := await(t, done)
			if e := mustChange(t, r.ch, r.err).Entry; !stepsOfMove[step].want(e, op) || r.ch.Overwritten {
				t.Errorf("%+v", r.ch)
			}
		})
	}
}

// TestMoveInTheStore shows what `nats kv get` shows.
func TestMoveInTheStore(t *testing.T) {
	t.Parallel()
	b := newBed(t, 1)
	p, key := b.party(t), objectOf(t)
	at := p.moved(t, key, "move1", 1)
	doc := func() (d struct {
		Phase string          `json:"phase"`
		Move  json.RawMessage `json:"move"`
	}) {
		t.Helper()
		name, _ := key.key()
		m, err := p.get(testContext(t), p.location, name)
		if err == nil {
			err = json.Unmarshal(m.value, &d)
		}
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	if d := doc(); d.Phase != "moving" || string(d.Move) != `{"op":"move1","target":{"rid":"n2","lifecycle":6,"lease":6}}` {
		t.Errorf("preparing: %s %s", d.Phase, d.Move)
	}
	at = p.mustAccept(t, at, "move1")
	if d := doc(); d.Phase != "moving" || string(d.Move) != `{"op":"move1","target":{"rid":"n2","lifecycle":6,"lease":6},"accepted":true}` {
		t.Errorf("accepted: %s %s", d.Phase, d.Move)
	}
	ch, err := p.Commit(testContext(t), at, n2, "move1", 4)
	mustChange(t, ch, err)
	if d := doc(); d.Phase != "ready" || string(d.Move) != `{"op":"move1","target":{"rid":"n2","lifecycle":6,"lease":6},"accepted":true,"h":4}` {
		t.Errorf("committed: %s %s", d.Phase, d.Move)
	}
}
