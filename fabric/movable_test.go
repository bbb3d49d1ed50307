package fabric_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"natsfabric/fabric"
	"natsfabric/fabrictest"
	"natsfabric/fence"
	"natsfabric/kvlocation"
	"natsfabric/objects"
	"natsfabric/outcome"
)

// journal is what objects ran, kept outside of them: a message is "<sender>:<number>".
type journal struct {
	mu  sync.Mutex
	ran map[string][]string // by object, in the order of the turns
}

func (j *journal) note(object, message string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.ran == nil {
		j.ran = map[string][]string{}
	}
	j.ran[object] = append(j.ran[object], message)
}

// check wants that each sender's messages to each object ran once, in order, and that none of those that a sender saw
// replied is missing.
func (j *journal) check(t *testing.T, replied map[string]int) {
	t.Helper()
	j.mu.Lock()
	defer j.mu.Unlock()
	for object, messages := range j.ran {
		last := map[string]int{}
		for _, m := range messages {
			sender, number, _ := strings.Cut(m, ":")
			n, _ := strconv.Atoi(number)
			if n != last[sender]+1 {
				t.Errorf("%s ran message %d of %s after %d", object, n, sender, last[sender])
			}
			last[sender] = n
		}
		for sender, n := range last {
			if want := replied[object+"/"+sender]; n != want {
				t.Errorf("%s ran %d messages of %s, who saw %d replied", object, n, sender, want)
			}
		}
	}
}

// tally is an object that moves: its state is the number of its turns, and as many bytes as its creator asked for.
// "token" answers with the fencing token.
type tally struct {
	j    *journal
	name string
	n    int
	pad  []byte
}

func (c *tally) Handle(ctx context.Context, req *objects.Request) (objects.Reply, error) {
	if string(req.Data()) == "token" {
		token, err := fence.FromContext(ctx)
		return objects.Reply{Data: []byte(token.String())}, err
	}
	c.n++
	c.j.note(c.name, string(req.Data()))
	return objects.Reply{Data: strconv.AppendInt(nil, int64(c.n), 10)}, nil
}

// Capture is the number of turns before the rest.
func (c *tally) Capture(context.Context, *objects.Self) (objects.State, error) {
	return objects.State{Version: 1, Data: append(binary.BigEndian.AppendUint64(nil, uint64(c.n)), c.pad...)}, nil
}

// Restore takes it back.
func (c *tally) Restore(_ context.Context, _ *objects.Self, s objects.State) error {
	if s.Version != 1 {
		return objects.ErrStateVersion
	}
	c.n, c.pad = int(binary.BigEndian.Uint64(s.Data)), s.Data[8:]
	return nil
}

// tallies are types that move, as an Actor, a Spot whose members move one by one, and a Spot that takes them along.
func tallies(j *journal) []objects.Type {
	factory := func(_ context.Context, self *objects.Self, input []byte) (objects.Object, error) {
		c := &tally{j: j, name: objectName(self)}
		if len(input) > 0 {
			n, err := strconv.Atoi(string(input))
			if err != nil {
				return nil, err
			}
			c.pad = make([]byte, n)
		}
		return c, nil
	}
	return []objects.Type{
		{Name: "tally", Class: kvlocation.ClassActor, New: factory, Move: objects.MoveState},
		{Name: "room", Class: kvlocation.ClassUserSpot, New: factory, Move: objects.MoveState},
		{Name: "hall", Class: kvlocation.ClassUserSpot, New: factory, Move: objects.MoveState, Members: objects.SpotWide},
		{Name: "tally", Class: kvlocation.ClassInstanceSpot, New: factory, Move: objects.MoveState},
	}
}

// objectName is the name under which a journal knows an object.
func objectName(self *objects.Self) string {
	if self.Class() == kvlocation.ClassActor {
		return "actor/" + self.ID()
	}
	return "spot/" + self.ID()
}

// shortFollow lets a node that is relocated go soon; its routes must be as short.
var shortFollow = fabric.Relocation{FollowTime: 6 * time.Second}

// load sends to objects without a pause, one request at a time per sender and object.
type load struct {
	stop    chan struct{}
	wg      sync.WaitGroup
	sent    atomic.Int64
	mu      sync.Mutex
	replied map[string]int
	errs    []error
}

func newLoad() *load { return &load{stop: make(chan struct{}), replied: map[string]int{}} }

// from lets a sender begin.
func (l *load) from(sender, object string, request func(ctx context.Context, data []byte) (objects.Reply, error)) {
	l.wg.Go(func() {
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for n := 1; ; n++ {
			select {
			case <-l.stop:
				return
			case <-tick.C:
			}
			ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
			_, err := request(ctx, fmt.Appendf(nil, "%s:%d", sender, n))
			cancel()
			l.sent.Add(1)
			l.mu.Lock()
			if err == nil {
				l.replied[object+"/"+sender] = n
			} else {
				l.errs = append(l.errs, fmt.Errorf("%s to %s: %w", sender, object, err))
			}
			l.mu.Unlock()
			if err != nil {
				return
			}
		}
	})
}

// some waits until n more requests have ended.
func (l *load) some(t *testing.T, n int64) {
	t.Helper()
	want := l.sent.Load() + n
	fabrictest.Eventually(t, 60*time.Second, "requests go on", func() bool { return l.sent.Load() >= want })
}

// end stops the senders and wants that none of them failed.
func (l *load) end(t *testing.T) map[string]int {
	t.Helper()
	close(l.stop)
	l.wg.Wait()
	for _, err := range l.errs {
		t.Errorf("a request failed: %v", err)
	}
	return l.replied
}

// refused reports whether err says that nothing ran, with this kind.
func refused(err error, kind outcome.Kind) bool {
	return errors.Is(err, kind) && errors.Is(err, outcome.NotAccepted)
}

// awaitMember waits until n's list says of rid that it is in a state.
func awaitMember(t *testing.T, n *fabric.Node, rid string, want kvlocation.NodeState) {
	t.Helper()
	fabrictest.Eventually(t, 60*time.Second, fmt.Sprintf("%s is listed as %s", rid, want), func() bool {
		m, ok := n.Members().Get(rid)
		return ok && m.State == want
	})
}
