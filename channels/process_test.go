package channels_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"natsfabric/channels"
	"natsfabric/fabrictest"
	"natsfabric/internal/monotime"
	"natsfabric/internal/wire"
	"natsfabric/kvlocation"
)

// The environment of a member process: this test binary, started again.
const (
	envMember  = "CHANNELS_TEST_MEMBER" // its RID
	envURL     = "CHANNELS_TEST_URL"
	envJournal = "CHANNELS_TEST_JOURNAL"
	envQueue   = "CHANNELS_TEST_QUEUE"
	envWorkers = "CHANNELS_TEST_WORKERS"
)

// processLifecycle is the lifecycle of every member process.
const processLifecycle = 7

// newClock returns a store clock that runs with this machine's.
func newClock() *kvlocation.Clock {
	c := kvlocation.NewClock(18 * time.Second)
	now := monotime.Now()
	c.Observe(now, monotime.Now(), time.Now())
	return c
}

// runMember serves the channel "work" and the service "svc" until it is killed. Before they do anything else, their
// handlers append the request's identity (the payload up to the first blank) to the journal; "sleep=<ms>" behind it makes
// the channel's handler sleep.
func runMember() {
	fatal := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	rid := os.Getenv(envMember)
	journal, err := os.OpenFile(os.Getenv(envJournal), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	fatal(err)
	nc, err := nats.Connect(os.Getenv(envURL), nats.ReconnectBufSize(-1), nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond), nats.Timeout(patience))
	fatal(err)
	r, err := channels.New(channels.Config{
		Mesh: mesh, Conn: nc, RID: rid, Lifecycle: processLifecycle, Clock: newClock(),
		Directory: newDirectory(member(rid, processLifecycle, "work")),
	})
	fatal(err)
	nc.SetDisconnectErrHandler(func(*nats.Conn, error) { r.Disconnected() })
	nc.SetReconnectHandler(func(*nats.Conn) { _ = r.Reconnected() })
	queue, _ := strconv.Atoi(os.Getenv(envQueue))
	workers, _ := strconv.Atoi(os.Getenv(envWorkers))
	_, err = r.Serve(context.Background(), channels.Spec{Name: "work", Queue: queue, Workers: workers, Handler: func(ctx context.Context, req *channels.Request) (channels.Reply, error) {
		id, order, _ := strings.Cut(string(req.Data()), " ")
		if _, err := fmt.Fprintln(journal, id); err != nil {
			return channels.Reply{}, err
		}
		if ms, ok := strings.CutPrefix(order, "sleep="); ok {
			n, _ := strconv.Atoi(ms)
			t := time.NewTimer(time.Duration(n) * time.Millisecond)
			defer t.Stop()
			<-t.C
		}
		return channels.Reply{Data: []byte(rid)}, nil
	}})
	fatal(err)
	fatal(r.Listen(context.Background(), channels.Service{Name: "svc", Handle: func(in *channels.Inbound) {
		in.Accept()
		_, err := fmt.Fprintln(journal, string(in.Data()))
		fatal(err)
		in.Reply([]byte(rid), nil)
	}}))
	fatal(r.SetServing(true))
	_, err = nc.Subscribe("stats."+rid, func(m *nats.Msg) {
		s := r.Metrics()
		data, _ := json.Marshal(memberStats{s.FreezeGaps, s.Epoch, s.Served["work"], s.Services["svc"]})
		_ = m.Respond(data)
	})
	fatal(err)
	fatal(nc.Flush())
	fmt.Println("serving")
	select {}
}

type memberStats struct {
	Gaps, Epoch uint64
	Served      channels.ServeSnapshot
	Service     channels.ServiceSnapshot
}

// proc is a member process.
type proc struct {
	*fabrictest.Process
	rid     string
	journal string
}

// startProcess starts a member process that serves "work".
func startProcess(t *testing.T, url, rid string, env ...string) *proc {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &proc{rid: rid, journal: filepath.Join(t.TempDir(), rid+".journal")}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), envMember+"="+rid, envURL+"="+url, envJournal+"="+p.journal)
	cmd.Env = append(cmd.Env, env...)
	p.Process = fabrictest.StartProcess(t, cmd)
	p.WaitOutput(t, "serving")
	return p
}

// ran returns how often each identity stands in the process's journal.
func (p *proc) ran(t *testing.T) map[string]int {
	t.Helper()
	data, err := os.ReadFile(p.journal)
	if err != nil {
		t.Fatal(err)
	}
	n := make(map[string]int)
	for id := range strings.FieldsSeq(string(data)) {
		n[id]++
	}
	return n
}

// stats asks the process for its counters.
func (p *proc) stats(t *testing.T, nc *nats.Conn) memberStats {
	t.Helper()
	m, err := nc.Request("stats."+p.rid, nil, patience)
	if err != nil {
		t.Fatalf("stats of %s: %v", p.rid, err)
	}
	var s memberStats
	if err := json.Unmarshal(m.Data, &s); err != nil {
		t.Fatal(err)
	}
	return s
}

func channelSubject(name string) string { return wire.Mesh(mesh).Channel(name) }
