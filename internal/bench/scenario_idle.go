package bench

import (
	"context"
	"fmt"
	"time"
)

// smallMesh is the size of the small mesh of the scenario idle.
const smallMesh = 3

// idleNode is the measured node, alone in its process, and its mesh.
type idleNode struct {
	mesh  string
	nodes int
	p     *process
}

const idleRID = "measured"

func runIdle(ctx context.Context, r *run) error {
	if err := runIdleNodes(ctx, r); err != nil {
		return err
	}
	if err := r.stopAll(); err != nil {
		return err
	}
	return r.idleObjects(ctx)
}

func runIdleNodes(ctx context.Context, r *run) error {
	server, s, err := r.server(ctx, benchMesh, fewMesh)
	if err != nil {
		return err
	}
	idle := []idleNode{{mesh: benchMesh, nodes: r.IdleNodes}, {mesh: fewMesh, nodes: smallMesh}}
	for i := range idle {
		n := &idle[i]
		if n.p, err = r.start(ctx, "idler", idlerStart{s.URL, n.mesh, idleRID, 1}, nil); err != nil {
			return err
		}
		crowd, err := r.start(ctx, "idler", idlerStart{s.URL, n.mesh, "crowd", n.nodes - 1}, nil)
		if err != nil {
			return err
		}
		for _, p := range []*process{n.p, crowd} {
			if err := r.wait(ctx, p, "know", n.nodes); err != nil {
				return err
			}
		}
	}
	r.report.Setups = append(r.report.Setups, Setup{
		Scenario: "idle",
		Common: fmt.Sprintf("nats-server %s embedded in a process of its own, both meshes on it; the measured node is alone in its process; "+
			"default leases; %d windows of %v, both measured in the same windows, medians", s.Version, r.Pairs, r.IdleWindow),
		Fabric: fmt.Sprintf("a node of a mesh of %d nodes", r.IdleNodes),
		Raw:    fmt.Sprintf("a node of a mesh of %d nodes", smallMesh),
	})
	many, few, err := r.idleWindows(ctx, server, idle)
	if err != nil {
		return err
	}
	r.add("idle", 0, 0, many, few)
	return nil
}

// idleWindows watches both nodes for the given number of windows, after one in which they come to rest.
func (r *run) idleWindows(ctx context.Context, server *process, idle []idleNode) (many, few []Sample, err error) {
	r.Progress(fmt.Sprintf("idle: %d windows of %v", r.Pairs, r.IdleWindow))
	tick := time.NewTicker(r.IdleWindow)
	defer tick.Stop()
	var last []idleReading
	for window := range r.Pairs + 1 {
		select {
		case <-ctx.Done():
			return nil, nil, context.Cause(ctx)
		case <-tick.C:
		}
		now, err := readIdle(ctx, server, idle)
		if err != nil {
			return nil, nil, err
		}
		if window > 0 {
			many, few = append(many, now[0].since(last[0])), append(few, now[1].since(last[1]))
		}
		last = now
	}
	return many, few, nil
}

// idleReading is what was counted for one node up to a moment.
type idleReading struct {
	at   time.Time
	sent traffic
	cpu  time.Duration // negative where it can't be told
}

func readIdle(ctx context.Context, server *process, idle []idleNode) ([]idleReading, error) {
	var conns map[string]traffic
	if err := server.call(ctx, "traffic", nil, &conns); err != nil {
		return nil, err
	}
	out := make([]idleReading, len(idle))
	for i, n := range idle {
		name := "fabric " + n.mesh + "/" + idleRID
		t, ok := conns[name]
		if !ok {
			return nil, fmt.Errorf("the server has no connection named %q", name)
		}
		out[i] = idleReading{at: time.Now(), sent: t}
		if err := n.p.call(ctx, "cpu", nil, &out[i].cpu); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (r idleReading) since(before idleReading) Sample {
	seconds := r.at.Sub(before.at).Seconds()
	s := Sample{
		MsgsIn:  float64(r.sent.In-before.sent.In) / seconds,
		MsgsOut: float64(r.sent.Out-before.sent.Out) / seconds,
	}
	if before.cpu >= 0 && r.cpu >= 0 {
		s[CPU] = float64(r.cpu-before.cpu) / float64(time.Millisecond) / seconds
	}
	return s
}
