package device

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"natsfabric/fabrictest"
	"natsfabric/fence"
	"natsfabric/kvlocation"
)

// newElection is a candidate with a term of 2 s that fences by killing the process.
func newElection(url, node string, labels map[string]string) (*fence.Election, func(), error) {
	nc, err := nats.Connect(url, nats.ReconnectBufSize(-1), nats.Timeout(time.Minute))
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	store, err := kvlocation.Open(ctx, nc, kvlocation.Config{Mesh: "m", RID: node, AttemptTimeout: 400 * time.Millisecond})
	if err != nil {
		nc.Close()
		return nil, nil, err
	}
	e, err := fence.NewElection(store, fence.ElectionConfig{
		Name: "db", Node: node, Labels: labels, TTL: 2 * time.Second, Renew: 300 * time.Millisecond, Margin: 400 * time.Millisecond,
		Poll: 50 * time.Millisecond, AllowUnreplicated: true,
		Fencing: &fence.Plan{Resources: []string{"disk"}, Levels: []fence.Level{{{Device: NewProcess("kill", 0)}}}},
	})
	return e, func() { store.Close(); nc.Close() }, err
}

// leaderChild is the process of a leader that works until it is killed.
func leaderChild() error {
	labels, err := SelfLabels()
	if err != nil {
		return err
	}
	e, end, err := newElection(os.Getenv("DEVICE_TEST_LEADER"), "a", labels)
	if err != nil {
		return err
	}
	defer end()
	term, err := e.Campaign(context.Background())
	if err != nil {
		return err
	}
	fmt.Println("leads", term.Token())
	<-time.After(time.Minute)
	return nil
}

// A real leader is frozen. It is killed before the standby is promoted, and stays dead when it is thawed.
func TestFrozenLeaderIsKilledFirst(t *testing.T) {
	server := fabrictest.StartServer(t)
	if _, err := kvlocation.Init(testContext(t), server.Connect(t, nats.ReconnectBufSize(-1)), kvlocation.Setup{Mesh: "m"}); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "DEVICE_TEST_LEADER="+server.URL())
	leader := fabrictest.StartProcess(t, cmd)
	line := leader.WaitOutput(t, "leads ")
	first, err := fence.ParseToken(strings.TrimSpace(line[strings.Index(line, "leads ")+len("leads "):]))
	if err != nil {
		t.Fatal(err)
	}
	leader.Freeze(t)
	b, end, err := newElection(server.URL(), "b", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer end()
	term, err := b.Campaign(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	if alive(leader.PID()) {
		t.Fatal("promoted while the old leader's process is there")
	}
	if term.Token().Compare(first) <= 0 {
		t.Fatalf("%s follows %s", term.Token(), first)
	}
	if err := term.Resign(testContext(t)); err != nil {
		t.Fatal(err)
	}
	<-leader.Done()
}
