package fabrictest

import (
	"testing"

	"go.uber.org/goleak"
)

// VerifyTestMain runs the tests of a package and fails them when goroutines are left behind: goleak.VerifyTestMain, without
// those that the NATS server and client are known to leave. It exits the process.
func VerifyTestMain(m *testing.M, options ...goleak.Option) {
	goleak.VerifyTestMain(m, append(options,
		// An embedded nats-server that is stopped while it makes or recovers a stream leaves the store of that stream open:
		// the store's own goroutine, and the clock that it is registered with.
		goleak.IgnoreAnyFunction("github.com/nats-io/nats-server/v2/server.(*fileStore).flushStreamStateLoop"),
		goleak.IgnoreAnyFunction("github.com/nats-io/nats-server/v2/server/ats.Register.func1"),
		// An ordered consumer that ends while its server does not answer leaves the attempts to make it anew behind, and whoever
		// ends it waits for them: for 20 s at most.
		goleak.IgnoreAnyFunction("github.com/nats-io/nats.go/jetstream.(*orderedConsumer).reset"),
		goleak.IgnoreAnyFunction("github.com/nats-io/nats.go/jetstream.(*orderedSubscription).Stop"),
	)...)
}
