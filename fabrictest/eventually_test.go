package fabrictest_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"natsfabric/fabrictest"
)

// fails runs f and returns what it failed with, or "".
func fails(f func(t testing.TB)) (why string) {
	defer func() {
		if r := recover(); r != nil {
			why = fmt.Sprint(r)
		}
	}()
	fabrictest.Example(f)
	return ""
}

func TestEventually(t *testing.T) {
	t.Parallel()
	looked := 0
	if why := fails(func(t testing.TB) {
		fabrictest.Eventually(t, long, "the third look", func() bool { looked++; return looked == 3 })
	}); why != "" || looked != 3 {
		t.Fatalf("after %d looks: %s", looked, why)
	}
	why := fails(func(t testing.TB) {
		fabrictest.Eventually(t, time.Millisecond, "the sun rises", func() bool { return false })
	})
	if !strings.Contains(why, "the sun rises") {
		t.Fatalf("failed with %q", why)
	}
}

func TestExampleCleansUpWhenItFails(t *testing.T) {
	t.Parallel()
	var order []int
	why := fails(func(t testing.TB) {
		t.Cleanup(func() { order = append(order, 1) })
		t.Cleanup(func() { order = append(order, 2); panic("cleanup") })
		t.Fatal("stop")
	})
	if fmt.Sprint(order) != "[2 1]" || why == "" {
		t.Fatalf("cleanups %v, failed with %q", order, why)
	}
}

// What can't work says what to do instead.
func TestMisuseIsExplained(t *testing.T) {
	t.Parallel()
	for want, f := range map[string]func(t testing.TB){
		"AsProcess":         func(t testing.TB) { fabrictest.StartServer(t).Freeze(t) },
		"already running":   func(t testing.TB) { fabrictest.StartServer(t).Restart(t) },
		"WithProxiedRoutes": func(t testing.TB) { fabrictest.StartCluster(t, 2).Link(t, 0, 1) },
		"WithConfig":        func(t testing.TB) { fabrictest.StartServer(t, fabrictest.WithConfig("port: {")) },
		"Dir must be": func(t testing.TB) {
			fabrictest.StartServer(t).Proxy(t).Arm(fabrictest.Trigger{Dir: fabrictest.ToClient, Answer: true})
		},
	} {
		if why := fails(f); !strings.Contains(why, want) {
			t.Errorf("want %q, failed with %q", want, why)
		}
	}
}
