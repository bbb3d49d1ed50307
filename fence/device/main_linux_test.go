package device

import (
	"fmt"
	"os"
	"runtime"
	"testing"

	"natsfabric/fabrictest"
)

func init() {
	if os.Getenv("DEVICE_TEST_HEADLESS") != "" {
		runtime.LockOSThread() // the process's first thread runs main, and so TestMain
	}
}

func TestMain(m *testing.M) {
	if os.Getenv("DEVICE_TEST_HEADLESS") != "" {
		headlessChild()
	}
	if os.Getenv("DEVICE_TEST_LEADER") != "" {
		if err := leaderChild(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	fabrictest.VerifyTestMain(m)
}
