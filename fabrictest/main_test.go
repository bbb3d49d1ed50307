package fabrictest_test

import (
	"testing"

	"go.uber.org/goleak"

	"natsfabric/fabrictest"
)

func TestMain(m *testing.M) {
	fabrictest.AtOnce(6)
	goleak.VerifyTestMain(m)
}
