package bench

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/nats-io/nats.go"

	"natsfabric/channels"
	"natsfabric/fabric"
	"natsfabric/internal/embedded"
	"natsfabric/kvlocation"
	"natsfabric/objects"
)

// peerRole is one process of a mesh without other servers: it runs a server of a cluster inside, with a node on it in
// memory. Beside it stands a second node of the same process, on one external server. Both have a raw connection
// beside them.
type peerRole struct {
	start                 peerStart
	srv                   *embedded.Server
	inside, outside       *fabric.Node
	rawInside, rawOutside *nats.Conn
	worker
	counters counters
}

// Sides of the scenarios between peers, beside fabricSide and rawSide: the fabric through the external server, and raw
// requests between the servers inside, which is what the transport itself costs.
const (
	externalSide = "external"
	floorSide    = "floor"
)

type peerStart struct {
	Dir     string   `json:"dir"`
	Name    string   `json:"name"`
	Port    int      `json:"port"` // of the cluster
	Routes  []string `json:"routes"`
	Mesh    string   `json:"mesh"`
	OuterAt string   `json:"outer_at"` // URL of the external server
}

func (r *peerRole) do(ctx context.Context, op string, raw json.RawMessage) (any, error) {
	switch op {
	case "start":
		a, err := decode[peerStart](raw)
		if err != nil {
			return nil, err
		}
		r.start, r.prepare = a, r.peerWork
		r.srv, err = startServer(ctx, embedded.Config{
			ServerName: a.Name, StoreDir: a.Dir, ClusterName: "bench", ClusterPort: a.Port, Routes: a.Routes,
		})
		return nil, err
	case "init":
		return nil, r.init(ctx)
	case "serve":
		return nil, r.serve(ctx)
	case "call":
		if err := r.open(ctx, nil); err != nil {
			return nil, err
		}
		return nil, errors.Join(awaitMembers(ctx, r.inside, echoChannel, 1), awaitMembers(ctx, r.outside, echoChannel, 1))
	case "leave": // while both servers still make a quorum
		return nil, r.leave(ctx)
	}
	return r.worker.do(ctx, op, raw)
}

// init makes the mesh's buckets once the cluster has a leader.
func (r *peerRole) init(ctx context.Context) error {
	if err := r.srv.WaitJetStream(ctx); err != nil {
		return err
	}
	nc, err := nats.Connect("", r.srv.InProcess())
	if err != nil {
		return err
	}
	defer nc.Close()
	_, err = kvlocation.Init(ctx, nc, kvlocation.Setup{Mesh: r.start.Mesh})
	return err
}

// serve makes the process the member: it answers on every side.
func (r *peerRole) serve(ctx context.Context) error {
	err := r.open(ctx, objectTypes(&r.counters, 0), channels.Spec{Name: echoChannel, Handler: echo})
	if err != nil {
		return err
	}
	return errors.Join(serveRawEcho(r.rawInside), serveRawEcho(r.rawOutside))
}

// peerWork returns what the callers of a slice do.
func (r *peerRole) peerWork(ctx context.Context, k sliceKey) (work, error) {
	data := make([]byte, k.Payload)
	switch k.Side {
	case fabricSide:
		if k.Do == doActor {
			ids, err := createActors(ctx, r.inside.Actors(), echoType, k, k.Callers)
			return actorWork(r.inside.Actors(), ids, data), err
		}
		return requestWork(r.inside.Channel(echoChannel), data), nil
	case externalSide:
		return requestWork(r.outside.Channel(echoChannel), data), nil
	case floorSide:
		return rawRequestWork(r.rawInside, rawEcho, data), nil
	case rawSide:
		return rawRequestWork(r.rawOutside, rawEcho, data), nil
	}
	return work{}, unknownWork(k)
}

func (r *peerRole) open(ctx context.Context, types []objects.Type, specs ...channels.Spec) (err error) {
	if err := r.srv.WaitJetStream(ctx); err != nil {
		return err
	}
	r.inside, err = fabric.Start(ctx, fabric.Config{
		Mesh: r.start.Mesh, RID: r.start.Name, Channels: specs, Types: types,
		Connect: fabric.Connect{URL: r.srv.URL(), Options: []nats.Option{r.srv.InProcess()}},
	})
	if err != nil {
		return err
	}
	r.outside, err = fabric.Start(ctx, fabric.Config{
		Mesh: r.start.Mesh, RID: r.start.Name, Channels: specs, Connect: fabric.Connect{URL: r.start.OuterAt},
	})
	if err != nil {
		return err
	}
	if r.rawInside, err = likeFabric(r.inside.Conn(), "raw "+r.start.Name); err != nil {
		return err
	}
	r.rawOutside, err = likeFabric(r.outside.Conn(), "raw "+r.start.Name)
	return err
}

func (r *peerRole) close(ctx context.Context) error {
	err := r.leave(ctx)
	if r.srv != nil {
		r.srv.Shutdown()
	}
	return err
}

func (r *peerRole) leave(ctx context.Context) error {
	return errors.Join(closeAll(ctx, r.outside, r.rawOutside), closeAll(ctx, r.inside, r.rawInside))
}
