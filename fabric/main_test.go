package fabric

import (
	"testing"

	"natsfabric/fabrictest"
)

func TestMain(m *testing.M) {
	fabrictest.AtOnce(6)
	fabrictest.VerifyTestMain(m)
}
