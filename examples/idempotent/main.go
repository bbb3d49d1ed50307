// Idempotent shows how to repeat an operation safely after its outcome was reported as Unknown.
//
//	go run ./examples/idempotent
//
// A request whose answer did not come in time is Unknown: it may have run, it may still run, or it may be lost. The fabric
// never sends it again by itself. A program that wants it done has to be able to repeat it without doing it twice: the
// caller gives each operation a key of its own, and the object keeps, in the same write as the effect, which keys it has
// done and what came out. Then the caller may look the result up by the key, and send the operation again under it.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"natsfabric/fabric"
	"natsfabric/internal/embedded"
	"natsfabric/kvlocation"
	"natsfabric/objects"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := run(ctx, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run tells the story on a mesh of one node, with a server of its own and a client.
func run(ctx context.Context, out io.Writer) error {
	dir, err := os.MkdirTemp("", "idempotent-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	server, err := embedded.Start(ctx, embedded.Config{Port: -1, StoreDir: dir})
	if err != nil {
		return err
	}
	defer server.Shutdown()
	b, err := open(ctx, server.URL())
	if err != nil {
		return err
	}
	defer b.close(context.WithoutCancel(ctx))
	actors := b.client.Actors()
	if _, err := actors.Create(ctx, accountType, "alice", nil); err != nil {
		return err
	}
	t := &teller{actors: actors, timeout: 300 * time.Millisecond, tell: func(format string, args ...any) {
		fmt.Fprintf(out, "  "+format+"\n", args...)
	}}

	fmt.Fprintln(out, "deposit 100 under key k1, and the answer comes too late:")
	b.answers.delayNext(600 * time.Millisecond)
	r, err := t.deposit(ctx, "alice", "k1", 100)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "  done once, balance %d\n", r.Balance)

	fmt.Fprintln(out, "the same deposit again, as a caller does that has crashed and knows only its key:")
	if r, err = t.deposit(ctx, "alice", "k1", 100); err != nil {
		return err
	}
	fmt.Fprintf(out, "  not done again: repeated %v, balance %d\n", r.Repeated, r.Balance)

	fmt.Fprintln(out, "deposit 50 under key k2:")
	if r, err = t.deposit(ctx, "alice", "k2", 50); err != nil {
		return err
	}
	fmt.Fprintf(out, "  balance %d\n", r.Balance)
	return nil
}

// bank is a mesh of one node that hosts accounts, and a client that calls them. The client stands for another program:
// within one process a caller knows more, since no message of its can be lost.
type bank struct {
	nc      *nats.Conn
	node    *fabric.Node
	client  *fabric.Client
	answers *answers
}

// open makes the mesh's streams and the accounts' bucket, and starts node and client.
func open(ctx context.Context, url string) (b *bank, err error) {
	connect := fabric.Connect{URL: url}
	b = &bank{answers: &answers{}}
	if b.nc, err = fabric.Dial(ctx, "idempotent", connect); err != nil {
		return b, err
	}
	defer func() {
		if err != nil {
			b.close(context.WithoutCancel(ctx))
		}
	}()
	if _, err = kvlocation.Init(ctx, b.nc, kvlocation.Setup{Mesh: "bank", Replicas: 1}); err != nil {
		return b, err
	}
	js, err := jetstream.New(b.nc)
	if err != nil {
		return b, err
	}
	kv, err := js.CreateOrUpdateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: bucket})
	if err != nil {
		return b, err
	}
	b.node, err = fabric.Start(ctx, fabric.Config{
		Mesh: "bank", RID: "n1", Connect: connect, Types: []objects.Type{accounts(kv, b.answers)},
	})
	if err != nil {
		return b, err
	}
	b.client, err = fabric.ConnectClient(ctx, fabric.ClientConfig{Mesh: "bank", Connect: connect})
	return b, err
}

func (b *bank) close(ctx context.Context) {
	var err error
	if b.client != nil {
		err = b.client.Close(ctx)
	}
	if b.node != nil {
		err = errors.Join(err, b.node.Shutdown(ctx))
	}
	b.nc.Close()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}
