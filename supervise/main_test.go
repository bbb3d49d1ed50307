package supervise

import (
	"os"
	"testing"

	"go.uber.org/goleak"

	"natsfabric/fabrictest"
)

// TestMain is also the main function of the processes that tests start, kill and freeze: see proc_test.go.
func TestMain(m *testing.M) {
	if role := os.Getenv(roleVariable); role != "" {
		os.Exit(playRole(role))
	}
	fabrictest.AtOnce(12)
	goleak.VerifyTestMain(m)
}
