package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"

	"github.com/coder/websocket"

	"natsfabric/objects"
	"natsfabric/session"
	"natsfabric/session/client"
)

// doRelay is a request of a client at the edge.
const doRelay = "relay"

// The paths of a member's edge.
const (
	sessionPath = "/session"
	rawPath     = "/raw"
)

// anybody lets every client in.
func anybody(context.Context, session.Hello) (session.Identity, error) {
	return session.Identity{Subject: "anybody"}, nil
}

// serveEdge listens for clients: sessions, and WebSockets whose messages are passed on to a member by hand.
func (r *memberRole) serveEdge(rawTo string) (url string, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	mux := http.NewServeMux()
	mux.Handle(sessionPath, r.node.Sessions().Handler())
	mux.HandleFunc(rawPath, func(w http.ResponseWriter, req *http.Request) {
		ws, err := websocket.Accept(w, req, nil)
		if err != nil {
			return
		}
		defer func() { _ = ws.CloseNow() }() // the client has gone
		for {
			kind, data, err := ws.Read(req.Context())
			if err != nil {
				return
			}
			m, err := r.raw.Request(directOf(rawTo), data, rawTimeout)
			if err != nil || ws.Write(req.Context(), kind, m.Data) != nil {
				return
			}
		}
	})
	r.edge = &http.Server{Handler: mux}
	go func() { _ = r.edge.Serve(l) }() // ends with Close
	return "ws://" + l.Addr().String(), nil
}

// relayWork has each caller ask an Actor of its own through a session of its own, or a member through a WebSocket of
// its own and a server's process in between.
func (r *callerRole) relayWork(ctx context.Context, k sliceKey) (work, error) {
	data := make([]byte, k.Payload)
	if k.Side == rawSide {
		conns := make([]*websocket.Conn, k.Callers)
		for i := range conns {
			ws, _, err := websocket.Dial(ctx, r.start.Edge+rawPath, nil)
			if err != nil {
				return work{}, err
			}
			ws.SetReadLimit(-1)
			conns[i] = ws
			r.edges = append(r.edges, func() { _ = ws.CloseNow() })
		}
		return work{op: func(c int) error {
			ctx := context.Background()
			if err := conns[c].Write(ctx, websocket.MessageBinary, data); err != nil {
				return err
			}
			_, reply, err := conns[c].Read(ctx)
			return errors.Join(err, sameSize(reply, data))
		}}, nil
	}
	bindings := make([]*client.Binding, k.Callers)
	for i := range bindings {
		id := fmt.Sprintf("relay-%d-%d-%d", k.Payload, k.Callers, i)
		ref, err := r.node.Actors().Create(ctx, echoType, id, nil, objects.AtNode(memberRID(1)))
		if err != nil {
			return work{}, err
		}
		c, err := client.Dial(ctx, client.Config{URLs: []string{r.start.Edge + sessionPath}})
		if err != nil {
			return work{}, err
		}
		r.edges = append(r.edges, c.Close)
		if bindings[i], err = c.Bind(ctx, ref.String()); err != nil {
			return work{}, err
		}
	}
	return work{op: func(c int) error {
		reply, err := bindings[c].Request(context.Background(), data)
		if err != nil {
			return err
		}
		return sameSize(reply, data)
	}}, nil
}

func runSession(ctx context.Context, r *run) error {
	_, s, err := r.server(ctx, benchMesh, rawMesh)
	if err != nil {
		return err
	}
	var edge memberStarted
	if _, err := r.start(ctx, "member", memberStart{URL: s.URL, Mesh: benchMesh, RID: memberRID(0), Sessions: true, RawTo: memberRID(1)}, &edge); err != nil {
		return err
	}
	if _, err := r.mover(ctx, s, 1); err != nil {
		return err
	}
	var c callerStarted
	caller, err := r.start(ctx, "caller", callerStart{URL: s.URL, Mesh: benchMesh, RID: "caller", Members: 2, RawMesh: rawMesh, Edge: edge.Edge}, &c)
	if err != nil {
		return err
	}
	r.setup("session", s, fmt.Sprintf("one process owns the connections of clients, another answers, a third has the clients, one WebSocket for each caller; connections to NATS: %s", c.Connection),
		"client.Binding.Request; one session and one Actor for each caller; default heartbeats",
		"a WebSocket message, nats.Conn.Request by the process that owns the connection, and a WebSocket message back; coder/websocket on both sides")
	return r.slices(ctx, caller, doRelay, against{name: "session", raw: rawSide})
}
