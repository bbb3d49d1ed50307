package channels_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"natsfabric/channels"
	"natsfabric/fabrictest"
	"natsfabric/outcome"
)

// A program normally reaches channels through a fabric.Node, which fills in the configuration. This is what is beneath.
func Example() {
	fabrictest.Example(func(t testing.TB) {
		srv := fabrictest.StartServer(t)
		nc := srv.Connect(t, nats.ReconnectBufSize(-1))
		dir := newDirectory(member("n1", 1, "greet"))
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()

		r, err := channels.New(channels.Config{Mesh: "demo", Conn: nc, RID: "n1", Lifecycle: 1, Directory: dir})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = r.Close(ctx) }()
		_, err = r.Serve(ctx, channels.Spec{Name: "greet", Handler: func(_ context.Context, req *channels.Request) (channels.Reply, error) {
			return channels.Reply{Data: append([]byte("hello "), req.Data()...)}, nil
		}})
		if err == nil {
			err = r.SetServing(true)
		}
		if err != nil {
			t.Fatal(err)
		}

		reply, err := r.Channel("greet").Request(ctx, []byte("you"))
		fmt.Println(string(reply.Data), err)

		_, err = r.Channel("nobody").Request(ctx, nil)
		fmt.Println(errors.Is(err, outcome.NotFound), errors.Is(err, outcome.NotAccepted))
	})
	// Output:
	// hello you <nil>
	// true true
}
