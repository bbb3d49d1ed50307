package reference

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"natsfabric/channels"
	"natsfabric/internal/wire"
	"natsfabric/outcome"
)

// The names of the channels.
const (
	Echo = "echo"
	Work = "work"
)

// MaxSleep bounds sleep_ms of a work request.
const MaxSleep = time.Minute

// Options are what a node may set of the reference channels.
type Options struct {
	// RID goes into the header Fabric-Served-By.
	RID string
	// Weight, Queue and Workers are those of both channels, as in channels.Spec.
	Weight, Queue, Workers int
}

// Specs returns the two channels, ready to be served.
func Specs(o Options) []channels.Spec {
	spec := func(name string, run func(context.Context, []byte) ([]byte, error)) channels.Spec {
		return channels.Spec{
			Name: name, Weight: o.Weight, Queue: o.Queue, Workers: o.Workers,
			Handler: func(ctx context.Context, req *channels.Request) (channels.Reply, error) {
				data, err := run(ctx, req.Data())
				if err != nil {
					return channels.Reply{}, err
				}
				return channels.Reply{Data: data, Header: nats.Header{wire.HeaderServedBy: {o.RID}}}, nil
			},
		}
	}
	return []channels.Spec{spec(Echo, echo), spec(Work, work)}
}

func echo(_ context.Context, data []byte) ([]byte, error) { return data, nil }

// workRequest is the payload of a work request.
type workRequest struct {
	SleepMS int64           `json:"sleep_ms"`
	Payload json.RawMessage `json:"payload"`
}

func work(ctx context.Context, data []byte) ([]byte, error) {
	req, err := parseWork(data)
	if err != nil {
		return nil, err
	}
	return req.Payload, sleep(ctx, "work", time.Duration(req.SleepMS)*time.Millisecond)
}

func parseWork(data []byte) (workRequest, error) {
	const form = `the payload must be a JSON object {"sleep_ms":n,"payload":...}`
	var req workRequest
	err := decode(data, &req)
	switch {
	case err != nil:
		return req, outcome.Wrap("work", outcome.InvalidOperation, outcome.Accepted, "", form, err)
	case req.SleepMS < 0 || req.SleepMS > MaxSleep.Milliseconds():
		return req, outcome.New("work", outcome.Rejected, outcome.Accepted, "",
			fmt.Sprintf("sleep_ms %d is not allowed: it must be 0 to %d", req.SleepMS, MaxSleep.Milliseconds()))
	}
	return req, nil
}
