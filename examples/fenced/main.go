// Fenced shows an Actor whose state is in a database, and what a write of an earlier owner comes to that arrives late.
//
//	go -C examples/fenced run .
//
// The account raises the guard in its activation callback, then loads its balance, and writes through the guard. It moves
// from one node to another; then the first node does what a process does that was paused for long: it writes, believing that
// the account is still its own. The database refuses, because it has seen the token of the next owner.
//
// It is a module of its own, so that the database driver stays out of the graph of those who use the library.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	_ "modernc.org/sqlite"

	"natsfabric/fabric"
	"natsfabric/fence"
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

// run tells the story on a mesh of two nodes, with a server of its own and one database.
func run(ctx context.Context, out io.Writer) (err error) {
	dir, err := os.MkdirTemp("", "fenced-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	server, err := embedded.Start(ctx, embedded.Config{Port: -1, StoreDir: filepath.Join(dir, "nats")})
	if err != nil {
		return err
	}
	defer server.Shutdown()
	db, err := openDatabase(ctx, filepath.Join(dir, "bank.db"))
	if err != nil {
		return err
	}
	defer db.Close()
	connect := fabric.Connect{URL: server.URL()}
	nc, err := fabric.Dial(ctx, "fenced", connect)
	if err != nil {
		return err
	}
	defer nc.Close()
	if _, err := kvlocation.Init(ctx, nc, kvlocation.Setup{Mesh: "bank", Replicas: 1}); err != nil {
		return err
	}

	var nodes [2]*fabric.Node
	var lates [2]lateWrite
	for i := range nodes {
		node, err := fabric.Start(ctx, fabric.Config{Mesh: "bank", RID: fmt.Sprint("n", i+1), Connect: connect, Types: []objects.Type{accounts(db, &lates[i])}})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, node.Shutdown(context.WithoutCancel(ctx))) }()
		nodes[i] = node
	}

	ref, err := nodes[0].Actors().Create(ctx, accountType, "alice", nil)
	if err != nil {
		return err
	}
	where, err := nodes[0].Actors().Find(ctx, "alice")
	if err != nil {
		return err
	}
	from, to, late := nodes[0], nodes[1], &lates[0]
	if where.RID == to.RID() {
		from, to, late = to, from, &lates[1]
	}
	balance, err := deposit(ctx, to, 100)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%s owns the account: balance %d, token %s\n", from.RID(), balance, late.token)

	if _, err := from.Move(ctx, where.Key(), ref.Generation, to.RID()); err != nil {
		return err
	}
	if balance, err = deposit(ctx, from, 50); err != nil {
		return err
	}
	fmt.Fprintf(out, "%s owns it now: balance %d\n", to.RID(), balance)

	err = late.wakeUp(ctx)
	var stale *fence.StaleError
	if !errors.As(err, &stale) {
		return fmt.Errorf("the late write of %s was not refused: %w", from.RID(), err)
	}
	fmt.Fprintf(out, "%s wakes up and writes: refused by the %s, which has seen %s\n", from.RID(), stale.StoppedBy, stale.Seen)
	if err := db.QueryRowContext(ctx, "SELECT balance FROM account WHERE id = 'alice'").Scan(&balance); err != nil {
		return err
	}
	fmt.Fprintf(out, "the database holds %d\n", balance)
	return nil
}

// deposit asks the account by its ID, from any node.
func deposit(ctx context.Context, node *fabric.Node, amount int64) (int64, error) {
	data, err := json.Marshal(request{amount})
	if err != nil {
		return 0, err
	}
	answer, err := node.Actors().Request(ctx, "alice", data)
	if err != nil {
		return 0, err
	}
	var r reply
	err = json.Unmarshal(answer.Data, &r)
	return r.Balance, err
}
