package channels_test

import (
	"os"
	"testing"

	"go.uber.org/goleak"

	"natsfabric/fabrictest"
)

func TestMain(m *testing.M) {
	if os.Getenv(envMember) != "" {
		runMember()
		return
	}
	fabrictest.AtOnce(4)
	goleak.VerifyTestMain(m)
}
