package bench

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"time"
)

const (
	// streamCallers are enough to keep the stream's pace while a request takes up to 30 ms.
	streamCallers = 16
	// createCallers is how many idle objects are being made at a time.
	createCallers = 64
	// createBatch is how many idle objects are made between two looks at the run.
	createBatch = 5_000
	// freeObjects is the room that a node has beside its idle objects.
	freeObjects = 1_000
)

// idleObjects makes many objects on one node, and asks another object of that node all the time.
func (r *run) idleObjects(ctx context.Context) error {
	_, s, err := r.serverWith(ctx, serverStart{Meshes: []string{benchMesh}, NoSync: true})
	if err != nil {
		return err
	}
	hosts, err := r.members(ctx, s, 1, r.Objects+freeObjects)
	if err != nil {
		return err
	}
	asking, c, err := r.caller(ctx, s, "asking", 1)
	if err != nil {
		return err
	}
	creating, _, err := r.caller(ctx, s, "creating", 1)
	if err != nil {
		return err
	}
	r.idleObjectsSetup(s, c)

	r.Progress("idle: asking one Actor, before")
	k := sliceKey{Do: doStream, Side: fabricSide, Payload: r.Payloads[0], Callers: streamCallers}
	raw := k
	raw.Side = rawSide
	sides := []side{r.side(asking, k), r.side(asking, raw)}
	before, err := rounds(ctx, r.Pairs, sides)
	if err != nil {
		return err
	}
	empty, err := r.memoryOf(ctx, hosts[0])
	if err != nil {
		return err
	}
	begun := time.Now()
	during, err := roundsWhile(ctx, sides, func(ctx context.Context) error { return r.createIdle(ctx, creating) })
	if err != nil {
		return err
	}
	took := time.Since(begun)
	full, err := r.memoryOf(ctx, hosts[0])
	if err != nil {
		return err
	}
	weight := full.perObject(empty, r.Objects)
	weight[Throughput] = float64(r.Objects) / took.Seconds()
	r.add("idle-objects", 0, createCallers, []Sample{weight}, nil)
	asked := during[fabricSide]
	r.add("idle-stream", k.Payload, streamCallers, asked, baseline(before[fabricSide], len(asked)))
	r.add("idle-stream-control", k.Payload, streamCallers, asked, during[rawSide])
	return nil
}

func (r *run) idleObjectsSetup(s serverStarted, c callerStarted) {
	common := fmt.Sprintf("nats-server %s embedded in a process of its own, sync_interval %s (what an object weighs does not depend on it); "+
		"one member process, which owns %d Actors without state; %s, GOMAXPROCS %d",
		s.Version, s.Sync, r.Objects, runtime.Version(), runtime.GOMAXPROCS(0))
	stream := fmt.Sprintf("%s; a third process asks one more Actor of the member, %d requests a second by %d callers; windows of %v, medians; "+
		"max is the longest request of all windows; connection: %s", common, streamPace, streamCallers, r.Slice, c.Connection)
	r.report.Setups = append(r.report.Setups, Setup{
		Scenario: "idle-objects", Common: common,
		Fabric: fmt.Sprintf("what the Actors added to the member's memory, after a garbage collection; made by another process, %d at a time; "+
			"objects.Type with its defaults but Capacity", createCallers),
		Raw: "nothing",
	}, Setup{
		Scenario: "idle-stream", Common: stream,
		Fabric: "while the Actors are made",
		Raw:    "before",
	}, Setup{
		Scenario: "idle-stream-control", Common: stream,
		Fabric: "while the Actors are made",
		Raw:    "raw requests at the same pace to a plain subscription of the member process, while the Actors are made: what the machine alone does",
	})
}

func (r *run) createIdle(ctx context.Context, p *process) error {
	for from := 0; from < r.Objects; from += createBatch {
		to := min(from+createBatch, r.Objects)
		if err := r.wait(ctx, p, "create", createArgs{From: from, To: to, Callers: createCallers}); err != nil {
			return err
		}
		if to%(20*createBatch) == 0 || to == r.Objects {
			r.Progress(fmt.Sprintf("idle: %d objects", to))
		}
	}
	return nil
}

func (r *run) memoryOf(ctx context.Context, p *process) (m memory, err error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	return m, p.call(ctx, "memory", nil, &m)
}

// baseline is what samples come to, n times, so that each of n others can be set against it: medians, and the longest
// operation of all.
func baseline(samples []Sample, n int) []Sample {
	s := Sample{}
	for _, m := range metrics {
		if v := column(samples, m.name); len(v) > 0 {
			s[m.name] = middle(m.name, v)
		}
	}
	return slices.Repeat([]Sample{s}, n)
}
