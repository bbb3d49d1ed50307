package fabric

import (
	"context"
	"fmt"

	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// Healthy returns nil when the goroutine on which the node's life depends has answered, and the node is neither stopped nor
// in StateError. It is what a watchdog is fed by (natsfabric/fence/watchdog, FE-13): a node that prepares is healthy, one
// that hangs is not. The error is that of ctx, of State Error, or ShuttingDown.
func (n *Node) Healthy(ctx context.Context) error {
	answered := make(chan struct{})
	select {
	case n.events <- hostEvent{ping: true, done: answered}:
	case <-n.stopped:
	case <-ctx.Done():
		return fmt.Errorf("the node does not react: %w", context.Cause(ctx))
	}
	select {
	case <-answered:
	case <-n.stopped:
	case <-ctx.Done():
		return fmt.Errorf("the node does not react: %w", context.Cause(ctx))
	}
	switch n.State() {
	case kvlocation.StateError:
		return n.Err()
	case kvlocation.StateStopped:
		return outcome.New("health", outcome.ShuttingDown, outcome.NotAccepted, n.target(), "the node has stopped")
	}
	return nil
}

// running counts the handlers of channels and the turns of objects that run now.
func (n *Node) running() int {
	running := 0
	for _, s := range n.router.Metrics().Served {
		running += s.Running
	}
	for _, t := range n.objects.Metrics().Types {
		running += t.Running
	}
	return running
}
