package kvlocation

import (
	"testing"

	"go.uber.org/goleak"

	"natsfabric/fabrictest"
)

func TestMain(m *testing.M) {
	fabrictest.AtOnce(4)
	// An embedded nats-server that a test stopped was seen to leave these goroutines of a file store behind: its own, and
	// the clock that it is registered with.
	// An inbox that is closed while nobody answers leaves the client library's attempts to make its consumer anew behind.
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("github.com/nats-io/nats.go/jetstream.(*orderedConsumer).reset"),
		goleak.IgnoreAnyFunction("natsfabric/kvlocation.(*RelayInbox).Close.func1.1"),
		goleak.IgnoreAnyFunction("github.com/nats-io/nats-server/v2/server.(*fileStore).flushStreamStateLoop"),
		goleak.IgnoreAnyFunction("github.com/nats-io/nats-server/v2/server/ats.Register.func1"))
}
