package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"natsfabric/channels"
	"natsfabric/fabric"
	"natsfabric/kvlocation"
	"natsfabric/objects"
)

// The sides of a comparison.
const (
	fabricSide = "fabric"
	rawSide    = "raw"
	kvSide     = "kv"  // jetstream.KeyValue, as a second counterpart of the store
	casSide    = "cas" // compare-and-set of keys that exist, as a second counterpart of creations
)

// What a caller can do.
const (
	doRequest = "request"
	doSend    = "send"
	doPublish = "publish"
	doUpdate  = "update"
)

// rawTimeout bounds a raw operation, as the fabric's default timeout bounds its own.
const rawTimeout = fabric.DefaultTimeout

// callerRole is the process whose operations are measured: a node that serves nothing, and a raw connection.
type callerRole struct {
	start    callerStart
	node     *fabric.Node
	raw, ctl *nats.Conn
	worker
	recorded map[sliceKey]recordPair
	carriers map[string]*carried
	gaps     map[string][]float64 // in milliseconds, of the moves of a side
	edges    []func()             // ends the connections of clients
}

type callerStart struct {
	URL     string `json:"url"`
	Mesh    string `json:"mesh"`
	RID     string `json:"rid"`
	Members int    `json:"members"`
	// Edge is where clients connect.
	Edge string `json:"edge,omitempty"`
	// RawMesh has the buckets to which raw store writes go.
	RawMesh string `json:"raw_mesh"`
}

func (r *callerRole) do(ctx context.Context, op string, raw json.RawMessage) (any, error) {
	switch op {
	case "start":
		a, err := decode[callerStart](raw)
		if err != nil {
			return nil, err
		}
		return r.open(ctx, a)
	case "create":
		a, err := decode[createArgs](raw)
		if err != nil {
			return nil, err
		}
		return nil, r.create(ctx, a)
	case "others": // the Actors that doOthers asks, at a member that is never drained
		k, err := decode[sliceKey](raw)
		if err != nil {
			return nil, err
		}
		_, err = createActors(ctx, r.node.Actors(), echoType, k, k.Objects, objects.AtNode(memberRID(othersAt)))
		return nil, err
	case "gaps":
		side, err := decode[string](raw)
		return r.gaps[side], err
	case "know": // waits until the node knows so many serving members
		n, err := decode[int](raw)
		if err != nil {
			return nil, err
		}
		return nil, awaitMembers(ctx, r.node, echoChannel, n)
	case "drain":
		i, err := decode[int](raw)
		if err != nil {
			return nil, err
		}
		return r.drain(i)
	}
	return r.worker.do(ctx, op, raw)
}

// callerStarted describes the connection, which is the same on both sides.
type callerStarted struct {
	Connection string `json:"connection"`
}

func (r *callerRole) open(ctx context.Context, a callerStart) (started callerStarted, err error) {
	r.start, r.prepare = a, r.callerWork
	if r.node, err = fabric.Start(ctx, fabric.Config{Mesh: a.Mesh, RID: a.RID, Connect: fabric.Connect{URL: a.URL}}); err != nil {
		return started, err
	}
	if r.raw, err = likeFabric(r.node.Conn(), "raw "+a.RID); err != nil {
		return started, err
	}
	if r.ctl, err = likeFabric(r.node.Conn(), "control "+a.RID); err != nil {
		return started, err
	}
	if err := awaitMembers(ctx, r.node, echoChannel, a.Members); err != nil {
		return started, err
	}
	return callerStarted{Connection: describe(r.node.Conn())}, nil
}

func (r *callerRole) close(ctx context.Context) (err error) {
	_, err = r.unload()
	for _, end := range r.edges {
		end()
	}
	return errors.Join(err, closeAll(ctx, r.node, r.raw, r.ctl))
}

// describe names the options of a connection that matter for its speed.
func describe(nc *nats.Conn) string {
	o := nc.Opts
	return fmt.Sprintf("TCP loopback, ReconnectBufSize %d, PingInterval %v, SubChanLen %d, FlusherTimeout %v, compression %v",
		o.ReconnectBufSize, o.PingInterval, o.SubChanLen, o.FlusherTimeout, o.Compression)
}

// awaitMembers waits until the node knows so many serving members of a channel.
func awaitMembers(ctx context.Context, node *fabric.Node, channel string, want int) error {
	return awaitServing(ctx, want, func() []kvlocation.Member { return node.Members().Channel(channel) })
}

// settlePoll is the time between two looks at something that no signal tells.
const settlePoll = 2 * time.Millisecond

// awaitServing waits until so many of the members that a node knows are serving.
func awaitServing(ctx context.Context, want int, known func() []kvlocation.Member) error {
	tick := time.NewTicker(settlePoll)
	defer tick.Stop()
	for {
		have := 0
		for _, m := range known() {
			if m.State == kvlocation.StateServing {
				have++
			}
		}
		if have == want {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the node knows %d serving members of %d: %w", have, want, context.Cause(ctx))
		case <-tick.C:
		}
	}
}

// callerWork returns what the callers of a slice do.
func (r *callerRole) callerWork(ctx context.Context, k sliceKey) (work, error) {
	data := make([]byte, k.Payload)
	bg := context.Background() // no deadline: the product's default timeout bounds each call
	switch {
	case k.Do == doRequest && k.Side == fabricSide:
		return requestWork(r.node.Channel(echoChannel), data), nil
	case (k.Do == doRequest || k.Do == doActor || k.Do == doHot) && k.Side == rawSide:
		return rawRequestWork(r.raw, rawEcho, data), nil
	case k.Do == doStream && k.Side == rawSide:
		w := rawRequestWork(r.raw, rawEcho, data)
		w.every = pace(k.Callers, streamPace)
		return w, nil
	case k.Do == doOthers && k.Side == rawSide:
		w := rawRequestWork(r.raw, directOf(memberRID(othersAt)), data)
		w.every = pace(k.Callers, othersPace)
		return w, nil
	case k.Do == doSend && k.Side == fabricSide:
		ch := r.node.Channel(noteChannel)
		return work{op: func(int) error { return ch.Send(bg, data) }}, nil
	case k.Do == doSend && k.Side == rawSide:
		return work{op: func(int) error {
			_, err := r.raw.Request(rawNote, data, rawTimeout)
			return err
		}}, nil
	case k.Do == doPublish && k.Side == fabricSide:
		ch := r.node.Channel(sinkChannel)
		return r.publishWork(r.node.Conn(), func(c counts) int64 { return c.Fabric },
			func(int) error { return ch.SendUnconfirmed(bg, data) }), nil
	case k.Do == doPublish && k.Side == rawSide:
		return r.publishWork(r.raw, func(c counts) int64 { return c.Raw },
			func(int) error { return r.raw.Publish(rawSink, data) }), nil
	case k.Do == doGuardKey, k.Do == doGuardStream:
		return r.guardWork(ctx, k)
	case k.Do == doRelay:
		return r.relayWork(ctx, k)
	case k.Do == doMove, k.Do == doCarry, k.Do == doBulk:
		return r.moveWork(ctx, k)
	case k.Do == doUpdate:
		w, err := r.storeWork(ctx, k)
		if k.Pace > 0 {
			w.every = pace(k.Callers, k.Pace)
		}
		return w, err
	case (k.Do == doCreate || k.Do == doActivate) && k.Side != fabricSide:
		return r.rawPairWork(ctx, k)
	case k.Side == fabricSide:
		return r.objectWork(ctx, k)
	}
	return work{}, unknownWork(k)
}

func unknownWork(k sliceKey) error { return fmt.Errorf("%s does not %q", k.Side, k.Do) }

func rawRequestWork(nc *nats.Conn, subject string, data []byte) work {
	return work{op: func(int) error {
		m, err := nc.Request(subject, data, rawTimeout)
		if err != nil {
			return err
		}
		return sameSize(m.Data, data)
	}}
}

func requestWork(ch *channels.Channel, data []byte) work {
	return work{op: func(int) error {
		reply, err := ch.Request(context.Background(), data)
		if err != nil {
			return err
		}
		return sameSize(reply.Data, data)
	}}
}

func sameSize(got, want []byte) error {
	if len(got) != len(want) {
		return fmt.Errorf("an echo of %d bytes has %d", len(want), len(got))
	}
	return nil
}

// quiet is how long a sink's count must stand still before what is missing counts as lost.
const quiet = 200 * time.Millisecond

// publishWork hands messages to the client library and ends with the server having read them all.
func (r *callerRole) publishWork(nc *nats.Conn, side func(counts) int64, op func(int) error) work {
	var base int64
	return work{
		op:    op,
		flush: func(context.Context) error { return nc.Flush() },
		before: func(ctx context.Context) error {
			c, err := r.counts(ctx)
			base = side(c)
			return err
		},
		settle: func(ctx context.Context, sent int64) (arrived int64, last time.Time, err error) {
			last = time.Now()
			for {
				c, err := r.counts(ctx)
				if err != nil {
					return 0, last, err
				}
				if n := side(c) - base; n > arrived {
					arrived, last = n, time.Now()
				}
				if arrived >= sent || time.Since(last) > quiet {
					return arrived, last, nil
				}
				select {
				case <-ctx.Done():
					return 0, last, context.Cause(ctx)
				case <-time.After(settlePoll):
				}
			}
		},
	}
}

func (r *callerRole) counts(ctx context.Context) (c counts, err error) {
	ctx, cancel := context.WithTimeout(ctx, rawTimeout)
	defer cancel()
	m, err := r.ctl.RequestWithContext(ctx, countsOf, nil)
	if err != nil {
		return c, errors.Join(errors.New("the member does not tell what it counted"), err)
	}
	return c, json.Unmarshal(m.Data, &c)
}
