package channels_test

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if os.Getenv(envMember) != "" {
		runMember()
		return
	}
	goleak.VerifyTestMain(m)
}
