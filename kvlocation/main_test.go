package kvlocation

import (
	"testing"

	"go.uber.org/goleak"

	"natsfabric/fabrictest"
)

func TestMain(m *testing.M) {
	fabrictest.AtOnce(4)
	// An inbox that is closed while nobody answers leaves the client library's attempts to make its consumer anew behind.
	fabrictest.VerifyTestMain(m, goleak.IgnoreAnyFunction("natsfabric/kvlocation.(*RelayInbox).Close.func1.1"))
}
