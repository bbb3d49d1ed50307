//go:build unix

package supervise

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"natsfabric/fabrictest"
	"natsfabric/fence"
)

func token(n uint64) fence.Token { return fence.Token{Source: "m/supervise/w", Epoch: 1, Sequence: n} }

func TestCommandOutcomes(t *testing.T) {
	t.Parallel()
	sh := func(text string) Command { return Command{Args: []string{"/bin/sh", "-c", text}} }
	for name, c := range map[string]struct {
		command Command
		want    Outcome
		detail  string
	}{
		"works":                 {sh("echo $FABRIC_WORKER; echo $FABRIC_TOKEN"), Done, "m/supervise/w:"},
		"gets the ID":           {Command{Args: []string{"/bin/echo", "docker", "restart", "{worker}"}}, Done, "docker restart w; rm -rf x"},
		"fails":                 {sh("echo no such container >&2; exit 1"), Broken, "no such container"},
		"can't be started":      {Command{Args: []string{"/no/such/program"}}, Broken, "could not be started"},
		"names nothing":         {Command{}, Broken, "no program"},
		"loses its connection":  {sh("exit 255"), Unknown, "255"},
		"is killed":             {sh("kill -9 $$"), Unknown, "killed"},
		"hangs":                 {sh("sleep 60 & sleep 60"), Unknown, "in time"},
		"says it is not known":  {Command{Args: []string{"/bin/sh", "-c", "exit 7"}, UnknownExits: []int{7}}, Unknown, "7"},
		"leaves somebody there": {sh("sleep 5 & exit 0"), Done, "exit status 0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			limit := readyIn
			if name == "hangs" {
				limit = 3 * time.Second
			}
			ctx, cancel := context.WithTimeout(context.Background(), limit)
			defer cancel()
			begin := time.Now()
			res := c.command.Restart(ctx, Order{Worker: "w; rm -rf x", Token: token(1)})
			if res.Outcome != c.want || !strings.Contains(res.Detail, c.detail) {
				t.Errorf("%+v", res)
			}
			if took := time.Since(begin); took > 50*time.Second {
				t.Errorf("it took %v", took)
			}
		})
	}
}

// A worker whose ID a program would take for an option has nothing run for it.
func TestWorkerNamedLikeAnOption(t *testing.T) {
	t.Parallel()
	const id = "-oProxyCommand=touch x"
	if res := (Command{Args: []string{"/bin/echo", "{worker}"}}).Restart(testContext(t), Order{Worker: id}); res.Outcome != Broken || !strings.Contains(res.Detail, "option") {
		t.Errorf("%+v", res)
	}
	if text, err := (CommandLogs{Args: []string{"/bin/echo", "{worker}"}}).Collect(testContext(t), id); err == nil {
		t.Errorf("logs were collected: %q", text)
	}
}

func TestCollectors(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	dir := t.TempDir()
	long := strings.Repeat("x", 2*maxOutput) + "the end"
	if err := os.WriteFile(filepath.Join(dir, "w_1.log"), []byte(long), 0o600); err != nil {
		t.Fatal(err)
	}
	text, err := FileTail{Path: filepath.Join(dir, "{worker}.log")}.Collect(ctx, "w/1")
	if err != nil || len(text) != maxOutput || !strings.HasSuffix(text, "the end") {
		t.Errorf("%d bytes, %v", len(text), err)
	}
	if _, err := (FileTail{Path: dir}).Collect(ctx, "w"); err == nil {
		t.Error("a directory was collected")
	}
	text, err = CommandLogs{Args: []string{"/bin/sh", "-c", "echo $FABRIC_WORKER; echo {worker}; exit 3"}}.Collect(ctx, "w")
	if err == nil || text != "w\nw\n" {
		t.Errorf("%q, %v", text, err)
	}
	begin := time.Now()
	never := make(chan struct{})
	defer close(never)
	r := &runner{policy: &Policy{CollectLimit: 50 * time.Millisecond}}
	_, err = r.logsOf(ctx, CollectFunc(func(context.Context, string) (string, error) { <-never; return "", nil }), "w")
	if err == nil || time.Since(begin) > 20*time.Second {
		t.Errorf("a collector that hangs: %v after %v", err, time.Since(begin))
	}
	if _, err = r.logsOf(ctx, CollectFunc(func(context.Context, string) (string, error) { panic("no") }), "x"); err == nil {
		t.Error("a collector that panics is fine")
	}
}

func TestChildTakesNoLateOrder(t *testing.T) {
	t.Parallel()
	c := NewChild("w", func() *exec.Cmd {
		return exec.Command("/bin/sh", "-c", "echo begins; trap '' TERM; while :; do sleep 1; done")
	})
	t.Cleanup(c.Close)
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	first := c.PID()
	if err := c.Start(); err == nil || c.PID() != first || c.Starts() != 1 {
		t.Errorf("started while it runs: %v, process %d, then %d; %d starts", err, first, c.PID(), c.Starts())
	}
	ctx := testContext(t)
	begun := func(n int) {
		fabrictest.Eventually(t, readyIn, "the children's output", func() bool {
			out, _ := c.Collect(ctx, "w")
			return strings.Count(out, "begins") == n
		})
	}
	begun(1)
	if res := c.Restart(ctx, Order{Worker: "w", Token: token(5)}); res.Outcome != Done {
		t.Fatalf("%+v", res)
	}
	if c.PID() == first || c.Starts() != 2 {
		t.Errorf("process %d, then %d; %d starts", first, c.PID(), c.Starts())
	}
	if res := c.Restart(ctx, Order{Worker: "w", Token: token(4)}); res.Outcome != Broken || !strings.Contains(res.Detail, "refused") {
		t.Errorf("a late order: %+v", res)
	}
	if res := c.Restart(ctx, Order{Worker: "other", Token: token(9)}); res.Outcome != Broken {
		t.Errorf("an order for another worker: %+v", res)
	}
	if c.Starts() != 2 {
		t.Errorf("%d starts", c.Starts())
	}
	begun(2)
	c.Close()
	if res := c.Restart(ctx, Order{Worker: "w", Token: token(6)}); res.Outcome != Unknown {
		t.Errorf("after Close: %+v", res)
	}
}

func TestOrdersOverNATS(t *testing.T) {
	t.Parallel()
	url := fabrictest.StartServer(t).URL()
	nc, far := connect(t, url), connect(t, url)
	ctx := testContext(t)
	ask := func(n uint64, limit time.Duration) Result {
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		return Request{Conn: nc, Subject: "restart.{worker}"}.Restart(ctx, Order{Worker: "w", Verdict: Hung, Token: token(n)})
	}
	if res := ask(1, readyIn); res.Outcome != Broken {
		t.Errorf("nobody listens: %+v", res)
	}
	ran := 0
	stop, err := ServeOrders(far, "restart.w", RestartFunc(func(ctx context.Context, o Order) Result {
		switch ran++; o.Token.Sequence {
		case 7:
			<-ctx.Done()
			return Result{Done, ""}
		case 8:
			panic("no")
		}
		return Result{Done, string(o.Verdict)}
	}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	if err := far.Flush(); err != nil {
		t.Fatal(err)
	}
	if res := ask(5, readyIn); res.Outcome != Done || res.Detail != string(Hung) {
		t.Errorf("%+v", res)
	}
	if res := ask(4, readyIn); res.Outcome != Broken || !strings.Contains(res.Detail, "refused") || ran != 1 {
		t.Errorf("an order with an older token: %+v, %d ran", res, ran)
	}
	if res := ask(7, 100*time.Millisecond); res.Outcome != Unknown {
		t.Errorf("no answer in time: %+v", res)
	}
	if res := ask(8, readyIn); res.Outcome != Unknown {
		t.Errorf("a restarter that panics: %+v", res)
	}
	stop()
	nc.Close()
	if res := ask(9, readyIn); res.Outcome == Done {
		t.Errorf("on a closed connection: %+v", res)
	}
}

// An order that has waited, with the program that takes it frozen for instance, is not run when its time is over, although no
// newer one has come; nor one whose lateness nobody can tell.
func TestOrderThatComesLate(t *testing.T) {
	t.Parallel()
	b, j := newBed(t), &journal{}
	r := InTime{Keys: b.sh, Restarter: j}
	if res := r.Restart(testContext(t), Order{Worker: "w", NotAfter: b.now(t).Add(-time.Second)}); res.Outcome != Broken || !strings.Contains(res.Detail, "had to begin by") {
		t.Errorf("an order whose time is over: %+v", res)
	}
	ended, cancel := context.WithCancel(testContext(t))
	cancel()
	if res := r.Restart(ended, Order{Worker: "w", NotAfter: b.now(t).Add(time.Hour)}); res.Outcome != Broken || !strings.Contains(res.Detail, "nobody tells") {
		t.Errorf("an order of unknown age: %+v", res)
	}
	if got := j.list(); len(got) > 0 {
		t.Fatalf("late orders were run: %+v", got)
	}
	if res := r.Restart(testContext(t), Order{Worker: "w", NotAfter: b.now(t).Add(time.Hour)}); res.Outcome != Done || len(j.list()) != 1 {
		t.Errorf("an order in time: %+v", res)
	}
}
