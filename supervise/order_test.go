//go:build unix

package supervise

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"natsfabric/fabrictest"
	"natsfabric/fence"
)

// One program takes orders for so many workers, and so many at the same time, and refuses those beyond.
func TestOrdersAreBounded(t *testing.T) {
	t.Parallel()
	s := &orderServer{ctx: testContext(t), guards: map[string]*fence.Guard{}}
	for i := range maxServed {
		s.guard(fmt.Sprint(i))
	}
	if res := s.run(orderMessage{Worker: "one more"}); res.Outcome != Broken || !strings.Contains(res.Detail, "more than") {
		t.Errorf("one worker too many: %+v", res)
	}

	url := fabrictest.StartServer(t).URL()
	nc, far := connect(t, url), connect(t, url)
	release := make(chan struct{})
	var run atomic.Int32
	stop, err := ServeOrders(far, "restart.*", RestartFunc(func(context.Context, Order) Result {
		run.Add(1)
		<-release
		return Result{Done, ""}
	}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	t.Cleanup(func() { close(release) })
	if err := far.Flush(); err != nil {
		t.Fatal(err)
	}
	inbox := nc.NewInbox()
	for i := range maxOrders {
		order := orderMessage{V: schemaVersion, Worker: fmt.Sprint("w", i), Token: token(1), Left: time.Hour}
		if err := nc.PublishRequest(fmt.Sprint("restart.w", i), inbox, encode(order)); err != nil {
			t.Fatal(err)
		}
	}
	fabrictest.Eventually(t, readyIn, "all orders to run", func() bool { return run.Load() == maxOrders })
	res := Request{Conn: nc, Subject: "restart.{worker}"}.Restart(testContext(t), Order{Worker: "more", Token: token(1)})
	if res.Outcome != Broken || !strings.Contains(res.Detail, "under way here already") {
		t.Errorf("one order too many: %+v", res)
	}
}

// An order that names a subject of the store's as the place for its answer is not taken: who runs orders may write there.
func TestOrdersAreAnsweredToInboxesOnly(t *testing.T) {
	t.Parallel()
	url := fabrictest.StartServer(t).URL()
	nc, far := connect(t, url), connect(t, url)
	var run atomic.Int32
	stop, err := ServeOrders(far, "restart.w", RestartFunc(func(context.Context, Order) Result {
		run.Add(1)
		return Result{Done, ""}
	}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	if err := far.Flush(); err != nil {
		t.Fatal(err)
	}
	order := orderMessage{V: schemaVersion, Worker: "w", Token: token(1), Left: time.Hour}
	if err := nc.PublishRequest("restart.w", "$KV.FABRIC_m_LOCATION.actor.alice", encode(order)); err != nil {
		t.Fatal(err)
	}
	// The one behind it is.
	if res := (Request{Conn: nc, Subject: "restart.{worker}"}).Restart(testContext(t), Order{Worker: "w", Token: token(2)}); res.Outcome != Done {
		t.Errorf("%+v", res)
	}
	if n := run.Load(); n != 1 {
		t.Errorf("%d orders were run", n)
	}
}

// What a restarter says that is no outcome of a restart is one that nobody knows; and one that panics may have done anything.
func TestRestarterSaysOtherwise(t *testing.T) {
	for detail, f := range map[string]RestartFunc{
		`"fine"`:    func(context.Context, Order) Result { return Result{"fine", "x"} },
		`"running"`: func(context.Context, Order) Result { return Result{Running, "x"} },
		"panicked":  func(context.Context, Order) Result { panic("no") },
	} {
		if res := order(context.Background(), f, Order{}); res.Outcome != Unknown || !strings.Contains(res.Detail, detail) {
			t.Errorf("%s: %+v", detail, res)
		}
	}
}

// A worker that ends by itself takes along what it has started, also what has its output open.
func TestChildEndsWithItsOwn(t *testing.T) {
	t.Parallel()
	c := NewChild("w", func() *exec.Cmd { return exec.Command("/bin/sh", "-c", "sleep 1000 & echo $!; exit 0") })
	t.Cleanup(c.Close)
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	grandchild := ""
	fabrictest.Eventually(t, readyIn, "the child's word", func() bool {
		out, _ := c.Collect(testContext(t), "w")
		grandchild = strings.TrimSpace(out)
		return strings.HasSuffix(out, "\n")
	})
	fabrictest.Eventually(t, readyIn, "what the child has started to be gone", func() bool {
		stat, err := os.ReadFile("/proc/" + grandchild + "/stat")
		return err != nil || strings.Contains(string(stat), ") Z ")
	})
}
