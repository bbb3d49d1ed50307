package fabric

import (
	"testing"

	"go.uber.org/goleak"

	"natsfabric/fabrictest"
)

func TestMain(m *testing.M) {
	fabrictest.AtOnce(6)
	// A node that ends while its connection is away leaves an attempt to delete its consumer behind, for 20 s at most.
	fabrictest.VerifyTestMain(m, goleak.IgnoreAnyFunction("natsfabric/kvlocation.(*RelayInbox).Close.func1.1"))
}
