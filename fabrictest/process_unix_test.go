//go:build unix

package fabrictest_test

import (
	"context"
	"errors"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"natsfabric/fabrictest"
)

func TestProcessOutputAndEnd(t *testing.T) {
	t.Parallel()
	p := fabrictest.StartProcess(t, exec.Command("sh", "-c", "echo out one; echo err two >&2; exit 3"))
	if line := p.WaitOutput(t, "two"); line != "err two" {
		t.Fatalf("line %q", line)
	}
	if code := p.Wait(t).ExitCode(); code != 3 {
		t.Fatalf("exit code %d", code)
	}
	if out := p.Stdout(); out != "out one\n" {
		t.Fatalf("standard output %q", out)
	}
}

func TestProcessFreezeThawKill(t *testing.T) {
	t.Parallel()
	p := fabrictest.StartProcess(t, exec.Command("sh", "-c", "while read line; do echo got $line; done"))
	p.Freeze(t)
	p.Thaw(t)
	p.Wait(t) // its input is empty

	p = fabrictest.StartProcess(t, exec.Command("sleep", "1000"))
	p.Freeze(t)
	p.Kill()
	if st := p.Wait(t).Sys().(syscall.WaitStatus); st.Signal() != syscall.SIGKILL {
		t.Fatalf("ended by %v", st)
	}
}

func TestProcessGroupDiesWithTheTest(t *testing.T) {
	t.Parallel()
	var grandchild *fabrictest.Process
	t.Run("test", func(t *testing.T) {
		grandchild = fabrictest.StartProcess(t, exec.Command("sh", "-c", "sleep 1000 & sleep 1000"))
	})
	// Signal 0 asks whether anyone is left in the group.
	fabrictest.Eventually(t, long, "the group is gone", func() bool {
		return errors.Is(syscall.Kill(-grandchild.PID(), 0), syscall.ESRCH)
	})
}

func TestServerProcess(t *testing.T) {
	t.Parallel()
	s := fabrictest.StartServer(t, fabrictest.AsProcess(), fabrictest.WithConfig("max_payload: 4096"))
	nc := s.Connect(t)
	if nc.MaxPayload() != 4096 {
		t.Fatalf("max payload %d", nc.MaxPayload())
	}
	kv := bucket(t, nc, 1)
	if _, err := kv.PutString(testContext(t), "k", "v"); err != nil {
		t.Fatal(err)
	}
	s.Freeze(t)
	if err := nc.FlushTimeout(short); !errors.Is(err, nats.ErrTimeout) {
		t.Fatalf("a frozen server answers: %v", err)
	}
	s.Thaw(t)
	if err := nc.FlushTimeout(long); err != nil {
		t.Fatal(err)
	}

	s.Kill()
	s.Restart(t)
	kv, err := jetStream(t, s.Connect(t)).KeyValue(testContext(t), "b")
	if err != nil {
		t.Fatal(err)
	}
	if e, err := kv.Get(testContext(t), "k"); err != nil || string(e.Value()) != "v" {
		t.Fatalf("after restart: %v, %v", e, err)
	}
}

func TestClusterProcesses(t *testing.T) {
	t.Parallel()
	c := fabrictest.StartCluster(t, 3, fabrictest.AsProcess())
	kv := bucket(t, c.Connect(t), 3)
	if _, err := kv.PutString(testContext(t), "k", "v"); err != nil {
		t.Fatal(err)
	}
	leader := c.StreamLeader(t, "KV_b")
	leader.Freeze(t)
	var alive *fabrictest.Server
	for _, s := range c.Servers() {
		if s != leader {
			alive = s
		}
	}
	js := jetStream(t, alive.Connect(t))
	fabrictest.Eventually(t, long, "a write while the leader is frozen", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, err := js.Publish(ctx, "$KV.b.k", []byte("w"))
		return err == nil
	})
	leader.Thaw(t)
	c.WaitReady(t)
}

func TestBuildBinary(t *testing.T) {
	t.Parallel()
	const pkg = "./internal/serverproc/nats-testserver"
	first, second := fabrictest.BuildBinary(t, pkg), fabrictest.BuildBinary(t, pkg)
	if first == second {
		t.Fatal("two tests share a file")
	}
	p := fabrictest.StartProcess(t, exec.Command(second))
	p.WaitOutput(t, "FABRICTEST_SERVER")
	if p.Wait(t).ExitCode() != 1 {
		t.Fatal("started without a spec")
	}
}
