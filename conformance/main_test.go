package conformance

import (
	"testing"

	"natsfabric/fabrictest"
)

func TestMain(m *testing.M) {
	fabrictest.AtOnce(10)
	fabrictest.VerifyTestMain(m)
}
