package fabrictest

import (
	"flag"
	"strconv"
)

// AtOnce lets n parallel tests of a package run at the same time, unless -parallel says otherwise. Tests with servers and
// nodes wait for leases, probes and deadlines most of their time, so the number of processors is no measure for them. It
// belongs into TestMain, before the flags are parsed.
func AtOnce(n int) {
	if err := flag.Set("test.parallel", strconv.Itoa(n)); err != nil {
		panic(err) // not in a test program, or n is below 1 when the flags are read
	}
}
