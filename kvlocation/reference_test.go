package kvlocation

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nuid"

	"natsfabric/fabrictest"
	"natsfabric/outcome"
)

// TestReferenceTable has what may be done to a record that is located by reference, and what it takes to make one.
func TestReferenceTable(t *testing.T) {
	t.Parallel()
	spot := func(p Phase, owner Owner, ownerGeneration uint64, m *Move) *Entry {
		return &Entry{
			Key: ObjectKey{Kind: KindSpot, ID: "hall"}, Revision: 15,
			Record: Record{V: 1, Phase: p, Kind: ClassUserSpot, Type: "hall", Owner: owner, Generation: 9, OwnerGeneration: ownerGeneration, Move: m},
		}
	}
	hall := spot(PhaseReady, n1, 6, nil)
	own := entries()[PhaseReady]
	own.Record.OwnerGeneration = 3
	act := func(v Verb, by Owner, ownerGeneration uint64, s *Entry) Action {
		return Action{Verb: v, OpID: "new", Now: testTime, Owner: by, Generation: 20, OwnerGeneration: ownerGeneration, Spot: s, Class: ClassActor, Type: "room"}
	}
	joined, err := Transition(own, act(VerbJoin, n1, 3, hall))
	if err != nil {
		t.Fatal(err)
	}
	member := own
	member.Record = joined
	// Owner generation 3 becomes 4, which is the Spot's 6 and -2.
	if string(joined.With) != `{"spot":"hall","generation":9,"by":"reference","offset":-2}` || joined.Owner.RID != "" || joined.OwnerGeneration != 0 ||
		joined.Phase != PhaseReady || joined.Generation != 20 {
		t.Errorf("joined: %+v with %s", joined, joined.With)
	}
	if l := (Located{Entry: member, Spot: hall}); l.OwnerGeneration() != 4 || !l.Owner().Is("n1", 5) || l.Phase() != PhaseReady {
		t.Errorf("located at %v under %d, %s", l.Owner(), l.OwnerGeneration(), l.Phase())
	}
	// The Spot moves: so does the member, whose owner generation grows with the Spot's.
	there := spot(PhaseReady, n2, 7, testMove(true, 0))
	if l := (Located{Entry: member, Spot: there}); l.OwnerGeneration() != 5 || !l.Owner().Is("n2", 6) {
		t.Errorf("after the move it is located at %v under %d", l.Owner(), l.OwnerGeneration())
	}
	left, err := Transition(member, act(VerbLeave, n2, 5, there))
	if err != nil || left.OwnerGeneration != 6 || !left.Owner.Is("n2", 6) || left.With != nil || left.Phase != PhaseReady {
		t.Errorf("left: %+v, %v", left, err)
	}
	if closed, err := Transition(member, act(VerbClose, n2, 5, there)); err != nil || closed.Phase != PhaseMissing || closed.With != nil || closed.OwnerGeneration != 5 {
		t.Errorf("closed: %+v, %v", closed, err)
	}
	for _, s := range []*Entry{spot(PhaseMoving, n1, 6, testMove(true, 0)), spot(PhaseMoving, n1, 6, testMove(false, 0))} {
		if l := (Located{Entry: member, Spot: s}); l.Phase() != PhaseMoving || !l.Owner().Is("n1", 5) || l.OwnerGeneration() != 4 {
			t.Errorf("in a move: %v under %d, %s", l.Owner(), l.OwnerGeneration(), l.Phase())
		}
	}
	later := spot(PhaseReady, n1, 1, nil)
	later.Record.Generation = 30
	closedSpot := spot(PhaseMissing, Owner{}, 6, nil)
	for _, s := range []*Entry{later, closedSpot, {Key: hall.Key, Record: Record{Phase: PhaseMissing}}, nil} {
		if l := (Located{Entry: member, Spot: s}); l.Phase() != PhaseMissing || !l.Dangles() {
			t.Errorf("with %+v it is %s", s, l.Phase())
		}
	}

	other := spot(PhaseReady, n1, 6, nil)
	other.Key.ID = "other"
	preparing := spot(PhaseMoving, n1, 6, testMove(false, 0))
	for _, c := range []struct {
		name string
		at   Entry
		do   Action
		want outcome.Kind // 0: allowed
		says string
	}{
		{"join while the spot is to be moved", own, act(VerbJoin, n1, 3, preparing), 0, ""},
		{"join a spot that was given up", own, act(VerbJoin, n1, 3, spot(PhaseMoving, n1, 6, testMove(true, 0))), outcome.InvalidOperation, "not ready"},
		{"join a spot of another node", own, act(VerbJoin, n1, 3, there), outcome.InvalidOperation, "belongs to node n2"},
		{"join by another", own, act(VerbJoin, n2, 3, there), outcome.InvalidOperation, "belongs to node n1"},
		{"join before the adoption", own, act(VerbJoin, n1later, 3, spot(PhaseReady, n1later, 6, nil)), outcome.InvalidOperation, "adopted"},
		{"join under another owner generation", own, act(VerbJoin, n1, 2, hall), outcome.InvalidOperation, "owner generation"},
		{"join nothing", own, act(VerbJoin, n1, 3, nil), outcome.InvalidOperation, "not ready"},
		{"join twice", member, act(VerbJoin, n1, 4, hall), outcome.InvalidOperation, "located by spot"},
		{"leave while the spot is to be moved", member, act(VerbLeave, n1, 4, preparing), 0, ""},
		{"leave a spot that was given up", member, act(VerbLeave, n1, 4, spot(PhaseMoving, n1, 6, testMove(true, 0))), outcome.InvalidOperation, "located by spot"},
		{"leave another spot", member, act(VerbLeave, n1, 4, other), outcome.InvalidOperation, "located by spot"},
		{"leave a later incarnation", member, act(VerbLeave, n1, 4, later), outcome.InvalidOperation, "located by spot"},
		{"leave by another", member, act(VerbLeave, n2, 4, hall), outcome.InvalidOperation, "belongs to"},
		{"leave where the spot was before", member, act(VerbLeave, n1, 4, there), outcome.InvalidOperation, "belongs to"},
		{"leave before the adoption", member, act(VerbLeave, n1later, 4, hall), outcome.InvalidOperation, "adopted"},
		{"leave of who has an owner", own, act(VerbLeave, n1, 3, hall), outcome.InvalidOperation, "by no spot"},
		{"close without the spot", member, act(VerbClose, n1, 4, nil), outcome.InvalidOperation, "located by spot"},
		{"set with", member, act(VerbWith, n1, 4, hall), outcome.InvalidOperation, "located by spot"},
		{"adopt", member, act(VerbAdopt, n1later, 4, hall), outcome.InvalidOperation, "located by spot"},
		{"prepare", member, act(VerbPrepare, n1, 4, hall), outcome.InvalidOperation, "located by spot"},
		{"release", member, act(VerbRelease, Owner{}, 4, hall), outcome.InvalidOperation, "moves and ends"},
		{"create", member, act(VerbCreate, n2, 0, nil), outcome.AlreadyExists, "exists"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_, err := Transition(c.at, c.do)
			if c.want == 0 && err == nil {
				return
			}
			var illegal *IllegalMove
			if !errors.As(err, &illegal) || illegal.Kind != c.want || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v, want %v that says %q", err, c.want, c.says)
			}
		})
	}

	// A spot joins nothing.
	hallway := *spot(PhaseReady, n1, 1, nil)
	hallway.Record.Kind = ClassUserSpot
	if _, err := Transition(hallway, Action{Verb: VerbJoin, OpID: "new", Owner: n1, Generation: 9, OwnerGeneration: 1, Spot: other}); err == nil {
		t.Error("a spot joined a spot")
	}
	// The evidence that a reference dangles counts for the revision at which it was found, and for no other.
	create := act(VerbCreate, n2, 0, nil)
	create.void = void{revision: member.Revision}
	if r, err := Transition(member, create); err != nil || r.Phase != PhaseCreating || r.With != nil || r.Generation != 0 || r.OwnerGeneration != 1 {
		t.Errorf("create over a dangling reference: %+v, %v", r, err)
	}
	create.void = void{revision: member.Revision - 1}
	if _, err := Transition(member, create); err == nil {
		t.Error("created with evidence of another revision")
	}
}

// members is a Spot with an Actor in it.
func (p party) members(t *testing.T, name string) (actor, spot Entry) {
	t.Helper()
	spotKey, actorKey := ObjectKey{Kind: KindSpot, ID: name + "-spot"}, ObjectKey{Kind: KindActor, ID: name + "-actor"}
	spot = p.ready(t, spotKey).Entry
	ch, err := p.Join(testContext(t), p.ready(t, actorKey).Entry, n1, spot)
	return mustChange(t, ch, err).Entry, spot
}

func TestReference(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, b *bed) {
		move := func(t *testing.T, p party, at Entry) Entry {
			t.Helper()
			op := nuid.Next()
			for _, s := range stepsOfMove[:3] {
				ch, err := s.do(testContext(t), p, at, op)
				at = mustChange(t, ch, err).Entry
			}
			return at
		}

		t.Run("one write moves the members", func(t *testing.T) {
			t.Parallel()
			p, q := b.party(t), b.partyAt(t, len(b.servers)-1, time.Second)
			actor, spot := p.members(t, "move")
			l, err := q.ReadWith(testContext(t), actor.Key)
			if err != nil || !l.Owner().Is("n1", 5) || l.OwnerGeneration() != 2 || l.Generation() != actor.Generation() || l.Spot.Generation() != spot.Generation() {
				t.Fatalf("%+v, %v", l, err)
			}
			spot = move(t, p, spot)
			l, err = q.ReadWith(testContext(t), actor.Key)
			if err != nil || !l.Owner().Is("n2", 6) || l.OwnerGeneration() != 3 || l.Revision != actor.Revision {
				t.Fatalf("%+v, %v", l, err)
			}
			if l, err = q.LookupWith(testContext(t), actor.Key); err != nil || l.OwnerGeneration() < 2 {
				t.Fatalf("%+v, %v", l, err)
			}
			ch, err := p.Leave(testContext(t), actor, n2, spot)
			if e := mustChange(t, ch, err).Entry; !e.Record.Owner.Is("n2", 6) || e.Record.OwnerGeneration != 4 || e.Generation() != actor.Generation() {
				t.Errorf("%+v", e.Record)
			}
			if l, err = q.ReadWith(testContext(t), actor.Key); err != nil || l.Spot != nil || l.OwnerGeneration() != 4 {
				t.Errorf("%+v, %v", l, err)
			}
		})

		t.Run("lost answers", func(t *testing.T) {
			t.Parallel()
			p := b.party(t)
			spot := p.ready(t, ObjectKey{Kind: KindSpot, ID: "lost-spot"}).Entry
			at := p.ready(t, ObjectKey{Kind: KindActor, ID: "lost-actor"}).Entry
			for _, step := range []func() (Change, error){
				func() (Change, error) { return p.Join(testContext(t), at, n1, spot) },
				func() (Change, error) { return p.Leave(testContext(t), at, n1, spot) },
				func() (Change, error) { return p.Join(testContext(t), at, n1, spot) },
				func() (Change, error) { return p.CloseMember(testContext(t), at, n1, spot) },
			} {
				lost := p.loseAnswer(t, at.Key)
				ch, err := step()
				at = mustChange(t, ch, err).Entry
				lost.Wait(t)
			}
			if e := p.mustRead(t, at.Key); e.Phase() != PhaseMissing || e.Record.Write != 6 {
				t.Errorf("%+v", e.Record)
			}
		})

		t.Run("a member of a closed spot is missing, and may be made anew", func(t *testing.T) {
			t.Parallel()
			p, q := b.party(t), b.partyAt(t, len(b.servers)-1, time.Second)
			actor, spot := p.members(t, "closed")
			// While the spot lives the name is taken, whatever is known of it beforehand.
			for _, assume := range []bool{false, true} {
				o := room(actor.Key, n2, nil)
				o.AssumeMissing = assume
				ch, err := q.Create(testContext(t), o)
				wantError(t, err, outcome.AlreadyExists, outcome.NotAccepted)
				if ch.Entry.Revision != actor.Revision {
					t.Errorf("the present entry is %+v", ch.Entry)
				}
			}
			ch, err := p.CloseObject(testContext(t), spot, n1)
			mustChange(t, ch, err)
			if l, err := q.ReadWith(testContext(t), actor.Key); err != nil || l.Phase() != PhaseMissing {
				t.Errorf("%+v, %v", l, err)
			}
			// A look-up may be answered by a replica that does not know of the end yet.
			fabrictest.Eventually(t, readyIn, "a look-up finds nothing", func() bool {
				_, err = q.LookupWith(testContext(t), actor.Key)
				return err != nil
			})
			wantError(t, err, outcome.NotFound, outcome.NotAccepted)
			// The next incarnation of the spot is another one.
			again := p.ready(t, spot.Key).Entry
			if l, err := q.ReadWith(testContext(t), actor.Key); err != nil || l.Phase() != PhaseMissing {
				t.Errorf("%+v, %v", l, err)
			}
			if _, err := p.Leave(testContext(t), actor, n1, again); err == nil {
				t.Error("left a spot that it was not in")
			}
			o := room(actor.Key, n2, nil)
			o.Type = "another"
			lost := q.loseAnswer(t, actor.Key)
			ch, err = q.Create(testContext(t), o)
			e := mustChange(t, ch, err).Entry
			lost.Wait(t)
			if e.Phase() != PhaseCreating || e.Generation() <= actor.Generation() || e.Record.OwnerGeneration != 1 || e.Record.Type != "another" || e.Record.With != nil {
				t.Errorf("%+v", e.Record)
			}
			ch, err = p.Create(testContext(t), room(actor.Key, n1, nil))
			wantError(t, err, outcome.TypeMismatch, outcome.NotAccepted)
			if ch.Entry.Revision != e.Revision {
				t.Errorf("the present entry is %+v", ch.Entry)
			}
		})

		t.Run("of many creations over a dangling reference one wins", func(t *testing.T) {
			t.Parallel()
			p, q := b.party(t), b.partyAt(t, len(b.servers)-1, time.Second)
			actor, spot := p.members(t, "race")
			ch, err := p.CloseObject(testContext(t), spot, n1)
			mustChange(t, ch, err)
			var under []<-chan result
			for i := range 8 {
				under = append(under, async(func() (Change, error) {
					return []party{p, q}[i%2].Create(testContext(t), room(actor.Key, []Owner{n1, n2}[i%2], json.RawMessage(fmt.Sprint(i))))
				}))
			}
			won := 0
			for _, done := range under {
				if r := await(t, done); r.err == nil {
					won++
				} else {
					wantError(t, r.err, outcome.AlreadyExists, outcome.NotAccepted)
				}
			}
			if won != 1 {
				t.Errorf("%d creations won", won)
			}
		})

		t.Run("scans", func(t *testing.T) {
			t.Parallel()
			p := b.party(t)
			actor, spot := p.members(t, "scan")
			own := p.ready(t, ObjectKey{Kind: KindActor, ID: "scan-own"}).Entry
			for _, c := range []struct {
				f    ScanFilter
				want []Entry
			}{
				{ScanFilter{Prefix: "scan", RID: "n1"}, []Entry{spot, own}},
				{ScanFilter{Prefix: "scan", RID: "n1", References: true}, []Entry{spot, own, actor}},
				{ScanFilter{Prefix: "scan", RID: "n2", References: true}, []Entry{actor}},
				{ScanFilter{Prefix: "scan", RID: "n2", References: true, Kind: KindSpot}, nil},
				{ScanFilter{Prefix: "scan"}, []Entry{spot, own, actor}},
			} {
				got := p.scan(t, c.f)
				for _, e := range c.want {
					if got[e.Key] == 0 {
						t.Errorf("%+v leaves out %v", c.f, e.Key)
					}
				}
				if len(got) != len(c.want) {
					t.Errorf("%+v has %v", c.f, got)
				}
			}
		})
	})
}

// TestReferenceAtReplicaBehind has one replica that lacks a Spot's move. What is read there is old as a whole: never the
// Actor's record of one moment with the Spot's of another. What must not be old is read elsewhere.
func TestReferenceAtReplicaBehind(t *testing.T) {
	t.Parallel()
	b := newBed(t, 3)
	leader := b.leader(t)
	behind, reader := (leader+1)%3, (leader+2)%3
	p := b.partyAt(t, reader, time.Second)
	actor, spot := p.members(t, "x")
	ctx := testContext(t)
	fabrictest.Eventually(t, 10*time.Second, "all replicas to have it", func() bool {
		for range 12 {
			if e, err := p.Peek(ctx, actor.Key); err != nil || e.Revision != actor.Revision {
				return false
			}
		}
		return true
	})
	link := b.cluster.Link(t, leader, behind)
	link.Apply(fabrictest.Hang)
	defer link.Heal()
	// The Actor leaves, and the Spot moves and is closed: who mixed the two would follow the Spot, or take the Actor for gone.
	ch, err := p.Leave(ctx, actor, n1, spot)
	left := mustChange(t, ch, err).Entry
	look := func(what string) (stale int) {
		t.Helper()
		for start := time.Now(); stale < 8 && time.Since(start) < 5*time.Second; {
			l, err := p.LookupWith(ctx, actor.Key)
			if err != nil || !l.Owner().Is("n1", 5) || l.OwnerGeneration() > 3 {
				t.Fatalf("%s: an Actor that is at n1 all the time: %v under %d, %v", what, l.Owner(), l.OwnerGeneration(), err)
			}
			if l.Spot != nil {
				stale++
			}
		}
		if now, err := p.ReadWith(ctx, actor.Key); err != nil || now.Spot != nil || now.Revision != left.Revision {
			t.Fatalf("%s: %+v, %v", what, now, err)
		}
		return stale
	}
	op := nuid.Next()
	for _, s := range stepsOfMove[:3] {
		ch, err := s.do(ctx, p, spot, op)
		spot = mustChange(t, ch, err).Entry
	}
	if look("the spot has moved") == 0 {
		t.Fatal("no answer of the replica that is behind was provoked")
	}
	ch, err = p.CloseObject(ctx, spot, n2)
	mustChange(t, ch, err)
	look("the spot is closed")
}
