package relocate_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"natsfabric/kvlocation"
	"natsfabric/objects"
	"natsfabric/outcome"
)

// ledger is what the objects of a test have run, over all nodes: kept outside of every node.
type ledger struct {
	mu    sync.Mutex
	runs  map[string][]run // by object
	hooks hooks
}

// hooks are what a test makes its objects do.
type hooks struct {
	turn    func(ctx context.Context, self *objects.Self, m message) error
	capture func(ctx context.Context, self *objects.Self) error
	restore func(ctx context.Context, self *objects.Self) error
	factory func(ctx context.Context, self *objects.Self) error
}

// run is one turn.
type run struct {
	rid    string
	og     uint64
	sender string
	seq    int
}

// message is what senders send.
type message struct {
	Sender string `json:"sender"`
	Seq    int    `json:"seq"`
	Pad    []byte `json:"pad,omitempty"`
}

func (m message) encode() []byte {
	data, err := json.Marshal(m)
	if err != nil {
		panic(err)
	}
	return data
}

func newLedger() *ledger { return &ledger{runs: map[string][]run{}} }

func (l *ledger) set(f func(*hooks)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f(&l.hooks)
}

func (l *ledger) get() hooks {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.hooks
}

// of returns what an object has run.
func (l *ledger) of(id string) []run {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.runs[id])
}

// actor is a type whose objects write their turns down and carry a count as their state.
func (l *ledger) actor(name string) objects.Type { return l.typ(name, kvlocation.ClassActor) }

func (l *ledger) typ(name string, class objects.Class) objects.Type {
	return objects.Type{Name: name, Class: class, Move: objects.MoveState, New: func(ctx context.Context, self *objects.Self, _ []byte) (objects.Object, error) {
		if f := l.get().factory; f != nil {
			if err := f(ctx, self); err != nil {
				return nil, err
			}
		}
		return &counter{l: l}, nil
	}}
}

type counter struct {
	l     *ledger
	count int
	pad   []byte // so that the state is as large as a test wants
}

func (c *counter) Handle(ctx context.Context, req *objects.Request) (objects.Reply, error) {
	var m message
	if err := json.Unmarshal(req.Data(), &m); err != nil {
		return objects.Reply{}, err
	}
	self := req.Self()
	c.l.mu.Lock()
	c.l.runs[self.ID()] = append(c.l.runs[self.ID()], run{self.RID(), self.OwnerGeneration(), m.Sender, m.Seq})
	f := c.l.hooks.turn
	c.l.mu.Unlock()
	if size, ok := strings.CutPrefix(m.Sender, "pad:"); ok {
		var n int
		fmt.Sscan(size, &n)
		c.pad = make([]byte, n)
	}
	c.count++
	if f != nil {
		if err := f(ctx, self, m); err != nil {
			return objects.Reply{}, err
		}
	}
	return objects.Reply{Data: fmt.Appendf(nil, "%d %s", c.count, self.RID())}, nil
}

func (c *counter) Capture(ctx context.Context, self *objects.Self) (objects.State, error) {
	if f := c.l.get().capture; f != nil {
		if err := f(ctx, self); err != nil {
			return objects.State{}, err
		}
	}
	data, err := json.Marshal(c.count)
	return objects.State{Version: 1, Data: append(append(data, '\n'), c.pad...)}, err
}

func (c *counter) Restore(ctx context.Context, self *objects.Self, s objects.State) error {
	if f := c.l.get().restore; f != nil {
		if err := f(ctx, self); err != nil {
			return err
		}
	}
	if s.Version != 1 {
		return objects.ErrStateVersion
	}
	head, pad, _ := strings.Cut(string(s.Data), "\n")
	c.pad = []byte(pad)
	return json.Unmarshal([]byte(head), &c.count)
}

// sender sends one request after the other to one object, and writes down what it was told.
type sender struct {
	name string
	stop chan struct{}
	done chan struct{}

	mu   sync.Mutex
	told []outcome.Acceptance // by sequence
	errs []error
	gap  time.Duration // the longest time between two good answers
}

// send starts a sender. every is the pause between two requests, timeout that of one.
func (n *node) send(id, name string, every, timeout time.Duration) *sender {
	return n.sendLarge(id, name, every, timeout, 0)
}

// sendLarge is send with so many bytes in each request.
func (n *node) sendLarge(id, name string, every, timeout time.Duration, size int) *sender {
	s := &sender{name: name, stop: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(s.done)
		last := time.Now()
		tick := time.NewTicker(every)
		defer tick.Stop()
		for seq := 0; ; seq++ {
			select {
			case <-s.stop:
				return
			case <-tick.C:
			}
			ctx, cancel := context.WithTimeout(context.Background(), timeout)
			_, err := n.objects.Actors().Request(ctx, id, message{name, seq, make([]byte, size)}.encode())
			cancel()
			now := time.Now()
			s.mu.Lock()
			acc := outcome.Accepted
			if err != nil {
				acc = outcome.AcceptanceOf(err)
				s.errs = append(s.errs, err)
			} else {
				s.gap, last = max(s.gap, now.Sub(last)), now
			}
			s.told = append(s.told, acc)
			s.mu.Unlock()
		}
	}()
	n.b.t.Cleanup(func() { s.end() })
	return s
}

func (s *sender) end() {
	select {
	case <-s.stop:
	default:
		close(s.stop)
	}
	<-s.done
}

// sent is how many requests have ended.
func (s *sender) sent() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.told)
}

func (s *sender) failures() []error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.errs)
}

// judge compares what senders were told with what an object ran: nothing accepted is lost, nothing refused ran, nothing ran twice (I2, I3),
// the order of each sender is kept (I4), and owner generations never fall (I6).
func (l *ledger) judge(t testing.TB, id string, senders ...*sender) {
	t.Helper()
	ran := map[string]map[int]int{}
	lastSeq, og := map[string]int{}, uint64(0)
	for _, r := range l.of(id) {
		if ran[r.sender] == nil {
			ran[r.sender], lastSeq[r.sender] = map[int]int{}, -1
		}
		ran[r.sender][r.seq]++
		if r.seq < lastSeq[r.sender] {
			t.Errorf("%s: message %d of %s ran after %d (I4)", id, r.seq, r.sender, lastSeq[r.sender])
		}
		if r.og < og {
			t.Errorf("%s: a turn of owner generation %d after one of %d (I6)", id, r.og, og)
		}
		lastSeq[r.sender], og = r.seq, r.og
	}
	for _, s := range senders {
		s.mu.Lock()
		for seq, acc := range s.told {
			switch n := ran[s.name][seq]; {
			case n > 1:
				t.Errorf("%s: message %d of %s ran %d times (I2)", id, seq, s.name, n)
			case n == 0 && acc == outcome.Accepted:
				t.Errorf("%s: message %d of %s was accepted and did not run (I3)", id, seq, s.name)
			case n > 0 && acc == outcome.NotAccepted:
				t.Errorf("%s: message %d of %s was refused and ran (I3)", id, seq, s.name)
			}
		}
		s.mu.Unlock()
	}
}
