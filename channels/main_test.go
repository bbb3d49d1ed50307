package channels_test

import (
	"os"
	"testing"

	"natsfabric/fabrictest"
)

func TestMain(m *testing.M) {
	if os.Getenv(envMember) != "" {
		runMember()
		return
	}
	fabrictest.AtOnce(4)
	fabrictest.VerifyTestMain(m)
}
