package fence

import (
	"flag"
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	switch os.Getenv("FENCE_TEST_CHILD") {
	case "selffence":
		selfFenceChild()
		return
	case "promoter":
		if err := promoterChild(); err != nil {
			os.Stderr.WriteString(err.Error() + "\n")
			os.Exit(1)
		}
		return
	}
	// Most tests only wait, so more of them run side by side than there are processors. -parallel overrides it.
	if err := flag.Set("test.parallel", "16"); err != nil {
		panic(err)
	}
	// An embedded nats-server that a test stopped was seen to leave these goroutines of a file store behind: its own, and
	// the clock that it is registered with.
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("github.com/nats-io/nats-server/v2/server.(*fileStore).flushStreamStateLoop"),
		goleak.IgnoreAnyFunction("github.com/nats-io/nats-server/v2/server/ats.Register.func1"))
}
