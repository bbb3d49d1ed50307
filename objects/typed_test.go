package objects

import (
	"context"
	"errors"
	"strings"
	"testing"

	"natsfabric/channels"
	"natsfabric/outcome"
)

// hostCaller calls the objects of a host by their IDs.
type hostCaller struct{ *host }

func (c hostCaller) Request(ctx context.Context, id string, data []byte, _ ...CallOption) (Reply, error) {
	return c.rt.request(ctx, c.rt.find("actor", id), opRequest, data, nil, false)
}

func (c hostCaller) Send(ctx context.Context, id string, data []byte, _ ...CallOption) error {
	_, err := c.rt.request(ctx, c.rt.find("actor", id), opSend, data, nil, true)
	return err
}

// Values go through codecs at both ends; what cannot be coded is said on the side where it happens.
func TestTyped(t *testing.T) {
	t.Parallel()
	type pair struct{ A, B int }
	h := newHost(t, 10, Type{Name: "t"})
	sent := make(chan int, 1)
	h.object(t, "sum", HandlerFunc(Typed(channels.JSON[pair]{}, channels.JSON[any]{},
		func(_ context.Context, p pair, req *Request) (any, error) {
			if req.OneWay() {
				sent <- p.A
			}
			if p.B < 0 {
				return nil, outcome.New("sum", outcome.Rejected, outcome.Accepted, "", "")
			}
			if p.A < 0 {
				return make(chan int), nil
			}
			return p.A + p.B, nil
		})))
	ctx, to := context.Background(), hostCaller{h}
	if n, err := RequestTyped(ctx, to, "sum", channels.JSON[pair]{}, channels.JSON[int]{}, pair{2, 3}); err != nil || n != 5 {
		t.Errorf("%d, %v", n, err)
	}
	if err := SendTyped(ctx, to, "sum", channels.JSON[pair]{}, pair{7, 0}); err != nil || within(t, sent, "the send") != 7 {
		t.Error(err)
	}
	_, err := RequestTyped(ctx, to, "sum", channels.JSON[pair]{}, channels.JSON[int]{}, pair{0, -1})
	wantOutcome(t, err, outcome.Rejected, outcome.Accepted)
	_, err = RequestTyped(ctx, to, "sum", channels.JSON[pair]{}, channels.JSON[int]{}, pair{-1, 0})
	wantOutcome(t, err, outcome.InternalFailure, outcome.Accepted)
	_, err = RequestTyped(ctx, to, "sum", channels.Bytes{}, channels.JSON[int]{}, []byte("no JSON"))
	wantOutcome(t, err, outcome.ProtocolError, outcome.Accepted)
	_, err = RequestTyped(ctx, to, "sum", channels.JSON[pair]{}, channels.JSON[string]{}, pair{2, 3})
	wantOutcome(t, err, outcome.ProtocolError, outcome.Accepted)
	if !strings.Contains(err.Error(), "reply") {
		t.Errorf("%v does not say what", err)
	}
	_, err = RequestTyped(ctx, to, "sum", channels.JSON[chan int]{}, channels.JSON[int]{}, make(chan int))
	wantOutcome(t, err, outcome.InvalidOperation, outcome.NotAccepted)
	if err := SendTyped(ctx, to, "sum", channels.JSON[chan int]{}, make(chan int)); !errors.Is(err, outcome.InvalidOperation) {
		t.Error(err)
	}
}

// The registry finds every object by kind and ID, also those whose IDs have the same hash.
func TestRegistry(t *testing.T) {
	t.Parallel()
	h := newHost(t, 1, Type{Name: "a"}, Type{Name: "s", Class: "user_spot"})
	p, k, hash := h.rt.place("actor", "x")
	x := h.rt.newObject(h.rt.order[0], "x")
	if h.rt.insert(x) != nil || h.rt.insert(h.rt.newObject(h.rt.order[1], "x")) != nil {
		t.Fatal("one name of two kinds")
	}
	if other := h.rt.newObject(h.rt.order[0], "x"); h.rt.insert(other) != x {
		t.Fatal("inserted twice")
	}
	// As if two more IDs had the hash of x.
	y, z := h.rt.newObject(h.rt.order[0], "y"), h.rt.newObject(h.rt.order[0], "z")
	z.same, y.same, p.kinds[k][hash] = x, z, y
	if h.rt.find("actor", "x") != x || h.rt.find("actor", "y") == y {
		t.Error("found another")
	}
	n := 0
	h.rt.each(func(*object) { n++ })
	if n != 4 {
		t.Errorf("%d objects", n)
	}
	z.id = "x" // forget looks where x is
	h.rt.forget(z)
	if y.same != x || h.rt.find("actor", "x") != x {
		t.Error("the middle was not taken out")
	}
	y.id = "x"
	h.rt.forget(y)
	h.rt.forget(x)
	if h.rt.find("actor", "x") != nil || h.rt.find("spot", "x") == nil || len(p.kinds[k]) != 0 {
		t.Error("not forgotten")
	}
}
