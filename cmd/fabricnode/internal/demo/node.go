package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"go.uber.org/zap"

	"natsfabric/channels"
	"natsfabric/cmd/fabricnode/internal/reference"
	"natsfabric/fabric"
	"natsfabric/kvlocation"
	"natsfabric/objects"
	"natsfabric/outcome"
)

// The demo's leases are short, so that the end of one fits into it.
const (
	LeaseTTL    = 4 * time.Second
	LeaseRenew  = 500 * time.Millisecond
	LeaseMargin = time.Second
)

// Small bounds, so that a burst is refused by one member and taken by another.
const (
	memberQueue   = 16
	memberWorkers = 4
)

// NodeOptions say how to run one node of the demo.
type NodeOptions struct {
	Mesh, RID, Server string
	// Dir is where the node's journals stand.
	Dir string
	// Out gets one line of JSON when the node serves.
	Out io.Writer
	// Logger gets the node's log.
	Logger *zap.Logger
}

// nodeServing is the line on Out.
type nodeServing struct {
	Event     string `json:"event"`
	RID       string `json:"rid"`
	Lifecycle uint64 `json:"lifecycle"`
}

// RunNode runs one node of the demo until ctx ends or the demo's own process has died. It is the body of the child
// process.
func RunNode(ctx context.Context, o NodeOptions) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := dieWithParent(cancel); err != nil {
		return err
	}
	ran, err := openJournal(o.Dir, o.RID, ranSuffix)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ran.close()) }()
	counted, err := openJournal(o.Dir, o.RID, countedSuffix)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, counted.close()) }()
	specs := reference.Specs(reference.Options{RID: o.RID})
	specs = append(specs, channels.Spec{
		Name: Channel, Queue: memberQueue, Workers: memberWorkers, Handler: member(o.RID, ran),
	})
	node, err := fabric.Start(ctx, fabric.Config{
		Mesh: o.Mesh, RID: o.RID, Connect: fabric.Connect{URL: o.Server}, Channels: specs, Types: []objects.Type{clientType(counted)}, Logger: o.Logger,
		LeaseTTL: LeaseTTL, LeaseRenew: LeaseRenew, LeaseMargin: LeaseMargin,
	})
	if err != nil {
		return err
	}
	if err := json.NewEncoder(o.Out).Encode(nodeServing{"serving", o.RID, node.Lifecycle()}); err != nil {
		cancel()
	}
	select {
	case <-ctx.Done():
	case <-node.Done():
	}
	stop, cancelStop := context.WithTimeout(context.WithoutCancel(ctx), nodeStopTime)
	defer cancelStop()
	if node.State() == kvlocation.StateError {
		err = node.Err()
	}
	return errors.Join(err, node.Shutdown(stop))
}

// member returns the handler: it notes the line, then parses and classifies it.
func member(rid string, ran *journal) channels.Handler {
	return func(_ context.Context, req *channels.Request) (channels.Reply, error) {
		number, text, err := decodeLine(req.Data())
		if err != nil {
			return channels.Reply{}, outcome.Wrap("classify", outcome.InvalidOperation, outcome.Accepted, "", "", err)
		}
		if err := ran.noteRan(number); err != nil {
			return channels.Reply{}, fmt.Errorf("line %d was not run, because it cannot be noted: %w", number, err)
		}
		data, err := json.Marshal(classify(rid, text))
		return channels.Reply{Data: data}, err
	}
}

// ErrAlone is returned by RunNode in a process that the demo did not start.
var ErrAlone = errors.New("demo-node is started by fabricnode demo only")

// parentPipe is the file descriptor from which a node learns that the demo has died.
const parentPipe = 3

// dieWithParent calls stop, and soon ends the process, when the demo's process has closed its end of the pipe.
func dieWithParent(stop func()) error {
	pipe := os.NewFile(parentPipe, "parent")
	if info, err := pipe.Stat(); err != nil || info.Mode()&os.ModeNamedPipe == 0 {
		return ErrAlone
	}
	go func() {
		_, _ = pipe.Read(make([]byte, 1)) // nothing is ever written
		stop()
		time.AfterFunc(nodeStopTime+time.Second, func() { os.Exit(1) })
	}()
	return nil
}

// nodeStopTime bounds a node's orderly end.
const nodeStopTime = 5 * time.Second
