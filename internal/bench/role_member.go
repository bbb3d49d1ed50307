package bench

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"sync/atomic"

	"github.com/nats-io/nats.go"

	"natsfabric/channels"
	"natsfabric/fabric"
	"natsfabric/session"
)

// The channels of a member, and the subjects of their raw counterparts.
const (
	echoChannel = "echo" // answers with the payload
	noteChannel = "note" // takes a Send; its raw counterpart answers with the member's RID, as an acceptance notice does
	sinkChannel = "sink" // counts what is sent without confirmation; one member serves it
	rawEcho     = "bench.echo"
	rawNote     = "bench.note"
	rawSink     = "bench.sink"
	rawGroup    = "bench"
	countsOf    = "bench.counts"
)

// counts is how many messages the sink has got on each side.
type counts struct {
	Fabric int64 `json:"fabric"`
	Raw    int64 `json:"raw"`
}

// memberRole is one process that serves both sides, each on its own connection, and hosts objects.
type memberRole struct {
	node        *fabric.Node
	raw, ctl    *nats.Conn
	fabricCount atomic.Int64
	rawCount    atomic.Int64

	// Objects in this process, and their counterparts.
	worker
	counters counters
	plain    []*plainActor
	edge     *http.Server
}

type memberStart struct {
	URL  string `json:"url"`
	Mesh string `json:"mesh"`
	RID  string `json:"rid"`
	Sink bool   `json:"sink"`
	// Wave is the node's maintenance wave.
	Wave string `json:"wave"`
	// Sessions has the node own sessions; its raw counterpart passes on to the member RawTo.
	Sessions bool   `json:"sessions"`
	RawTo    string `json:"raw_to"`
	// Capacity is the most objects of the node. Default: the product's.
	Capacity int `json:"capacity"`
}

func (r *memberRole) do(ctx context.Context, op string, raw json.RawMessage) (any, error) {
	switch op {
	case "start":
		a, err := decode[memberStart](raw)
		if err != nil {
			return nil, err
		}
		return r.start(ctx, a)
	case "memory":
		return memoryInUse(), nil
	}
	return r.worker.do(ctx, op, raw)
}

// memberStarted says where a member listens for clients.
type memberStarted struct {
	Edge string `json:"edge"` // a WebSocket URL without a path
}

func (r *memberRole) start(ctx context.Context, a memberStart) (started memberStarted, err error) {
	if err = r.open(ctx, a); err == nil && a.Sessions {
		started.Edge, err = r.serveEdge(a.RawTo)
	}
	return started, err
}

func (r *memberRole) open(ctx context.Context, a memberStart) (err error) {
	r.prepare = r.localWork
	specs := []channels.Spec{
		{Name: echoChannel, Handler: echo},
		{Name: noteChannel, Handler: func(context.Context, *channels.Request) (channels.Reply, error) {
			return channels.Reply{}, nil
		}},
	}
	if a.Sink {
		specs = append(specs, channels.Spec{Name: sinkChannel, Queue: nats.DefaultSubPendingMsgsLimit, QueueBytes: nats.DefaultSubPendingBytesLimit, Handler: func(context.Context, *channels.Request) (channels.Reply, error) {
			r.fabricCount.Add(1)
			return channels.Reply{}, nil
		}})
	}
	cfg := fabric.Config{
		Mesh: a.Mesh, RID: a.RID, Connect: fabric.Connect{URL: a.URL}, Channels: specs,
		Types: objectTypes(&r.counters, a.Capacity), Capacity: a.Capacity, Wave: a.Wave,
	}
	if a.Sessions {
		cfg.Sessions = &session.Config{Authenticate: anybody}
	}
	r.node, err = fabric.Start(ctx, cfg)
	if err != nil {
		return err
	}
	if r.raw, err = likeFabric(r.node.Conn(), "raw "+a.RID); err != nil {
		return err
	}
	if r.ctl, err = likeFabric(r.node.Conn(), "control "+a.RID); err != nil {
		return err
	}
	if err := r.serveMoves(a.RID); err != nil {
		return err
	}
	if err := serveEcho(r.raw, directOf(a.RID), ""); err != nil {
		return err
	}
	rid := []byte(a.RID)
	if err := serveRawEcho(r.raw); err != nil {
		return err
	}
	if _, err = r.raw.QueueSubscribe(rawNote, rawGroup, func(m *nats.Msg) { _ = m.Respond(rid) }); err != nil {
		return err
	}
	if a.Sink {
		if _, err = r.raw.QueueSubscribe(rawSink, rawGroup, func(*nats.Msg) { r.rawCount.Add(1) }); err != nil {
			return err
		}
		if err := r.serveCounts(); err != nil {
			return err
		}
	}
	return errors.Join(r.raw.Flush(), r.ctl.Flush())
}

// serveCounts answers for the sink's counts, on a connection that no measured message delays.
func (r *memberRole) serveCounts() error {
	_, err := r.ctl.Subscribe(countsOf, func(m *nats.Msg) {
		b, err := json.Marshal(counts{Fabric: r.fabricCount.Load(), Raw: r.rawCount.Load()})
		if err == nil {
			_ = m.Respond(b)
		}
	})
	return err
}

func (r *memberRole) close(ctx context.Context) (err error) {
	_, err = r.unload()
	for _, p := range r.plain {
		p.close()
	}
	if r.edge != nil {
		err = errors.Join(err, r.edge.Close())
	}
	return errors.Join(err, closeAll(ctx, r.node, r.raw, r.ctl))
}

// serveRawEcho answers as a plain NATS program does.
func serveRawEcho(nc *nats.Conn) error { return serveEcho(nc, rawEcho, rawGroup) }

// directOf is a subject that one member answers alone.
func directOf(rid string) string { return "bench.direct." + rid }

func serveEcho(nc *nats.Conn, subject, group string) error {
	_, err := nc.QueueSubscribe(subject, group, func(m *nats.Msg) { _ = m.Respond(m.Data) })
	return errors.Join(err, nc.Flush())
}

func echo(_ context.Context, req *channels.Request) (channels.Reply, error) {
	return channels.Reply{Data: req.Data()}, nil
}

// likeFabric opens another connection with the options that the fabric gave its own.
func likeFabric(nc *nats.Conn, name string) (*nats.Conn, error) {
	o := nc.Opts
	o.Name = name
	// The handlers belong to the fabric; they say nothing about how the connection works.
	o.AsyncErrorCB = func(*nats.Conn, *nats.Subscription, error) {}
	o.ClosedCB, o.DisconnectedErrCB, o.ReconnectedCB, o.ConnectedCB = nil, nil, nil, nil
	return o.Connect()
}

// closeAll shuts a node down and closes connections; each of them may be nil.
func closeAll(ctx context.Context, node *fabric.Node, conns ...*nats.Conn) error {
	for _, nc := range conns {
		if nc != nil {
			nc.Close()
		}
	}
	if node == nil {
		return nil
	}
	return node.Shutdown(ctx)
}
