package bench

import (
	"context"
	"fmt"
	"slices"
)

// hostsOf starts the server, so many members, and the caller.
func hostsOf(ctx context.Context, r *run, n int) (hosts []*process, caller *process, s serverStarted, c callerStarted, err error) {
	if _, s, err = r.server(ctx, benchMesh, rawMesh); err != nil {
		return nil, nil, s, c, err
	}
	if hosts, err = r.members(ctx, s, n, 0); err != nil {
		return nil, nil, s, c, err
	}
	caller, c, err = r.caller(ctx, s, "caller", n)
	return hosts, caller, s, c, err
}

// members starts so many members, each with room for so many objects (0: the product's default).
func (r *run) members(ctx context.Context, s serverStarted, n, capacity int) ([]*process, error) {
	out := make([]*process, n)
	for i := range out {
		var err error
		start := memberStart{URL: s.URL, Mesh: benchMesh, RID: fmt.Sprintf("member-%d", i), Sink: i == 0, Capacity: capacity}
		if out[i], err = r.start(ctx, "member", start, nil); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// caller starts a caller that knows so many members.
func (r *run) caller(ctx context.Context, s serverStarted, rid string, members int) (p *process, c callerStarted, err error) {
	p, err = r.start(ctx, "caller", callerStart{URL: s.URL, Mesh: benchMesh, RID: rid, Members: members, RawMesh: rawMesh}, &c)
	return p, c, err
}

func runActor(ctx context.Context, r *run) error {
	if err := runRemoteActor(ctx, r); err != nil {
		return err
	}
	// The servers inside are a load of their own: nothing of the first half may run beside them.
	if err := r.stopAll(); err != nil {
		return err
	}
	m, s, err := startMesh(ctx, r)
	if err != nil {
		return err
	}
	common := "one member process, which owns one Actor for each caller, one caller process; default leases, warm routes"
	r.setup("actor-mesh", s, common, "Actors.Request; "+meshInside, "nats.Conn.Request in the same processes, "+meshOutside)
	r.setup("actor-mesh-floor", s, common, "Actors.Request; "+meshInside,
		"nats.Conn.Request in the same processes, on the same servers inside, with the options of the nodes' connections")
	err = r.slices(ctx, m.caller, doActor,
		against{name: "actor-mesh", raw: rawSide}, against{name: "actor-mesh-floor", raw: floorSide})
	if err != nil {
		return err
	}
	return m.leave(ctx, r)
}

func runRemoteActor(ctx context.Context, r *run) error {
	hosts, caller, s, c, err := hostsOf(ctx, r, 1)
	if err != nil {
		return err
	}
	r.setup("actor", s, fmt.Sprintf("one member process, one caller process, one connection per side: %s", c.Connection),
		"fabric.Node, Actors.Request; one Actor for each caller, warm routes; objects.Type with its defaults; default leases",
		"nats.Conn.Request; one subscription, answered in its callback; the fabric's connection options")
	if err := r.slices(ctx, caller, doActor, against{name: "actor", raw: rawSide}); err != nil {
		return err
	}
	return runLocalActor(ctx, r, hosts[0], s)
}

// localSlices is how much longer the slices of pairs in one process are: Go gives each pair a processor for 10 ms, so a
// round of 64 pairs on two processors takes 320 ms, and what one pair gets shows only after several.
const localSlices = 4

func runLocalActor(ctx context.Context, r *run, host *process, s serverStarted) error {
	long := *r
	long.Slice *= localSlices
	local := "in one process, one receiver for each caller; no NATS message; allocations of callers and receivers together"
	long.setup("actor-local", s, local, "Actors.Request; one Actor for each caller, whose node is the caller's",
		"a goroutine that takes messages from a Go channel of 1,024 and answers through another channel")
	long.setup("actor-local-send", s, fmt.Sprintf("%s; each pair has at most %d messages under way on the side of the fabric", local, sendWindow),
		"Actors.Send; one Actor for each caller, whose node is the caller's",
		"a goroutine that takes messages from a Go channel of 1,024, which makes its sender wait")
	if err := long.slicesOf(ctx, host, doLocalRequest, r.Payloads[:1], r.Callers, against{name: "actor-local", raw: rawSide}); err != nil {
		return err
	}
	return long.slicesOf(ctx, host, doLocalSend, r.Payloads[:1], r.Callers, against{name: "actor-local-send", raw: rawSide})
}

func runCreate(ctx context.Context, r *run) error {
	return runRecordPairs(ctx, r, doCreate, "Actors.Create with the payload as input; one operation is one Actor")
}

func runActivate(ctx context.Context, r *run) error {
	return runRecordPairs(ctx, r, doActivate,
		"Spots.Request to an Instance Spot that nothing has made yet, the payload as its first message; one operation is one activation and its reply")
}

// recordSlices is how much longer the slices of record writes are: with many callers one takes a good part of a slice.
const recordSlices = 2

// runRecordPairs measures what makes an object, which is two writes of a record, against such writes by hand.
func runRecordPairs(ctx context.Context, r *run, op, fabric string) error {
	_, caller, s, c, err := hostsOf(ctx, r, members)
	if err != nil {
		return err
	}
	common := fmt.Sprintf("file storage, 1 replica, both sides write values of the same size to buckets of the same make; "+
		"%d member processes, one caller process, one connection per side: %s", members, c.Connection)
	long := *r
	long.Slice *= recordSlices
	fabric += "; the members write; objects.Type with its defaults"
	raw := "one operation is two nats.Conn.RequestMsg by the caller, one after the other, with the expected revision and a fresh message ID"
	long.setup(op, s, common, fabric, raw+", to a key of the caller's that exists: half of the rate of compare-and-set publishes")
	long.setup(op+"-fresh", s, common, fabric, raw+", to a key that the first one makes")
	return long.slices(ctx, caller, op, against{name: op, raw: casSide}, against{name: op + "-fresh", raw: rawSide})
}

func runHot(ctx context.Context, r *run) error {
	hosts, caller, s, c, err := hostsOf(ctx, r, 1)
	if err != nil {
		return err
	}
	hot, _, err := r.caller(ctx, s, "hot", 1)
	if err != nil {
		return err
	}
	payload, callers := r.Payloads[0], slices.Max(r.Callers)
	common := fmt.Sprintf("one member process owns the hot Actor and %d others; one caller process asks the others in turn, %d requests a second "+
		"by %d callers, and only these are measured (load: messages to the hot one); one connection per process: %s",
		r.Others, othersPace, callers, c.Connection)
	quiet := "the same without any other load"
	remote := fmt.Sprintf("beside it another process sends requests to the hot Actor at full speed, with %d callers", callers)
	r.setup("hot", s, common, remote, quiet)
	r.setup("hot-control", s, common, remote, "beside it the other process sends as many raw requests as it can to a plain subscription of the member process")
	local := "beside it a caller in the member process sends to the hot Actor at full speed"
	r.setup("hot-local", s, common, local, quiet)
	r.setup("hot-local-control", s, common, local, "beside it a goroutine in the member process sends to another one through a Go channel at full speed")

	others := sliceKey{Do: doOthers, Side: fabricSide, Payload: payload, Callers: callers, Objects: r.Others}
	beside := func(name string, p *process, k sliceKey) side {
		return side{name: name, slice: func(ctx context.Context) (Sample, error) { return r.beside(ctx, p, k, caller, others) }}
	}
	alone := r.side(caller, others)
	alone.name = "quiet"
	return r.compare(ctx, payload, callers, []side{
		alone,
		beside("hot", hot, sliceKey{Do: doHot, Side: fabricSide, Payload: payload, Callers: callers}),
		beside("raw", hot, sliceKey{Do: doHot, Side: rawSide, Payload: payload, Callers: callers}),
		beside("local", hosts[0], sliceKey{Do: doLocalSend, Side: fabricSide, Payload: payload, Callers: 1}),
		beside("plain", hosts[0], sliceKey{Do: doLocalSend, Side: rawSide, Payload: payload, Callers: 1}),
	},
		against{name: "hot", side: "hot", raw: "quiet"}, against{name: "hot-control", side: "hot", raw: "raw"},
		against{name: "hot-local", side: "local", raw: "quiet"}, against{name: "hot-local-control", side: "local", raw: "plain"})
}

// beside measures a slice while another process runs a load.
func (r *run) beside(ctx context.Context, p *process, k sliceKey, measured *process, of sliceKey) (Sample, error) {
	if err := r.wait(ctx, p, "load", k); err != nil {
		return nil, err
	}
	s, err := r.side(measured, of).slice(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	var perSecond float64
	if err := p.call(ctx, "unload", nil, &perSecond); err != nil {
		return nil, err
	}
	s[Load] = perSecond
	return s, nil
}
