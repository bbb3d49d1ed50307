package bench

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"natsfabric/kvlocation"
	"natsfabric/objects"
	"natsfabric/relocate"
)

// carryType is an Actor that moves with its state: as many bytes as its creation says, and how often it was asked.
const carryType = "carry"

// carryTurn is how long a turn of a carrier takes, so that a few callers keep its mailbox full without keeping the
// processors busy.
const carryTurn = 200 * time.Microsecond

// carrier counts its requests and answers with the count. A request of one byte takes no time.
type carrier struct {
	asked uint64
	state []byte
}

func newCarrier(_ context.Context, self *objects.Self, input []byte) (objects.Object, error) {
	if self.Moved() {
		return &carrier{}, nil
	}
	size, err := strconv.Atoi(string(input))
	return &carrier{state: make([]byte, size)}, err
}

func (c *carrier) Handle(_ context.Context, req *objects.Request) (objects.Reply, error) {
	if len(req.Data()) != 1 {
		time.Sleep(carryTurn)
	}
	c.asked++
	return objects.Reply{Data: binary.BigEndian.AppendUint64(nil, c.asked)}, nil
}

func (c *carrier) Capture(context.Context, *objects.Self) (objects.State, error) {
	return objects.State{Version: 1, Data: append(binary.BigEndian.AppendUint64(nil, c.asked), c.state...)}, nil
}

func (c *carrier) Restore(_ context.Context, _ *objects.Self, s objects.State) error {
	if len(s.Data) < 8 {
		return errors.New("the state is cut off")
	}
	c.asked, c.state = binary.BigEndian.Uint64(s.Data), s.Data[8:]
	return nil
}

// moveOf is the subject on which a member is asked to move one of its Actors, and drainOf all that it has.
func moveOf(rid string) string  { return "bench.move." + rid }
func drainOf(rid string) string { return "bench.drain." + rid }

// moveArgs and moveReply are what goes over moveOf.
type moveArgs struct {
	ID string `json:"id"`
	To string `json:"to"`
}

type moveReply struct {
	Moved  relocate.Moved  `json:"moved,omitzero"`
	Result relocate.Result `json:"result,omitzero"`
	Error  string          `json:"error,omitempty"`
}

// moveTimeout bounds one move, and the draining of a member.
const moveTimeout = 2 * time.Minute

// serveMoves has the member move what it is asked to.
func (r *memberRole) serveMoves(rid string) error {
	serve := func(subject string, f func(ctx context.Context, data []byte) (moveReply, error)) error {
		_, err := r.ctl.Subscribe(subject, func(m *nats.Msg) {
			go func() { // several may move at the same time
				ctx, cancel := context.WithTimeout(context.Background(), moveTimeout)
				defer cancel()
				reply, err := f(ctx, m.Data)
				if err != nil {
					reply.Error = err.Error()
				}
				if b, err := json.Marshal(reply); err == nil {
					_ = m.Respond(b)
				}
			}()
		})
		return err
	}
	move := serve(moveOf(rid), func(ctx context.Context, data []byte) (reply moveReply, err error) {
		a, err := decode[moveArgs](data)
		if err == nil {
			reply.Moved, err = r.node.Move(ctx, kvlocation.ObjectKey{Kind: kvlocation.KindActor, ID: a.ID}, 0, a.To)
		}
		return reply, err
	})
	drain := serve(drainOf(rid), func(ctx context.Context, _ []byte) (reply moveReply, err error) {
		if reply.Result, err = r.node.Relocate(ctx, relocate.Mode{Kind: relocate.Maintenance}); err == nil && reply.Result.Outcome != relocate.Relocated {
			err = fmt.Errorf("%s: %s", reply.Result.Reason, reply.Result.Detail)
		}
		return reply, err
	})
	return errors.Join(move, drain)
}
