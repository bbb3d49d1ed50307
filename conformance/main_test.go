package conformance

import (
	"testing"

	"go.uber.org/goleak"

	"natsfabric/fabrictest"
)

func TestMain(m *testing.M) {
	fabrictest.AtOnce(10)
	goleak.VerifyTestMain(m)
}
