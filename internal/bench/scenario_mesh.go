package bench

import (
	"context"
	"path/filepath"
)

// meshPair are two processes whose embedded servers form a cluster.
type meshPair struct{ member, caller *process }

// startMesh starts the external server, the two processes and their nodes.
func startMesh(ctx context.Context, r *run) (m meshPair, s serverStarted, err error) {
	if _, s, err = r.server(ctx, benchMesh); err != nil {
		return m, s, err
	}
	ports, err := freePorts(2)
	if err != nil {
		return m, s, err
	}
	for i, p := range []struct {
		name string
		to   **process
	}{{"member", &m.member}, {"caller", &m.caller}} {
		*p.to, err = r.start(ctx, "peer", peerStart{
			Dir: filepath.Join(r.dir, p.name), Name: p.name, Port: ports[i], Routes: []string{routeTo(ports[1-i])},
			Mesh: benchMesh, OuterAt: s.URL,
		}, nil)
		if err != nil {
			return m, s, err
		}
	}
	for _, step := range []struct {
		p  *process
		op string
	}{{m.member, "init"}, {m.member, "serve"}, {m.caller, "call"}} {
		if err := r.wait(ctx, step.p, step.op, nil); err != nil {
			return m, s, err
		}
	}
	return m, s, nil
}

// leave shuts the nodes down while both servers still make a quorum.
func (m meshPair) leave(ctx context.Context, r *run) error {
	for _, p := range []*process{m.caller, m.member} {
		if err := r.wait(ctx, p, "leave", nil); err != nil {
			return err
		}
	}
	return nil
}

const (
	meshInside = "both processes embed a server with the product's defaults, which form a cluster; each node is on its own server, " +
		"in memory; allocations are those of caller and server together"
	meshOutside = "on the external server over loopback TCP"
)

func runMesh(ctx context.Context, r *run) error {
	m, s, err := startMesh(ctx, r)
	if err != nil {
		return err
	}
	common := "one member process, one caller process, default leases; requests to one member"
	r.setup("mesh", s, common, "Channel.Request of a fabric.Node; "+meshInside, "Channel.Request of the same processes' second nodes, "+meshOutside)
	r.setup("mesh-floor", s, common, "Channel.Request of a fabric.Node; "+meshInside,
		"nats.Conn.Request in the same processes, on the same servers inside, with the options of the nodes' connections")
	r.setup("mesh-transport", s, common, "nats.Conn.Request; "+meshInside, "nats.Conn.Request in the same processes, "+meshOutside)
	err = r.slices(ctx, m.caller, doRequest,
		against{name: "mesh", raw: externalSide},
		against{name: "mesh-floor", raw: floorSide},
		against{name: "mesh-transport", side: floorSide, raw: rawSide})
	if err != nil {
		return err
	}
	return m.leave(ctx, r)
}
