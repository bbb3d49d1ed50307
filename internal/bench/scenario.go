package bench

import (
	"context"
	"fmt"
)

// scenario is one entry of the list of scenarios.
type scenario struct {
	ScenarioInfo
	run func(context.Context, *run) error
}

// ScenarioInfo describes a scenario.
type ScenarioInfo struct {
	Name string
	// Compares says in a sentence what is compared with what.
	Compares string
}

var scenarios = []scenario{
	{ScenarioInfo{"channel", "Channel.Request through a RouteMesh channel against nats.Conn.Request on a queue group; " +
		"two members on each side, one subscription each."}, runChannel},
	{ScenarioInfo{"send", "Channel.Send, acknowledged by a member's queue, against nats.Conn.Request on a queue group (result send); " +
		"Channel.SendUnconfirmed against nats.Conn.Publish to one queue subscriber, flushed at the end of the slice (result send-unconfirmed)."}, runSend},
	{ScenarioInfo{"store", "a record's compare-and-set through the Location Store against a published compare-and-set by hand (result store) " +
		"and against jetstream.KeyValue.Update (result store-kv); values of the same size in buckets of the same make."}, runStore},
	{ScenarioInfo{"mesh", "Channel.Request between two processes whose embedded servers form a cluster (one network hop) " +
		"against the same request through one external server (two hops); the same against nats.Conn.Request between the same two servers " +
		"(result mesh-floor: what the fabric adds to the transport); and nats.Conn.Request between the two servers against one through the " +
		"external server (result mesh-transport: what the transport itself gains)."}, runMesh},
	{ScenarioInfo{"actor", "Actors.Request with warm routes against nats.Conn.Request on the same server; the same between two processes whose embedded " +
		"servers form a cluster against nats.Conn.Request through one external server (result actor-mesh) and between the same two servers (actor-mesh-floor); " +
		"Actors.Request and Actors.Send in one process against a goroutine behind a Go channel (actor-local, actor-local-send)."}, runActor},
	{ScenarioInfo{"create", "Actors.Create against half of the rate of compare-and-set publishes, and against the same two writes of a fresh key by hand " +
		"(result create-fresh)."}, runCreate},
	{ScenarioInfo{"activate", "the first activation of an Instance Spot by a durable first message, against the same as create (results activate, activate-fresh)."}, runActivate},
	{ScenarioInfo{"hot", "requests to many Actors while one more Actor of their node gets messages at full speed, against the same requests without that: from another process " +
		"(result hot) and from its own (hot-local); and against as much other work in the same place, which is what the machine alone does (hot-control, hot-local-control)."}, runHot},
	{ScenarioInfo{"relocate", "the longest gap that the callers of an Actor with 1 KiB of state and a full mailbox see while it moves, against two record writes and four round " +
		"trips by hand, on one server (result relocate) and on three (relocate-3-servers); beside an Actor with 16 MiB that moves (relocate-beside); " +
		"and moves of 1 MiB and 16 MiB against the same bytes through a stream by hand (relocate-bulk)."}, runRelocate},
	{ScenarioInfo{"follow", "requests at a steady pace to an Actor that moves there and back all the time, against the same while it stays."}, runFollow},
	{ScenarioInfo{"drain", "how many idle Actors a node moves per second when it is drained, against compare-and-set publishes divided by the writes of a move; " +
		"and requests to other Actors meanwhile, against before (result drain-others) against raw requests to their process (drain-others-control), and what raw requests " +
		"see beside half of all the writes that the server takes (drain-others-floor)."}, runDrain},
	{ScenarioInfo{"session", "a request of a client through its session to an Actor of another node, against a WebSocket message that its server passes on by nats.Conn.Request."}, runSession},
	{ScenarioInfo{"guard", "a write through a guard to a key (result guard-key) and to a stream (guard-stream) against the same write without one; " +
		"fence/sqltest/guardbench compares SQL statements."}, runGuard},
	{ScenarioInfo{"supervise", "the processor time of each of three monitors of many workers (column fabric) against monitors of a few (column raw)."}, runSupervise},
	{ScenarioInfo{"idle", "what one idle node costs per second in a large mesh (column fabric) against a mesh of three nodes (column raw): " +
		"messages at the server, processor time; the memory of an idle Actor, many of which are made on one node (result idle-objects), " +
		"and requests to another Actor of that node meanwhile, against before (idle-stream) and against raw requests to its process (idle-stream-control)."}, runIdle},
}

// Scenarios lists the scenarios in the order in which Run runs them.
func Scenarios() []ScenarioInfo {
	var out []ScenarioInfo
	for _, s := range scenarios {
		out = append(out, s.ScenarioInfo)
	}
	return out
}

// The meshes of the scenarios. rawMesh has buckets, and no node.
const (
	benchMesh = "bench"
	rawMesh   = "benchraw"
	fewMesh   = "benchfew"
)

// members is the number of member processes.
const members = 2

func runChannel(ctx context.Context, r *run) error {
	_, p, s, c, err := hostsOf(ctx, r, members)
	if err != nil {
		return err
	}
	r.setup("channel", s, fmt.Sprintf("%d member processes, one caller process, one connection per side: %s", members, c.Connection),
		"fabric.Node, Channel.Request; channels.Spec with its defaults, weight 1; default leases",
		"nats.Conn.Request; one queue subscription per member, answered in its callback; the fabric's connection options")
	return r.slices(ctx, p, doRequest, against{name: "channel", raw: rawSide})
}

func runSend(ctx context.Context, r *run) error {
	_, p, s, c, err := hostsOf(ctx, r, members)
	if err != nil {
		return err
	}
	common := fmt.Sprintf("one caller process, one connection per side: %s", c.Connection)
	r.setup("send", s, fmt.Sprintf("%d member processes, %s", members, common),
		"fabric.Node, Channel.Send; channels.Spec with its defaults, weight 1",
		"nats.Conn.Request; one queue subscription per member, answered in its callback with as much as an acceptance notice has")
	r.setup("send-unconfirmed", s, "one member process, "+common+"; throughput counts what the server has read, delivered what the member's handler got",
		"fabric.Node, Channel.SendUnconfirmed; channels.Spec with a queue as large as the raw subscription's, so that both sides deliver all they can",
		"nats.Conn.Publish; one queue subscription with the client library's default limits (500,000 messages, 64 MiB)")
	if err := r.slices(ctx, p, doSend, against{name: "send", raw: rawSide}); err != nil {
		return err
	}
	return r.slices(ctx, p, doPublish, against{name: "send-unconfirmed", raw: rawSide})
}

func runStore(ctx context.Context, r *run) error {
	_, p, s, c, err := hostsOf(ctx, r, members)
	if err != nil {
		return err
	}
	common := fmt.Sprintf("file storage, 1 replica, one key per caller, the payload stands inside a record of its final size, "+
		"both sides write as many bytes; one caller process, one connection per side: %s", c.Connection)
	fabric := "kvlocation.Store.Adopt of a Ready record: transition, JSON, one compare-and-set"
	r.setup("store", s, common, fabric, "nats.Conn.RequestMsg with the expected revision and a fresh message ID, fixed value")
	r.setup("store-kv", s, common, fabric, "jetstream.KeyValue.Update, fixed value")
	return r.slices(ctx, p, doUpdate, against{name: "store", raw: rawSide}, against{name: "store-kv", raw: kvSide})
}
