package supervise

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

// TestMain is also the main function of the processes that tests start, kill and freeze: see proc_test.go.
func TestMain(m *testing.M) {
	if role := os.Getenv(roleVariable); role != "" {
		os.Exit(playRole(role))
	}
	goleak.VerifyTestMain(m)
}
