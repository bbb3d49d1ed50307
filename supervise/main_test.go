package supervise

import (
	"os"
	"testing"

	"natsfabric/fabrictest"
)

// TestMain is also the main function of the processes that tests start, kill and freeze: see proc_test.go.
func TestMain(m *testing.M) {
	if role := os.Getenv(roleVariable); role != "" {
		os.Exit(playRole(role))
	}
	fabrictest.AtOnce(12)
	fabrictest.VerifyTestMain(m)
}
