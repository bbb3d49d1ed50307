package channels_test

import (
	"context"
	"testing"

	"natsfabric/channels"
	"natsfabric/outcome"
)

func TestTyped(t *testing.T) {
	t.Parallel()
	type point struct{ X, Y int }
	srv := server(t)
	_, caller, _ := pair(t, srv.URL(), channels.Spec{
		Handler: channels.Typed(channels.JSON[point]{}, channels.JSON[any]{}, func(_ context.Context, p point, _ *channels.Request) (any, error) {
			switch p.X {
			case 0:
				return nil, outcome.New("sum", outcome.Rejected, outcome.Accepted, "", "no X")
			case -1:
				return make(chan int), nil
			}
			return p.X + p.Y, nil
		}),
	})
	ch := caller.Channel("c")
	ctx := within(t, patience)
	sum, err := channels.RequestTyped(ctx, ch, channels.JSON[point]{}, channels.JSON[int]{}, point{1, 2})
	if err != nil || sum != 3 {
		t.Errorf("%d, %v", sum, err)
	}
	_, err = channels.RequestTyped(ctx, ch.At("m1"), channels.JSON[point]{}, channels.JSON[int]{}, point{})
	wantErr(t, err, outcome.Rejected, outcome.Accepted)
	_, err = channels.RequestTyped(ctx, ch, channels.JSON[point]{}, channels.JSON[int]{}, point{X: -1})
	wantErr(t, err, outcome.InternalFailure, outcome.Accepted)
	_, err = channels.RequestTyped(ctx, ch, channels.Bytes{}, channels.Bytes{}, []byte("no JSON"))
	wantErr(t, err, outcome.ProtocolError, outcome.Accepted)
	_, err = channels.RequestTyped(ctx, ch, channels.JSON[point]{}, channels.JSON[string]{}, point{1, 2})
	wantErr(t, err, outcome.ProtocolError, outcome.Accepted)
	_, err = channels.RequestTyped(ctx, ch, channels.JSON[any]{}, channels.JSON[int]{}, any(make(chan int)))
	wantErr(t, err, outcome.InvalidOperation, outcome.NotAccepted)
}
