package bench

import (
	"testing"

	"natsfabric/fabrictest"
)

func TestMain(m *testing.M) { fabrictest.VerifyTestMain(m) }
