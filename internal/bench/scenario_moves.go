package bench

import (
	"context"
	"fmt"
	"path/filepath"
	"time"
)

// moveCallers is how many callers keep the mailbox of an Actor that moves full.
const moveCallers = 32

// The sizes of state that moves carry.
const (
	smallState  = 1 << 10
	mediumState = 1 << 20
)

// moveSlices is how much longer the slices of moves are: each has several.
const moveSlices = 2

func runRelocate(ctx context.Context, r *run) error {
	for _, servers := range []int{1, 3} { // with as many replicas
		if err := r.relocate(ctx, servers); err != nil {
			return err
		}
		if err := r.stopAll(); err != nil {
			return err
		}
	}
	return nil
}

func (r *run) relocate(ctx context.Context, servers int) error {
	hosts := 2
	caller, s, c, err := r.movers(ctx, servers, hosts)
	if err != nil {
		return err
	}
	long := *r
	long.Slice *= moveSlices
	suffix := ""
	if servers > 1 {
		suffix = fmt.Sprintf("-%d-servers", servers)
	}
	common := fmt.Sprintf("%d member processes, one caller process; file storage, replicas: %d; one connection per side: %s", hosts, servers, c.Connection)
	long.setup("relocate"+suffix, s, common,
		fmt.Sprintf("an Actor with 1 KiB of state, turns of %v, moves there and back, %d callers keep its mailbox full; one operation is a move, and its time "+
			"the longest gap between two answers meanwhile; no request may fail, be lost or run twice, which the Actor's own count shows", carryTurn, moveCallers),
		fmt.Sprintf("with nothing else going on: 2 compare-and-set writes one after the other, and %d nats.Conn.Request to a member", moveTrips))
	key := func(do, name string, size, callers int) side {
		return long.side(caller, sliceKey{Do: do, Side: name, Payload: size, Callers: callers})
	}
	sides := []side{key(doMove, fabricSide, smallState, moveCallers), key(doMove, rawSide, smallState, moveCallers)}
	comparisons := []against{{name: "relocate" + suffix, raw: rawSide}}
	if servers == 1 {
		long.setup("relocate-beside", s, common, "the same while an Actor with 16 MiB of state moves all the time between the same nodes (load: its moves)",
			"the same without that")
		beside := key(doMove, besideSide, smallState, moveCallers)
		sides, comparisons = append(sides, beside), append(comparisons, against{name: "relocate-beside", side: besideSide, raw: fabricSide})
	}
	if err := long.compare(ctx, smallState, moveCallers, sides, comparisons...); err != nil {
		return err
	}
	gaps := Distribution{Name: "1 server"}
	if servers > 1 {
		gaps.Name = fmt.Sprintf("%d servers", servers)
	}
	if err := caller.call(ctx, "gaps", fabricSide, &gaps.Millis); err != nil {
		return err
	}
	r.report.Distributions = append(r.report.Distributions, gaps)
	if servers > 1 {
		return nil
	}
	long.setup("relocate-bulk", s, common, "one operation is a move of an idle Actor with so much state, from its begin to its end",
		"the same bytes published to a stream of the same storage and persist_mode (async) in messages of 256 KiB, without waiting for each answer, and read by a consumer; "+
			"a move may take 1.5 times as long and the time of a small one")
	for _, size := range []int{mediumState, largeState} {
		long.Slice = r.Slice * moveSlices
		sides := []side{key(doBulk, fabricSide, size, 1), key(doBulk, rawSide, size, 1)}
		if err := long.compare(ctx, size, 1, sides, against{name: "relocate-bulk", raw: rawSide}); err != nil {
			return err
		}
	}
	return nil
}

// movers starts so many servers and members, each of a wave of its own, and a caller.
func (r *run) movers(ctx context.Context, servers, hosts int) (caller *process, s serverStarted, c callerStarted, err error) {
	if s, err = r.servers(ctx, servers, benchMesh, rawMesh); err != nil {
		return nil, s, c, err
	}
	for i := range hosts {
		if _, err := r.mover(ctx, s, i); err != nil {
			return nil, s, c, err
		}
	}
	caller, c, err = r.caller(ctx, s, "caller", hosts)
	return caller, s, c, err
}

// mover starts the i-th member.
func (r *run) mover(ctx context.Context, s serverStarted, i int) (*process, error) {
	return r.start(ctx, "member", memberStart{URL: s.URL, Mesh: benchMesh, RID: memberRID(i), Wave: fmt.Sprintf("wave-%d", i)}, nil)
}

// servers starts one server, or a cluster; the figures are those of its first.
func (r *run) servers(ctx context.Context, n int, meshes ...string) (first serverStarted, err error) {
	if n == 1 {
		_, first, err = r.server(ctx, meshes...)
		return first, err
	}
	ports, err := freePorts(n)
	if err != nil {
		return first, err
	}
	var p *process
	for i, port := range ports {
		start := serverStart{Name: fmt.Sprintf("server-%d", i), Port: port, Dir: filepath.Join(r.dir, fmt.Sprintf("cluster-%d-%d", len(r.report.Setups), i))}
		for _, other := range ports {
			if other != port {
				start.Routes = append(start.Routes, routeTo(other))
			}
		}
		var s serverStarted
		at, err := r.start(ctx, "server", start, &s)
		if err != nil {
			return first, err
		}
		if i == 0 {
			p, first = at, s
		}
	}
	r.sync = first.Sync
	return first, r.wait(ctx, p, "init", initArgs{Meshes: meshes, Replicas: n})
}

func runFollow(ctx context.Context, r *run) error {
	caller, s, c, err := r.movers(ctx, 1, 2)
	if err != nil {
		return err
	}
	long := *r
	long.Slice *= 2 * moveSlices
	long.setup("follow", s, fmt.Sprintf("two member processes, one caller process that asks an Actor with 1 KiB of state %d times a second; "+
		"no request may fail, be lost or run twice, which the Actor's own count shows; one connection per process: %s", carryPace, c.Connection),
		"meanwhile the Actor moves there and back all the time (load: its moves)", "the same without moves")
	return long.compare(ctx, smallState, 1, []side{
		long.side(caller, sliceKey{Do: doCarry, Side: fabricSide, Payload: smallState, Callers: 1}),
		long.side(caller, sliceKey{Do: doCarry, Side: stillSide, Payload: smallState, Callers: 1}),
	}, against{name: "follow", raw: stillSide})
}

// drainMoves is how many writes of a record one move makes.
const drainMoves = 4

// drains is how many members are drained, each of all that it has.
const drains = 3

func runDrain(ctx context.Context, r *run) error {
	caller, s, c, err := r.movers(ctx, 1, 2)
	if err != nil {
		return err
	}
	if _, err := r.mover(ctx, s, othersAt); err != nil {
		return err
	}
	commander, _, err := r.caller(ctx, s, "commander", 3)
	if err != nil {
		return err
	}
	objects := r.Drain
	r.setup("drain", s, fmt.Sprintf("file storage, 1 replica; member processes, one caller process; one connection per side: %s", c.Connection),
		fmt.Sprintf("a member moves its idle Actors with 64 bytes of state to others; one operation is one Actor; %d members are drained in turn, each of %d Actors of its own "+
			"and of what earlier ones have moved to it", drains, objects),
		fmt.Sprintf("compare-and-set publishes by hand, 64 callers, divided by the %d record writes that a move makes", drainMoves))
	common := fmt.Sprintf("requests to %d Actors of a third member, %d a second by %d callers, 16 bytes", drainOthers, othersPace, drainCallers)
	r.setup("drain-others", s, common, "while members are drained", "before")
	r.setup("drain-others-control", s, common, "while members are drained",
		"raw requests at the same pace to a plain subscription of the third member's process, while members are drained: what the machine alone does")
	r.setup("drain-others-floor", s, "no member is drained; raw requests as above",
		"beside compare-and-set publishes by hand at half of their full rate, which is what draining is wanted to reach, 64 callers", "with nothing else going on")
	others := sliceKey{Do: doOthers, Side: fabricSide, Payload: 16, Callers: drainCallers, Objects: drainOthers}
	if err := r.wait(ctx, caller, "others", others); err != nil {
		return err
	}
	if err := r.wait(ctx, caller, "know", 3); err != nil {
		return err
	}
	control := others
	control.Side = rawSide
	still, err := rounds(ctx, r.Pairs, []side{r.side(caller, others), r.side(caller, control)})
	if err != nil {
		return err
	}
	var moved, raw, beside, machine []Sample
	for i := range drains {
		if i > 0 { // one that was drained takes nothing more
			if _, err := r.mover(ctx, s, i+1); err != nil {
				return err
			}
			if err := r.wait(ctx, caller, "know", 3); err != nil { // what was drained serves no more
				return err
			}
		}
		r.Progress(fmt.Sprintf("%s: %d Actors at member %d", r.name, objects, i))
		sample, err := r.side(caller, sliceKey{Do: doUpdate, Side: rawSide, Payload: 64, Callers: 64}).slice(ctx)
		if err != nil {
			return err
		}
		raw = append(raw, Sample{Throughput: sample[Throughput] / drainMoves})
		if err := r.wait(ctx, caller, "create", createArgs{Member: memberRID(i), State: 64, From: i * objects, To: (i + 1) * objects, Callers: 64}); err != nil {
			return err
		}
		var done drained
		meanwhile, err := roundsWhile(ctx, []side{r.side(caller, others), r.side(caller, control)}, func(ctx context.Context) error {
			return commander.call(ctx, "drain", i, &done)
		})
		if err != nil {
			return err
		}
		moved = append(moved, Sample{Throughput: float64(done.Objects) / done.Took.Seconds()})
		beside = append(beside, meanwhile[fabricSide]...)
		machine = append(machine, meanwhile[rawSide]...)
	}
	writes := sliceKey{Do: doUpdate, Side: rawSide, Payload: 64, Callers: 64}
	writes.Pace = max(1, int(Median(column(raw, Throughput))*drainMoves/2))
	long := *r
	long.Slice *= time.Duration(r.Pairs)
	floor, err := roundsWhile(ctx, []side{r.side(caller, control)}, func(ctx context.Context) error {
		_, err := long.side(commander, writes).slice(ctx)
		return err
	})
	if err != nil {
		return err
	}
	r.add("drain", 64, 0, moved, raw)
	r.add("drain-others", 16, drainCallers, beside, baseline(still[fabricSide], len(beside)))
	r.add("drain-others-control", 16, drainCallers, beside, machine)
	r.add("drain-others-floor", 16, drainCallers, floor[rawSide], baseline(still[rawSide], len(floor[rawSide])))
	return nil
}

// The Actors beside those that are drained, their member, and their callers.
const (
	drainOthers  = 100
	othersAt     = 99
	drainCallers = 8
)
