package device

import (
	"fmt"
	"os"
	"testing"

	"natsfabric/fabrictest"
)

func TestMain(m *testing.M) {
	if os.Getenv("DEVICE_TEST_LEADER") != "" {
		if err := leaderChild(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	fabrictest.VerifyTestMain(m)
}
