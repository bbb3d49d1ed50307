package supervise

import (
	"flag"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// TestMain is also the main function of the processes that tests start, kill and freeze: see proc_test.go.
func TestMain(m *testing.M) {
	if role := os.Getenv(roleVariable); role != "" {
		os.Exit(playRole(role))
	}
	flag.Parse()
	// Most tests here wait most of the time, so more of them may run than there are processors.
	if f := flag.Lookup("test.parallel"); f.Value.String() == f.DefValue {
		_ = flag.Set("test.parallel", "12")
	}
	goleak.VerifyTestMain(m)
}
