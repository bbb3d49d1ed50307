package fence

import (
	"os"
	"testing"

	"natsfabric/fabrictest"
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
	fabrictest.AtOnce(16)
	fabrictest.VerifyTestMain(m)
}
