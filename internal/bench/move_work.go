package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"natsfabric/internal/wire"
	"natsfabric/objects"
)

// What a caller can do with an Actor that moves. The payload is the size of its state.
const (
	doMove  = "move"  // one operation is a move, and its time the longest gap that the Actor's callers see
	doBulk  = "bulk"  // one operation is a move, from its begin to its end
	doCarry = "carry" // one operation is a request at a steady pace, while the Actor moves all the time or not
)

// The sides that only moves have.
const (
	besideSide = "beside" // while an Actor with much state moves between the same nodes
	stillSide  = "still"  // without moves
)

// carryPace is how many requests a second doCarry sends.
const carryPace = 200

// largeState is the state of the Actor that moves beside others.
const largeState = 16 << 20

// movePause is the time between two moves of one Actor: a caller's route is the new one by then.
const movePause = 20 * time.Millisecond

// carryPause is the time between two moves while requests come at a steady pace.
const carryPause = 100 * time.Millisecond

// carried is an Actor that the caller has moved from member to member.
type carried struct {
	id string
	at int
	// asked is how many requests were answered; the Actor counts, too.
	asked atomic.Uint64
}

// carrier makes the Actor of a slice, at the first member.
func (r *callerRole) carrier(ctx context.Context, id string, size int) (*carried, error) {
	if c := r.carriers[id]; c != nil {
		return c, nil
	}
	_, err := r.node.Actors().Create(ctx, carryType, id, []byte(strconv.Itoa(size)), objects.AtNode(memberRID(0)))
	if err != nil {
		return nil, err
	}
	if r.carriers == nil {
		r.carriers = make(map[string]*carried)
	}
	r.carriers[id] = &carried{id: id}
	return r.carriers[id], nil
}

// memberRID is the name of a member process.
func memberRID(i int) string { return fmt.Sprintf("member-%d", i) }

// move moves an Actor to the other one of the first two members, and returns what its source says of that.
func (r *callerRole) move(c *carried) (reply moveReply, err error) {
	to := 1 - c.at
	b, err := json.Marshal(moveArgs{ID: c.id, To: memberRID(to)})
	if err != nil {
		return reply, err
	}
	m, err := r.ctl.Request(moveOf(memberRID(c.at)), b, moveTimeout)
	if err != nil {
		return reply, err
	}
	if err := json.Unmarshal(m.Data, &reply); err != nil {
		return reply, err
	}
	if reply.Error != "" {
		return reply, fmt.Errorf("moving %s to %s: %s", c.id, memberRID(to), reply.Error)
	}
	c.at = to
	return reply, nil
}

// drained is what a member has moved away, and how long that took.
type drained struct {
	Objects int           `json:"objects"`
	Took    time.Duration `json:"took"`
}

// drain has a member move all that it has: what came from another one that was drained, too.
func (r *callerRole) drain(member int) (d drained, err error) {
	begin := time.Now()
	m, err := r.ctl.Request(drainOf(memberRID(member)), nil, moveTimeout)
	if err != nil {
		return d, err
	}
	d.Took = time.Since(begin)
	reply, err := decode[moveReply](m.Data)
	if err == nil && reply.Error != "" {
		err = fmt.Errorf("draining %s: %s", memberRID(member), reply.Error)
	}
	d.Objects = reply.Result.Objects
	return d, err
}

// ask sends one request, and checks that the Actor has counted as many as were answered.
func (r *callerRole) ask(c *carried, data []byte) error {
	if _, err := r.node.Actors().Request(context.Background(), c.id, data); err != nil {
		return err
	}
	c.asked.Add(1)
	return nil
}

// counted asks the Actor how many requests it has run: as many as were answered, none lost and none twice. Nobody else
// may ask it.
func (r *callerRole) counted(c *carried) error {
	reply, err := r.node.Actors().Request(context.Background(), c.id, []byte{0})
	if err != nil {
		return err
	}
	if n, want := beUint(reply.Data), c.asked.Add(1); n != want {
		return fmt.Errorf("%s ran %d requests, and %d were answered", c.id, n, want)
	}
	return nil
}

func beUint(b []byte) (n uint64) {
	for _, c := range b {
		n = n<<8 | uint64(c)
	}
	return n
}

// moveWork returns what a slice does with an Actor that moves.
func (r *callerRole) moveWork(ctx context.Context, k sliceKey) (work, error) {
	switch {
	case k.Do == doMove && k.Side == rawSide:
		return r.rawMoveWork(ctx, k)
	case k.Do == doBulk && k.Side == rawSide:
		return r.rawBulkWork(ctx, k)
	}
	c, err := r.carrier(ctx, fmt.Sprintf("%s-%d", k.Do, k.Payload), k.Payload)
	if err != nil {
		return work{}, err
	}
	switch k.Do {
	case doBulk:
		return work{alone: true, op: func(int) error { _, err := r.move(c); return err }}, nil
	case doCarry:
		return r.carryWork(k, c), nil
	}
	w := r.gapWork(k, c)
	if k.Side == besideSide {
		large, err := r.carrier(ctx, "large", largeState)
		if err != nil {
			return work{}, err
		}
		return r.beside(w, large, movePause), nil
	}
	return w, nil
}

// gap is the longest time between two answers in a row.
type gap struct {
	mu      sync.Mutex
	last    time.Time
	longest time.Duration
	answers int
}

func (g *gap) answered() {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	if !g.last.IsZero() {
		g.longest = max(g.longest, now.Sub(g.last))
	}
	g.last = now
	g.answers++
}

// begin forgets the gaps so far.
func (g *gap) begin() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.longest = 0
}

func (g *gap) read() (longest time.Duration, answers int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.longest, g.answers
}

// gapWork has k.Callers callers keep the Actor's mailbox full; one operation is a move, and takes as long as the
// longest gap between two answers meanwhile.
func (r *callerRole) gapWork(k sliceKey, c *carried) work {
	var g *gap
	var stop func() error
	data := make([]byte, 16)
	longest := time.Duration(0)
	return work{
		alone: true,
		before: func(context.Context) error {
			g = &gap{}
			stop = keepAsking(k.Callers, func() error {
				err := r.ask(c, data)
				g.answered()
				return err
			})
			return nil
		},
		op: func(int) error {
			time.Sleep(movePause)
			g.begin()
			if _, err := r.move(c); err != nil {
				return err
			}
			_, before := g.read()
			for deadline := time.Now().Add(moveTimeout); ; time.Sleep(time.Millisecond) {
				var answers int
				if longest, answers = g.read(); answers > before+k.Callers {
					r.noteGap(k.Side, longest)
					return nil
				}
				if time.Now().After(deadline) {
					return fmt.Errorf("%s answers no more", c.id)
				}
			}
		},
		took: func() time.Duration { return longest },
		after: func() (Sample, error) {
			return Sample{Load: 0}, errors.Join(stop(), r.counted(c)) // no other moves
		},
	}
}

func (r *callerRole) noteGap(side string, d time.Duration) {
	if r.gaps == nil {
		r.gaps = make(map[string][]float64)
	}
	r.gaps[side] = append(r.gaps[side], float64(d)/float64(time.Millisecond))
}

// carryWork asks the Actor at a steady pace, while it moves all the time unless k says that it does not.
func (r *callerRole) carryWork(k sliceKey, c *carried) work {
	data := make([]byte, 16)
	w := work{
		every: pace(k.Callers, carryPace),
		op:    func(int) error { return r.ask(c, data) },
		after: func() (Sample, error) { return Sample{Load: 0}, r.counted(c) },
	}
	if k.Side == stillSide {
		return w
	}
	return r.beside(w, c, carryPause)
}

// beside has another Actor, or the same, move all the time while w runs; the sample says how often it did.
func (r *callerRole) beside(w work, c *carried, pause time.Duration) work {
	var stop func() error
	var begin time.Time
	var moves atomic.Int64
	before, after := w.before, w.after
	w.before = func(ctx context.Context) error {
		begin = time.Now()
		moves.Store(0)
		stop = keepAsking(1, func() error {
			if _, err := r.move(c); err != nil {
				return err
			}
			moves.Add(1)
			time.Sleep(pause)
			return nil
		})
		if before == nil {
			return nil
		}
		return before(ctx)
	}
	w.after = func() (Sample, error) {
		err := stop()
		s := Sample{Load: float64(moves.Load()) / time.Since(begin).Seconds()}
		if after != nil {
			_, more := after()
			err = errors.Join(err, more)
		}
		return s, err
	}
	return w
}

// keepAsking has n callers run op again and again until stop, which returns the first error of each.
func keepAsking(n int, op func() error) (stop func() error) {
	var over atomic.Bool
	var wg sync.WaitGroup
	errs := make([]error, n)
	for i := range n {
		wg.Go(func() {
			for !over.Load() && errs[i] == nil {
				errs[i] = op()
			}
		})
	}
	return func() error {
		over.Store(true)
		wg.Wait()
		return errors.Join(errs...)
	}
}

// moveTrips is how many messages go back and forth in the pause of a move, beside its two writes.
const moveTrips = 4

// rawMoveWork is what a move cannot do without, by hand and with nothing else going on: two writes of a record, one after
// the other, and four round trips to a member.
func (r *callerRole) rawMoveWork(ctx context.Context, k sliceKey) (work, error) {
	value, err := r.recordValue(ctx, sliceKey{Do: doUpdate, Side: rawSide, Payload: 16, Callers: 1})
	if err != nil {
		return work{}, err
	}
	pair, err := r.casWork(k, value)
	if err != nil {
		return work{}, err
	}
	data := make([]byte, 16)
	return work{alone: true, op: func(int) error {
		for range 2 {
			if err := pair(); err != nil {
				return err
			}
		}
		for range moveTrips {
			if _, err := r.raw.Request(directOf(memberRID(1)), data, rawTimeout); err != nil {
				return err
			}
		}
		return nil
	}}, nil
}

// casWork is one compare-and-set after the other of a key of the slice's own.
func (r *callerRole) casWork(k sliceKey, value []byte) (func() error, error) {
	key := "$KV." + wire.Mesh(r.start.RawMesh).LocationBucket() + "." + k.Do + "." + strconv.Itoa(k.Payload)
	revision, err := r.compareAndSet(key, value, 0)
	return func() (err error) {
		revision, err = r.compareAndSet(key, value, revision)
		return err
	}, err
}

// bulkChunk is how large the raw messages of bulk are.
const bulkChunk = 256 << 10

// rawBulkWork brings as many bytes as a state has through a stream by hand: published without waiting for each answer, and
// read by a consumer.
func (r *callerRole) rawBulkWork(ctx context.Context, k sliceKey) (work, error) {
	js, err := jetstream.New(r.raw, jetstream.WithPublishAsyncMaxPending(64))
	if err != nil {
		return work{}, err
	}
	const subject = "bench.bulk"
	stream, err := js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{Name: "BENCH_BULK", Subjects: []string{subject}, Storage: jetstream.FileStorage, PersistMode: jetstream.AsyncPersistMode, AllowDirect: true})
	if err != nil {
		return work{}, err
	}
	data := make([]byte, min(bulkChunk, k.Payload))
	n := (k.Payload + bulkChunk - 1) / bulkChunk
	return work{
		alone: true,
		op: func(int) error {
			ctx, cancel := context.WithTimeout(context.Background(), moveTimeout)
			defer cancel()
			consumer, err := stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{DeliverPolicy: jetstream.DeliverNewPolicy})
			if err != nil {
				return err
			}
			batch, err := consumer.Fetch(n, jetstream.FetchMaxWait(moveTimeout))
			if err != nil {
				return err
			}
			acks := make([]jetstream.PubAckFuture, n)
			for i := range acks {
				if acks[i], err = js.PublishAsync(subject, data); err != nil {
					return err
				}
			}
			for _, ack := range acks {
				select {
				case <-ack.Ok():
				case err := <-ack.Err():
					return err
				}
			}
			got := 0
			for range batch.Messages() {
				got++
			}
			if got != n {
				return fmt.Errorf("%d of %d parts came: %w", got, n, batch.Error())
			}
			return nil
		},
		after: func() (Sample, error) {
			ctx, cancel := context.WithTimeout(context.Background(), moveTimeout)
			defer cancel()
			// A server lets a stream have 1,000 consumers, and these would stay for minutes.
			names := stream.ConsumerNames(ctx)
			for name := range names.Name() {
				if err := stream.DeleteConsumer(ctx, name); err != nil {
					return nil, err
				}
			}
			return nil, errors.Join(names.Err(), stream.Purge(ctx))
		},
	}, nil
}
