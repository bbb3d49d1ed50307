// Gameroom shows a room full of players that moves from node to node while they play.
//
//	go run ./examples/gameroom
//
// A room is a User Spot, a player an Actor that joins it. The room's type says SpotWide: it moves with all its players as one
// unit, by a constant number of writes to the store, however many they are. Players score through the room, which tells every
// player each score. Nothing of that stops for a move: what arrives meanwhile waits for some milliseconds.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"natsfabric/fabric"
	"natsfabric/internal/embedded"
	"natsfabric/kvlocation"
	"natsfabric/objects"
)

const (
	players = 4
	scores  = 100 // of each player
	moves   = 4
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := run(ctx, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run plays one game on a mesh of two nodes, with a server of its own.
func run(ctx context.Context, out io.Writer) (err error) {
	dir, err := os.MkdirTemp("", "gameroom-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	server, err := embedded.Start(ctx, embedded.Config{Port: -1, StoreDir: dir})
	if err != nil {
		return err
	}
	defer server.Shutdown()
	mesh, err := open(ctx, server.URL())
	defer func() { err = errors.Join(err, mesh.close(context.WithoutCancel(ctx))) }()
	if err != nil {
		return err
	}
	return mesh.play(ctx, out)
}

// mesh is two nodes that host rooms and players, and a client that stands for the players' devices.
type mesh struct {
	nodes  []*fabric.Node
	client *fabric.Client
}

// open makes the mesh's streams, and starts the nodes and the client. What it returns is to be closed when it fails, too.
func open(ctx context.Context, url string) (*mesh, error) {
	m, connect := &mesh{}, fabric.Connect{URL: url}
	nc, err := fabric.Dial(ctx, "gameroom", connect)
	if err != nil {
		return m, err
	}
	defer nc.Close()
	if _, err := kvlocation.Init(ctx, nc, kvlocation.Setup{Mesh: "games", Replicas: 1}); err != nil {
		return m, err
	}
	for _, rid := range []string{"n1", "n2"} {
		node, err := fabric.Start(ctx, fabric.Config{Mesh: "games", RID: rid, Connect: connect, Types: []objects.Type{roomType(), playerType()}})
		if err != nil {
			return m, err
		}
		m.nodes = append(m.nodes, node)
	}
	m.client, err = fabric.ConnectClient(ctx, fabric.ClientConfig{Mesh: "games", Connect: connect})
	return m, err
}

func (m *mesh) close(ctx context.Context) (err error) {
	if m.client != nil {
		err = m.client.Close(ctx)
	}
	for _, n := range m.nodes {
		err = errors.Join(err, n.Shutdown(ctx))
	}
	return err
}

// play lets all players score at once, moves the room meanwhile, and compares what everybody saw.
func (m *mesh) play(ctx context.Context, out io.Writer) error {
	spots, actors := m.client.Spots(), m.client.Actors()
	room, err := spots.Create(ctx, "room", "arena", nil, objects.AtNode("n1"))
	if err != nil {
		return err
	}
	names := make([]string, players)
	for i := range names {
		names[i] = fmt.Sprintf("player-%d", i+1)
		// Wherever a player was made: an Actor that joins a Spot at another node moves there first.
		player, err := actors.Create(ctx, "player", names[i], nil)
		if err != nil {
			return err
		}
		if err := actors.Join(ctx, player, room); err != nil {
			return err
		}
	}
	fmt.Fprintf(out, "%d players are in %s at n1, and score %d times each\n", players, room, scores)

	playing, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var all sync.WaitGroup
	for _, name := range names {
		all.Go(func() {
			for range scores {
				if _, err := actors.Request(playing, name, []byte(`{"op":"score"}`)); err != nil {
					stop(fmt.Errorf("%s cannot score: %w", name, err))
					return
				}
			}
		})
	}
	key := kvlocation.ObjectKey{Kind: kvlocation.KindSpot, ID: "arena"}
	for i := range moves {
		from, to := m.nodes[i%2], m.nodes[(i+1)%2]
		moved, err := from.Move(ctx, key, room.Generation, to.RID())
		if err != nil {
			stop(err)
			break
		}
		fmt.Fprintf(out, "  the room and its players, %d objects, moved from %s to %s; players waited at most %v\n",
			moved.Objects, moved.From.RID, moved.To.RID, moved.Phases.Blackout.Round(time.Millisecond))
	}
	all.Wait()
	if err := context.Cause(playing); err != nil {
		return err
	}
	return m.compare(ctx, out, names)
}

// compare checks that nothing was lost, doubled or seen in another order.
func (m *mesh) compare(ctx context.Context, out io.Writer, names []string) error {
	reply, err := m.client.Spots().Request(ctx, "arena", []byte(`{"op":"board"}`))
	if err != nil {
		return err
	}
	var b board
	if err := json.Unmarshal(reply.Data, &b); err != nil {
		return err
	}
	if b.Scores != players*scores {
		return fmt.Errorf("the room has %d scores, the players made %d", b.Scores, players*scores)
	}
	for _, name := range names {
		reply, err := m.client.Actors().Request(ctx, name, []byte(`{"op":"seen"}`))
		if err != nil {
			return err
		}
		var p seen
		if err := json.Unmarshal(reply.Data, &p); err != nil {
			return err
		}
		if b.By[name] != scores || p.Last != b.Scores || p.Gaps != 0 {
			return fmt.Errorf("%s: %d of its scores in the room, saw %d with %d out of order", name, b.By[name], p.Last, p.Gaps)
		}
	}
	fmt.Fprintf(out, "all %d scores are on the board, once, and every player saw all of them in order\n", b.Scores)
	return nil
}
