package fabric

import (
	"testing"

	"go.uber.org/goleak"

	"natsfabric/fabrictest"
)

func TestMain(m *testing.M) {
	fabrictest.AtOnce(6)
	// A node that ends while its connection is away leaves the client library's attempts to make its consumer anew behind, for 20 s at most.
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("github.com/nats-io/nats.go/jetstream.(*orderedConsumer).reset"),
		goleak.IgnoreAnyFunction("natsfabric/kvlocation.(*RelayInbox).Close.func1.1"))
}
