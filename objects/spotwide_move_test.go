package objects

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"natsfabric/fabrictest"
	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// tracker is a movable object that counts its turns.
type tracker struct {
	w     *roomBed
	count uint64
}

func (k *tracker) Activate(ctx context.Context, self *Self) error { return k.w.raise(ctx, self) }

func (k *tracker) Handle(ctx context.Context, req *Request) (Reply, error) {
	if f := k.w.onTurn; f != nil {
		if reply, err, done := f(ctx, req); done {
			return reply, err
		}
	}
	k.count++
	self := req.Self()
	return Reply{Data: fmt.Appendf(nil, "%s %d %d", self.RID(), self.OwnerGeneration(), k.count)}, nil
}

func (k *tracker) Capture(context.Context, *Self) (State, error) {
	return State{Data: binary.AppendUvarint(nil, k.count)}, nil
}

func (k *tracker) Restore(_ context.Context, _ *Self, s State) error {
	k.count, _ = binary.Uvarint(s.Data)
	return nil
}

// roomBed is a mesh with nodes a and b that have movable players and SpotWide games, and a client.
type roomBed struct {
	*mesh
	t       *testing.T
	tokens  *tokens
	onTurn  func(context.Context, *Request) (Reply, error, bool)
	a, b, c *meshNode
	game    SpotRef
}

func (w *roomBed) raise(ctx context.Context, self *Self) error {
	return (&guarded{tokens: w.tokens}).Activate(ctx, self)
}

func newRoomBed(t *testing.T, opts ...nodeOption) *roomBed {
	t.Helper()
	w := &roomBed{mesh: newMesh(t), t: t, tokens: &tokens{seen: map[string][]uint64{}}}
	made := func(context.Context, *Self, []byte) (Object, error) { return &tracker{w: w}, nil }
	opts = append(opts, types(
		Type{Name: "player", Class: kvlocation.ClassActor, Move: MoveState, New: made},
		Type{Name: "game", Class: kvlocation.ClassUserSpot, Move: MoveState, Members: SpotWide, New: made},
	))
	w.a, w.b, w.c = w.node("a", opts...), w.node("b", opts...), w.client()
	for _, n := range []*meshNode{w.a, w.b} {
		n.MoveWith(func(ctx context.Context, key kvlocation.ObjectKey, generation uint64, to string) error {
			return w.move(ctx, n, w.at(to), key)
		})
	}
	w.taken(func() (err error) {
		w.game, err = w.c.Spots().Create(w.ctx(), "game", "g", nil, AtNode("a"))
		return err
	})
	return w
}

func (w *roomBed) at(rid string) *meshNode {
	if rid == "a" {
		return w.a
	}
	return w.b
}

func (w *roomBed) player(id, at string) ActorRef {
	w.t.Helper()
	var ref ActorRef
	w.taken(func() (err error) { ref, err = w.c.Actors().Create(w.ctx(), "player", id, nil, AtNode(at)); return err })
	return ref
}

func (w *roomBed) join(a ActorRef) {
	w.t.Helper()
	w.taken(func() error { return w.c.Actors().Join(w.ctx(), a, w.game) })
}

// wantAnswer asks until the route is known: a stale one ends one call.
func (w *roomBed) wantAnswer(a ActorRef, rid string, ownerGeneration, count uint64) {
	w.t.Helper()
	want := fmt.Sprintf("%s %d %d", rid, ownerGeneration, count)
	fabrictest.Eventually(w.t, long, "it answers "+want, func() bool {
		reply, err := w.c.Actors().Request(w.ctx(), a.ID, nil)
		if err == nil && string(reply.Data) != want {
			w.t.Fatalf("it answered %q, not %q", reply.Data, want)
		}
		return err == nil
	})
}

// move takes a unit from one node to the other: the three writes of a move, with the cargo passed in memory.
func (w *roomBed) move(ctx context.Context, from, to *meshNode, key kvlocation.ObjectKey) (err error) {
	d, err := from.Depart(ctx, key, 0)
	if err != nil {
		return err
	}
	fail := func(err error) error { d.Abort(err); return err }
	e, err := d.Entry(ctx)
	if err != nil {
		return fail(err)
	}
	op := nuid.Next()
	arrival, err := to.Expect(d.Unit(), op, time.Now().Add(long))
	if err != nil {
		return fail(err)
	}
	fail = func(err error) error { arrival.Abort(err); d.Abort(err); return err }
	prepared, err := from.store.Prepare(ctx, e, from.owner(), op, to.owner())
	if err != nil {
		return fail(err)
	}
	undo := func(err error) error {
		if _, aerr := from.store.Abort(w.t.Context(), prepared.Entry, from.owner(), op); aerr != nil {
			w.t.Errorf("the move cannot be given up: %v", aerr)
		}
		return fail(err)
	}
	if err := d.Seal(ctx); err != nil {
		return undo(err)
	}
	cargo, err := d.Capture(ctx)
	if err != nil {
		return undo(err)
	}
	data, err := cargo.MarshalBinary()
	if err != nil {
		return undo(err)
	}
	if cargo, err = ParseCargo(data); err != nil {
		return undo(err)
	}
	if err := arrival.Load(ctx, cargo); err != nil {
		return undo(err)
	}
	accepted, err := from.store.Accept(ctx, prepared.Entry, from.owner(), op)
	if err != nil {
		return undo(err)
	}
	d.Accepted()
	committed, err := to.store.Commit(ctx, accepted.Entry, to.owner(), op, 0)
	if err != nil {
		return err
	}
	err = arrival.Open(committed.Entry, 0)
	d.Finish(0, to.owner(), committed.Entry.Record.OwnerGeneration, 30*time.Second)
	return err
}

func (w *roomBed) moveGame(from, to *meshNode) {
	w.t.Helper()
	if err := w.move(w.ctx(), from, to, spotKey(w.game)); err != nil {
		w.t.Fatal(err)
	}
}

// A SpotWide Spot moves with its members: state, membership and what is in no record go along, and every member's owner
// generation grows by one with the Spot's.
func TestSpotWideMove(t *testing.T) {
	t.Parallel()
	w := newRoomBed(t)
	u, v, away := w.player("u", "a"), w.player("v", "a"), w.player("away", "b")
	w.join(u)
	w.wantAnswer(u, "a", 2, 1)
	w.join(v)
	if err := w.c.Actors().Leave(w.ctx(), v, w.game); err != nil {
		t.Fatal(err)
	}
	w.join(v)
	w.wantAnswer(v, "a", 4, 1)
	w.join(away) // which moves it here, as a unit
	w.wantAnswer(away, "a", 3, 1)
	if err := w.move(w.ctx(), w.a, w.b, actorKey(u)); !errors.Is(err, ErrMember) {
		t.Fatalf("a member moved alone: %v", err)
	}

	w.moveGame(w.a, w.b)
	w.wantAnswer(u, "b", 3, 2)
	w.wantAnswer(v, "b", 5, 2)
	w.wantAnswer(away, "b", 4, 2)
	if got := must[[]ActorRef](t)(w.c.Spots().Members(w.ctx(), w.game)); !slices.Equal(got, []ActorRef{away, u, v}) {
		t.Fatalf("%v", got)
	}
	if r := must[BroadcastResult](t)(w.c.Spots().Broadcast(w.ctx(), w.game, nil)); r.Accepted != 3 {
		t.Fatalf("%+v", r)
	}
	loc := must[Location](t)(w.c.Actors().Find(w.ctx(), "u"))
	if loc.RID != "b" || loc.OwnerGeneration != 3 || !loc.ByReference {
		t.Fatalf("%+v", loc)
	}
	// At the target they leave, join and end as at the source.
	if err := w.c.Actors().Leave(w.ctx(), u, w.game); err != nil {
		t.Fatal(err)
	}
	w.wantAnswer(u, "b", 4, 4)
	w.moveGame(w.b, w.a)
	w.wantAnswer(u, "b", 4, 5) // it stays
	w.wantAnswer(v, "a", 6, 4)
	w.join(u) // and comes after it
	w.wantAnswer(u, "a", 6, 6)
	if err := w.c.Actors().Destroy(w.ctx(), v); err != nil {
		t.Fatal(err)
	}
	if err := w.c.Spots().Close(w.ctx(), w.game); err != nil {
		t.Fatal(err)
	}
	if _, err := w.c.Actors().Find(w.ctx(), "u"); err == nil {
		t.Fatal("a member is there without its Spot")
	}
	for id, want := range map[string][]uint64{"u": {1, 2, 3, 4, 5, 6}, "v": {1, 2, 3, 4, 5, 6}, "away": {1, 2, 3, 4, 5}} {
		if got := w.tokens.of(id); !slices.Equal(got, want) {
			t.Errorf("the guard of %s was raised with %v, not %v", id, got, want)
		}
	}
}

// While turns of some members wait for the Spot and turns of the Spot wait for others, all the time, the Spot moves there and
// back: what they wait for runs before the unit rests. Nothing is lost or run twice, and each sender's messages stay in order.
func TestSpotWideMoveBusy(t *testing.T) {
	t.Parallel()
	w := newRoomBed(t)
	var mu sync.Mutex
	heard := map[string][]string{} // by object
	w.onTurn = func(ctx context.Context, req *Request) (Reply, error, bool) {
		self, data := req.Self(), string(req.Data())
		mu.Lock()
		heard[self.ID()] = append(heard[self.ID()], data)
		mu.Unlock()
		var err error
		switch do, rest, _ := strings.Cut(data, " "); do {
		case "tell": // a player tells the game, twice
			if err = self.Spots().Send(ctx, "g", []byte("told1 "+rest)); err == nil {
				_, err = self.Spots().Request(ctx, "g", []byte("told2 "+rest))
			}
		case "ask": // the game asks a player
			_, err = self.Actors().Request(ctx, "p"+rest[:1], []byte("asked "+rest))
		}
		return Reply{}, err, true
	}
	const players, rounds = 4, 6
	for i := range players {
		w.join(w.player(fmt.Sprintf("p%d", i), "a"))
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	sent, ran := make([]int, players), make([]int, players)
	for i := range players {
		wg.Go(func() {
			for ; ; sent[i]++ {
				select {
				case <-stop:
					return
				default:
				}
				var err error
				if i < players/2 {
					_, err = w.c.Actors().Request(w.ctx(), fmt.Sprintf("p%d", i), fmt.Appendf(nil, "tell %d %d", i, sent[i]))
				} else { // one that does not wait for the game itself
					_, err = w.c.Spots().Request(w.ctx(), "g", fmt.Appendf(nil, "ask %d %d", i, sent[i]))
				}
				switch {
				case err == nil:
					ran[i]++
				case !errors.Is(err, outcome.Unavailable) && !strings.Contains(err.Error(), "Unavailable"): // a stale route ends one call, within a turn too
					t.Errorf("%d: %v", i, err)
					return
				}
			}
		})
	}
	from, to := w.a, w.b
	for i := range rounds {
		// The load comes first, and then the move.
		fabrictest.Eventually(t, long, "the load goes on", func() bool { mu.Lock(); defer mu.Unlock(); return len(heard["g"]) > 40*i })
		if err := w.move(w.ctxFor(20*time.Second), from, to, spotKey(w.game)); err != nil {
			t.Errorf("move %d: %v", i, err)
			break
		}
		from, to = to, from
	}
	close(stop)
	wg.Wait()
	seen, last := map[string]bool{}, map[string]int{}
	for id, list := range heard {
		for _, data := range list {
			var what string
			var i, n int
			if _, err := fmt.Sscan(data, &what, &i, &n); err != nil {
				t.Fatal(err)
			}
			if seen[id+what+data] {
				t.Errorf("%s has run %q twice", id, data)
			}
			seen[id+what+data] = true
			if key := fmt.Sprint(id, what, i); n < last[key] {
				t.Errorf("%s has run %q behind number %d", id, data, last[key])
			} else {
				last[key] = n
			}
			if what == "told2" && !seen[id+"told1"+fmt.Sprintf("told1 %d %d", i, n)] {
				t.Errorf("%s has run %q before what was sent before it", id, data)
			}
		}
	}
	for i, n := range ran {
		if n == 0 {
			t.Errorf("nothing of %d has run", i)
		}
	}
}

// A member's turn that waits for the Spot when the unit is sealed ends, also when the Spot has accepted its request before, and
// nothing else of the unit comes.
func TestSpotWideMoveWaitedFor(t *testing.T) {
	t.Parallel()
	w := newRoomBed(t)
	running, release := make(chan struct{}), make(chan struct{})
	w.onTurn = func(ctx context.Context, req *Request) (reply Reply, err error, done bool) {
		switch string(req.Data()) {
		case "hold":
			close(running)
			<-release
		case "tell":
			_, err = req.Self().Spots().Request(ctx, "g", []byte("told"))
		}
		return Reply{}, err, true
	}
	w.join(w.player("p", "a"))
	ended := make(chan error, 3)
	go func() {
		_, err := w.c.Spots().Request(w.ctx(), "g", []byte("hold"))
		ended <- err
	}()
	<-running
	go func() {
		_, err := w.c.Actors().Request(w.ctx(), "p", []byte("tell"))
		ended <- err
	}()
	game := w.a.rt.spotHere(w.game)
	fabrictest.Eventually(t, long, "the game has accepted it", func() bool { n, _ := game.waiting(); return n == 1 })
	go func() { ended <- w.move(w.ctxFor(20*time.Second), w.a, w.b, spotKey(w.game)) }()
	fabrictest.Eventually(t, long, "the game is sealed", func() bool { return game.is() == objectSealed })
	close(release)
	for range cap(ended) {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// seat makes players that are members of the game, without a message: the first one's record by the writes of a creation and a
// join, those of the others as copies of it.
func (w *roomBed) seat(n *meshNode, ids []string) {
	w.t.Helper()
	ctx, owner, spot := w.ctx(), n.owner(), n.rt.spotHere(w.game)
	made := must[kvlocation.Change](w.t)(n.store.Create(ctx, kvlocation.NewObject{
		Key: kvlocation.ObjectKey{Kind: kvlocation.KindActor, ID: ids[0]}, Class: kvlocation.ClassActor, Type: "player", Owner: owner, AssumeMissing: true,
	}))
	made = must[kvlocation.Change](w.t)(n.store.Ready(ctx, made.Entry, owner))
	made = must[kvlocation.Change](w.t)(n.store.Join(ctx, made.Entry, owner, n.heldEntry(spot)))
	generation, revisions := made.Entry.Generation(), []uint64{made.Entry.Revision}
	record := must[[]byte](w.t)(json.Marshal(made.Entry.Record))
	js := must[jetstream.JetStream](w.t)(jetstream.New(n.nc, jetstream.WithPublishAsyncMaxPending(500)))
	var acks []jetstream.PubAckFuture
	for _, id := range ids[1:] {
		acks = append(acks, must[jetstream.PubAckFuture](w.t)(js.PublishAsync(w.writesOf(kvlocation.KindActor, id), record, jetstream.WithStallWait(long))))
	}
	for _, ack := range acks {
		select {
		case a := <-ack.Ok():
			revisions = append(revisions, a.Sequence)
		case err := <-ack.Err():
			w.t.Fatal(err)
		case <-ctx.Done():
			w.t.Fatal(ctx.Err())
		}
	}
	reg := n.rt.typeOf(kvlocation.ClassActor, "player")
	ref, _ := made.Entry.Record.Reference()
	for i, id := range ids {
		if err := n.rt.reserve(reg); err != nil {
			w.t.Fatal(err)
		}
		o := n.rt.newObject(reg, id)
		o.identify(generation, 2)
		n.becomeMember(o, wideRef{w.game, ref.Offset}, revisions[i])
		n.rt.insert(o)
		o.open(&tracker{w: w}, generation, 2, owner.Lease, nil)
		n.membersOf(spot).add(ActorRef{id, generation}, revisions[i])
	}
}

// A Spot with 10,000 members moves by the writes of one record.
func TestSpotWideMoveWrites(t *testing.T) {
	t.Parallel()
	w := newRoomBed(t)
	const members = 10_000
	ids := make([]string, members)
	for i := range ids {
		ids[i] = fmt.Sprintf("p%d", i)
	}
	w.seat(w.a, ids)
	nc := w.connect(w.server.URL(), "watch", nil)
	defer nc.Close()
	writes := must[*nats.Subscription](t)(nc.SubscribeSync(w.writesOf(kvlocation.KindActor, "*")))
	if err := nc.FlushTimeout(long); err != nil {
		t.Fatal(err)
	}
	spot := w.entry(w.c, kvlocation.KindSpot, "g")
	w.moveGame(w.a, w.b)
	now := w.entry(w.c, kvlocation.KindSpot, "g")
	if now.Record.Write != spot.Record.Write+3 || !now.Record.Owner.Is("b", w.b.cfg.Lifecycle) {
		t.Fatalf("%d writes of the Spot's record: %+v", now.Record.Write-spot.Record.Write, now.Record)
	}
	if err := nc.FlushTimeout(long); err != nil {
		t.Fatal(err)
	}
	if n, _, err := writes.Pending(); n != 0 || err != nil {
		t.Fatalf("%d writes of members' records, %v", n, err)
	}
	if r := must[BroadcastResult](t)(w.b.Spots().Broadcast(w.ctx(), w.game, nil)); r.Accepted != members {
		t.Fatalf("%d of %d heard a broadcast", r.Accepted, r.Members)
	}
	w.wantAnswer(ActorRef{"p17", w.entry(w.c, kvlocation.KindActor, "p17").Generation()}, "b", 3, 2)
}
