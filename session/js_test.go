package session

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"natsfabric/fabrictest"
	"natsfabric/objects"
	"natsfabric/session/js"
)

// script is natsfabric.js in a Node process.
type script struct {
	t     testing.TB
	in    io.WriteCloser
	lines chan string
}

// script runs the client on Node, which has to be there (Debian: nodejs). Before version 22 its WebSocket needs a flag.
func (b *bed) script(urls ...string) *script { return b.scriptWith(nil, urls...) }

// scriptWith is script with variables for the driver.
func (b *bed) scriptWith(env []string, urls ...string) *script {
	t := b.t
	t.Helper()
	dir := t.TempDir()
	driver, err := os.ReadFile("testdata/driver.mjs")
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"natsfabric.mjs": js.Source(), "driver.mjs": string(driver)} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("node", append([]string{"--experimental-websocket", "--no-warnings", filepath.Join(dir, "driver.mjs")}, urls...)...)
	cmd.Stderr = os.Stderr
	cmd.Env = append(os.Environ(), env...)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatalf("Node is needed for the test of the JavaScript client (Debian: apt-get install nodejs): %v", err)
	}
	s := &script{t: t, in: in, lines: make(chan string, 10_000)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for r := bufio.NewScanner(out); r.Scan(); {
			s.lines <- r.Text()
		}
	}()
	t.Cleanup(func() {
		_ = in.Close()
		kill := time.AfterFunc(long, func() { _ = cmd.Process.Kill() })
		defer kill.Stop()
		<-done
		if err := cmd.Wait(); err != nil {
			t.Errorf("the script: %v", err)
		}
	})
	return s
}

func (s *script) do(command string) {
	s.t.Helper()
	if _, err := io.WriteString(s.in, command+"\n"); err != nil {
		s.t.Fatal(err)
	}
}

// want waits for lines that begin so, in any order; others may come between.
func (s *script) want(lines ...string) {
	s.t.Helper()
	missing := map[string]bool{}
	for _, l := range lines {
		missing[l] = true
	}
	var seen []string
	for late := time.After(long); len(missing) > 0; {
		select {
		case l := <-s.lines:
			seen = append(seen, l)
			for want := range missing {
				if strings.HasPrefix(l, want) {
					delete(missing, want)
				}
			}
		case <-late:
			s.t.Fatalf("%v did not come; what came:\n%s", missing, strings.Join(seen, "\n"))
		}
	}
}

func TestJavaScript(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	n1, n2 := b.node("n1", func(s *settings) { s.GoAway = 20 * time.Second }), b.node("n2")
	ref := n2.actor("alice")
	p := fabrictest.NewProxy(t, n1.web.Listener.Addr().String())
	s := b.script("ws"+strings.TrimPrefix(p.URL(), "nats"), n2.ws())
	s.want("connected n1 hello ann")
	// What the Actor pushes as soon as it is bound waits for the function that takes it.
	greet := func(ctx context.Context, bound *Binding) {
		for i := range 3 {
			if err := bound.Push(ctx, fmt.Append(nil, "greeting ", i)); err != nil {
				t.Error(err)
			}
		}
	}
	b.log.onBound.Store(&greet)
	s.do("bind actor/alice")
	s.want("bind "+ref.String()+" n2 1", "push 1 1 greeting 0", "push 2 1 greeting 1", "push 3 1 greeting 2")
	b.log.onBound.Store(nil)
	s.do("request add")
	s.want("reply 1")
	s.do("request grüße, 世界")
	s.want("reply grüße, 世界")
	s.do("bytes")
	s.want("reply 0,10,255")
	s.do("send add")
	s.want("sent")
	s.do("request fail")
	s.want("request failed Rejected Accepted true the counter does not want to")
	s.do("large")
	s.want("large failed CapacityExceeded NotAccepted false the message is larger than the node allows")
	s.do("request push 2")
	s.want("push 4 1 n2 0", "push 5 1 n2 1", "reply pushed")

	n2.move("alice", n1)
	s.want("moved n1 2")
	s.do("request push 1")
	s.want("push 6 2 n1 0", "reply pushed")

	// A request that waits when the connection is lost is Unknown, and runs once.
	started, hold := make(chan struct{}), make(chan struct{})
	turn := func(context.Context, *objects.Request) (objects.Reply, error) {
		close(started)
		<-hold
		return objects.Reply{}, nil
	}
	b.log.onTurn.Store(&turn)
	s.do("request slow")
	<-started
	b.log.onTurn.Store(nil)
	p.Apply(fabrictest.Cut)
	s.want("request failed Unavailable Unknown false the connection was lost before the answer came: the connection was lost (1006 )", "disconnected Unavailable")
	close(hold)
	s.want("connected n2 hello ann", "bound 2")
	s.do("request add")
	s.want("reply 3")
	if b.log.has("alice", "ann: slow") != 1 {
		t.Fatal(b.log.of("alice"))
	}

	// The deadline is the client's.
	again, free := make(chan struct{}), make(chan struct{})
	wait := func(context.Context, *objects.Request) (objects.Reply, error) {
		close(again)
		<-free
		return objects.Reply{}, nil
	}
	b.log.onTurn.Store(&wait)
	s.do("short x")
	select {
	case <-again:
	case <-time.After(long):
		t.Fatal("no turn began")
	}
	b.log.onTurn.Store(nil)
	s.want("short failed DeadlineExceeded Unknown")
	close(free)

	drained := make(chan error, 1)
	go func() { drained <- n2.Drain(b.ctx()) }()
	s.want("goaway n2", "connected n1 hello ann", "bound 3")
	if err := <-drained; err != nil {
		t.Fatal(err)
	}
	s.do("request add")
	s.want("reply 4")
	s.do("unbind")
	s.want("unbound")
	s.do("request add")
	s.want("request failed InvalidOperation NotAccepted false the binding is over: it was unbound")
	s.do("bind actor/alice")
	s.want("bind " + ref.String() + " n1 4")
	if err := n1.objs.Actors().Destroy(b.ctx(), ref); err != nil {
		t.Fatal(err)
	}
	s.want("ended closed NotFound")
	s.do("close")
	s.want("closed", "disconnected ShuttingDown")
	s.do("bind actor/alice")
	s.want("bind failed ShuttingDown NotAccepted false the client is closed")
}

// TestJavaScriptHalfOpen: the connection is silent. The module gives it up and finds another.
func TestJavaScriptHalfOpen(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	n1 := b.node("n1", heartbeat(3*time.Second))
	p := fabrictest.NewProxy(t, n1.web.Listener.Addr().String())
	s := b.script("ws"+strings.TrimPrefix(p.URL(), "nats"), n1.ws())
	s.want("connected n1 hello ann")
	p.Apply(fabrictest.HalfOpen)
	s.want("disconnected Unavailable", "connected n1 hello ann")
	p.Heal() // Node's WebSocket waits for the end of what it has closed
}

func TestJavaScriptRefused(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	n1 := b.node("n1", func(s *settings) { s.MaxSessions = 1 })
	n1.dial("bob")
	s := b.scriptWith([]string{"FABRIC_TIMEOUT=300"}, n1.ws())
	s.want("refused Unavailable")
	s.do("bind actor/alice") // it ends, though no session comes
	s.want("bind failed Unavailable NotAccepted false there is no session: the client is connecting")
	s.do("close")
	s.want("closed")
}
