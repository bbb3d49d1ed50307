package supervise

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"natsfabric/fabrictest"
	"natsfabric/kvlocation"
)

// roleVariable makes the test's program one of the processes of a test: "monitor" or "worker".
const roleVariable = "SUPERVISE_ROLE"

// script is what such a process is told, as JSON in the environment.
type script struct {
	URL    string
	Name   string
	Policy Policy
	// StopAt is the step before which a monitor says so and waits for a line on its standard input.
	StopAt string
}

const scriptVariable = "SUPERVISE_SCRIPT"

// playRole is the main function of such a process. It lasts until it is killed, or its standard input ends.
func playRole(role string) int {
	var s script
	err := json.Unmarshal([]byte(os.Getenv(scriptVariable)), &s)
	if err == nil {
		err = map[string]func(script) error{"monitor": playMonitor, "worker": playWorker}[role](s)
	}
	if err != nil {
		fmt.Println("error:", err)
		return 1
	}
	return 0
}

func (s script) open() (*nats.Conn, *kvlocation.Store, error) {
	nc, err := nats.Connect(s.URL, nats.ReconnectBufSize(-1), nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond), nats.Timeout(time.Minute))
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	store, err := kvlocation.Open(ctx, nc, kvlocation.Config{Mesh: "m", RID: s.Name, AttemptTimeout: 500 * time.Millisecond, Timeout: 5 * time.Second})
	return nc, store, err
}

// label names a step for StopAt.
func label(s step) string {
	switch {
	case s.event != "":
		return s.do.String() + " " + string(s.event)
	case s.do == doConfirm:
		return s.do.String() + s.why[strings.LastIndexByte(s.why, ' '):]
	}
	first, _, _ := strings.Cut(s.why, ":")
	if s.do == doWrite {
		first, _, _ = strings.Cut(first, " ")
		return "write " + first
	}
	return s.do.String()
}

func playMonitor(s script) error {
	nc, store, err := s.open()
	if err != nil {
		return err
	}
	m, err := newMonitor(store.Shared(kvlocation.BucketSupervise), "m", Config{
		Policy: s.Policy, Notifiers: []Notifier{Log{zap.NewNop()}},
		Targets: []Target{{Match: "*", Restarter: Request{nc, "restart.{worker}"}, Collector: CollectFunc(func(context.Context, string) (string, error) { return "logs", nil })}},
	})
	if err != nil {
		return err
	}
	in := bufio.NewReader(os.Stdin)
	var once sync.Once
	m.run.before = func(step step) {
		if s.StopAt != "" && label(step) == s.StopAt {
			once.Do(func() {
				fmt.Println("at", s.StopAt)
				_, _ = in.ReadString('\n')
				fmt.Println("goes on")
			})
		}
	}
	m.start()
	fmt.Println("watching", m.ID())
	if s.StopAt != "" {
		select {}
	}
	_, _ = io.Copy(io.Discard, in)
	return nil
}

func playWorker(s script) error {
	nc, store, err := s.open()
	if err != nil {
		return err
	}
	defer nc.Close()
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	agent, err := NewAgent(ctx, store.Shared(kvlocation.BucketSupervise), AgentConfig{Worker: s.Name, Every: s.Policy.HungAfter / 8, TTL: time.Hour})
	if err != nil {
		return err
	}
	step := 0
	fmt.Println("working")
	_ = agent.Loop().Work(ctx, func(ctx context.Context) (State, string, string, error) {
		select {
		case <-ctx.Done():
			return "", "", "", ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
		step++
		return Processing, "job", strconv.Itoa(step), nil
	})
	return nil
}

// roleCommand is the test's program in a role.
func roleCommand(role string, s script) *exec.Cmd {
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	text, _ := json.Marshal(s)
	cmd.Env = append(os.Environ(), roleVariable+"="+role, scriptVariable+"="+string(text))
	return cmd
}

// process is a child process in a role, with its standard input.
type process struct {
	*fabrictest.Process
	stdin io.WriteCloser
}

func startRole(t testing.TB, role string, s script) *process {
	t.Helper()
	cmd := roleCommand(role, s)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	return &process{fabrictest.StartProcess(t, cmd), in}
}

// deed is one restart that took place.
type deed struct {
	at      time.Time // when its order came
	attempt string
	fresh   bool // the worker's heartbeat was, at the last look
}

// deeds are the restarts of one worker, as the program beside the worker saw them.
type deeds struct {
	mu   sync.Mutex
	done []deed
}

func (d *deeds) list() []deed {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]deed(nil), d.done...)
}

// check holds the deeds against the rules (SV-15).
func (d *deeds) check(t testing.TB, p Policy) {
	t.Helper()
	all := d.list()
	for i, x := range all {
		if x.fresh {
			t.Errorf("restarted by %s while its heartbeat was fresh", x.attempt)
		}
		if i > 0 && x.at.Sub(all[i-1].at) < p.Cooldown {
			t.Errorf("restarted by %s %v after %s; the cooldown is %v", x.attempt, x.at.Sub(all[i-1].at), all[i-1].attempt, p.Cooldown)
		}
	}
	if len(all) > p.Breaker {
		t.Errorf("restarted %d times; the breaker allows %d", len(all), p.Breaker)
	}
}

// serve takes the orders for a worker, notes each, and has restart carry it out.
func (b *bed) serve(t testing.TB, worker string, p Policy, restart func(Order) Result) *deeds {
	t.Helper()
	d := &deeds{}
	nc := connect(t, b.url)
	token, _ := escape(worker)
	stop, err := ServeOrders(nc, "restart."+token, RestartFunc(func(ctx context.Context, o Order) Result {
		now := time.Now()
		return InTime{b.sh, RestartFunc(func(ctx context.Context, o Order) Result {
			e, err := b.sh.Get(ctx, workerPrefix+token)
			if err != nil {
				return Result{Broken, err.Error()}
			}
			// A record that is older than the intent is the one that the last look saw. Its time is the server's, whose clock is
			// this machine's.
			fresh := e.Revision < o.Token.Sequence && time.Since(e.Time) < p.HungAfter
			d.mu.Lock()
			d.done = append(d.done, deed{now, o.Attempt, fresh})
			d.mu.Unlock()
			return restart(o)
		})}.Restart(ctx, o)
	}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	return d
}

// TestMonitorsKilledAndFrozen ends or freezes a monitor's process before each step of the pipeline while another one watches:
// the worker is restarted all the same, and what was frozen does no harm when it is thawed.
func TestMonitorsKilledAndFrozen(t *testing.T) {
	steps := []string{
		"write first", "write confirmed", "write armed", "write locked", "collect", "confirm intent", "write restart",
		"intend intended", "confirm command", "run", "write done",
	}
	for _, how := range []string{"killed", "frozen"} {
		for _, step := range steps {
			if testing.Short() && step != "run" && step != "confirm command" {
				continue
			}
			t.Run(how+" before "+step, func(t *testing.T) {
				t.Parallel()
				b, p := newBed(t), mortal()
				p.Breaker = 20
				const boot = 2 * time.Second // longer than the persistence
				d := b.serve(t, "w", p, func(Order) Result {
					b.beat(t, boot, Record{Worker: "w", State: Idle}) // not hung again, however long the machine takes for a beat
					return Result{Done, "restarted"}
				})
				b.say(t, Record{Worker: "w", State: Processing})
				victim := startRole(t, "monitor", script{URL: b.url, Name: "victim", Policy: p, StopAt: step})
				victim.WaitOutput(t, "at "+step)
				if how == "killed" {
					victim.Kill()
				} else {
					victim.Freeze(t)
				}
				b.monitor(t, config(p, Request{connect(t, b.url), "restart.{worker}"}, &alerts{}))
				defer b.audit(t, "w")
				fabrictest.Eventually(t, readyIn, "the worker to recover", func() bool {
					c := b.incidentOf(t, "w")
					return c != nil && c.State == IncidentRecovered
				})
				if len(d.list()) == 0 {
					t.Error("the worker was never restarted")
				}
				if how == "frozen" {
					if _, err := io.WriteString(victim.stdin, "\n"); err != nil {
						t.Fatal(err)
					}
					victim.Thaw(t)
					victim.WaitOutput(t, "goes on")
					b.outlast(t, 5*p.CheckInterval)
				}
				d.check(t, p)
				c := b.incidentOf(t, "w")
				if a := c.running(); a != nil {
					t.Errorf("attempt %s was never settled", a.ID)
				}
				if used, done := c.used(time.Time{}), len(d.list()); used < done {
					t.Errorf("%d restarts, and the breaker has counted %d", done, used)
				}
			})
		}
	}
}
