package embedded_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"natsfabric/internal/embedded"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func start(t *testing.T, cfg embedded.Config) *embedded.Server {
	t.Helper()
	s, err := embedded.Start(testContext(t), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Shutdown)
	return s
}

func jetStream(t *testing.T, url string, opts ...nats.Option) jetstream.JetStream {
	t.Helper()
	nc, err := nats.Connect(url, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

func TestStartIsUsableAtOnceAndKeepsData(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	cfg := embedded.Config{Port: -1, StoreDir: filepath.Join(t.TempDir(), "new", "dir")}
	s := start(t, cfg)
	if !s.Ready() {
		t.Fatal("not ready")
	}
	if !strings.HasPrefix(s.URL(), "nats://127.0.0.1:") {
		t.Fatalf("URL %q is not loopback", s.URL())
	}
	if s.ClusterURL() != "" {
		t.Fatalf("cluster URL %q of a single server", s.ClusterURL())
	}
	if err := s.WaitJetStream(ctx); err != nil {
		t.Fatal(err)
	}
	kv, err := jetStream(t, s.URL()).CreateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: "b"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kv.PutString(ctx, "k", "v"); err != nil {
		t.Fatal(err)
	}

	var wg sync.WaitGroup
	for range 3 {
		wg.Go(s.Shutdown)
	}
	wg.Wait()
	if s.Ready() {
		t.Fatal("ready after Shutdown")
	}

	s = start(t, cfg)
	kv, err = jetStream(t, s.URL(), s.InProcess()).KeyValue(ctx, "b")
	if err != nil {
		t.Fatal(err)
	}
	if e, err := kv.Get(ctx, "k"); err != nil || string(e.Value()) != "v" {
		t.Fatalf("after a restart: %v, %v", e, err)
	}
}

func TestDurableByDefault(t *testing.T) {
	t.Parallel()
	for _, unsafe := range []bool{false, true} {
		var got *server.Options
		start(t, embedded.Config{
			Port: -1, StoreDir: t.TempDir(), UnsafeNoSync: unsafe,
			Options: func(o *server.Options) { got = o },
		})
		if got.SyncAlways == unsafe {
			t.Errorf("UnsafeNoSync %v: SyncAlways %v", unsafe, got.SyncAlways)
		}
	}
}

// freePort is one that the system gives to nobody on its own, unlike port 0.
func freePort(t *testing.T) int {
	t.Helper()
	for range 1000 {
		port := 6_000 + rand.IntN(4000)
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			l.Close()
			return port
		}
	}
	t.Fatal("no free port")
	return 0
}

func TestClusterOfThree(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	ports := make([]int, 3)
	for i := range ports {
		ports[i] = freePort(t)
	}
	var routes []string
	for _, p := range ports {
		routes = append(routes, fmt.Sprintf("nats://127.0.0.1:%d", p))
	}
	servers := make([]*embedded.Server, 3)
	for i := range servers {
		servers[i] = start(t, embedded.Config{
			ServerName: fmt.Sprintf("s%d", i), Port: -1, StoreDir: t.TempDir(),
			ClusterName: "c", ClusterPort: ports[i], Routes: routes,
		})
		if got := servers[i].ClusterURL(); got != routes[i] {
			t.Fatalf("cluster URL %q, want %q", got, routes[i])
		}
		if i == 0 {
			short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
			defer cancel()
			if err := servers[i].WaitJetStream(short); !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("JetStream with one server of three: %v", err)
			}
		}
	}
	for _, s := range servers {
		if err := s.WaitJetStream(ctx); err != nil {
			t.Fatal(err)
		}
	}
}

func TestStartSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	taken := l.Addr().(*net.TCPAddr)
	used := t.TempDir()
	start(t, embedded.Config{Port: -1, StoreDir: used})

	for name, c := range map[string]struct {
		cfg  embedded.Config
		want []string
	}{
		"no directory":   {embedded.Config{Port: -1}, []string{"StoreDir is empty"}},
		"port taken":     {embedded.Config{Port: taken.Port, StoreDir: t.TempDir()}, []string{taken.String(), "in use by another program"}},
		"not our host":   {embedded.Config{Host: "192.0.2.1", Port: 14222, StoreDir: t.TempDir()}, []string{"192.0.2.1:14222", "not an address of this machine"}},
		"file":           {embedded.Config{Port: -1, StoreDir: file}, []string{file, "through a file"}},
		"below file":     {embedded.Config{Port: -1, StoreDir: filepath.Join(file, "x")}, []string{file, "through a file"}},
		"directory used": {embedded.Config{Port: -1, StoreDir: used}, []string{used, "in use by another server"}},
		"no name":        {embedded.Config{Port: -1, StoreDir: t.TempDir(), ClusterName: "c", Routes: []string{"nats://127.0.0.1:1"}}, []string{"ServerName"}},
		"no routes":      {embedded.Config{Port: -1, StoreDir: t.TempDir(), ClusterName: "c", ServerName: "s"}, []string{"Routes is empty"}},
		"bad route":      {embedded.Config{Port: -1, StoreDir: t.TempDir(), ClusterName: "c", ServerName: "s", Routes: []string{"localhost"}}, []string{`"localhost"`, "nats://host:6222"}},
		"only routes":    {embedded.Config{Port: -1, StoreDir: t.TempDir(), Routes: []string{"nats://127.0.0.1:1"}}, []string{"without Config.ClusterName"}},
		"cluster port taken": {embedded.Config{
			Port: -1, StoreDir: t.TempDir(), ClusterName: "c", ServerName: "s",
			ClusterPort: taken.Port, Routes: []string{"nats://127.0.0.1:1"},
		}, []string{taken.String(), "in use by another program"}},
	} {
		s, err := embedded.Start(testContext(t), c.cfg)
		if err == nil {
			s.Shutdown()
			t.Errorf("%s: started", name)
			continue
		}
		for _, w := range c.want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%s: %q does not contain %q", name, err, w)
			}
		}
	}
}

func TestServersOwnErrorIsReported(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var lines []string
	_, err := embedded.Start(testContext(t), embedded.Config{
		Port: -1, StoreDir: t.TempDir(),
		Options: func(o *server.Options) { o.HTTPHost, o.HTTPPort = "192.0.2.1", 18222 },
		Log: func(_ slog.Level, line string) {
			mu.Lock()
			defer mu.Unlock()
			lines = append(lines, line)
		},
	})
	if err == nil || !strings.Contains(err.Error(), "monitoring") {
		t.Fatalf("err %v", err)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(lines) == 0 {
		t.Fatal("no log")
	}
}

func TestStartHonoursContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	s, err := embedded.Start(ctx, embedded.Config{Port: -1, StoreDir: t.TempDir()})
	if err == nil {
		s.Shutdown()
		t.Fatal("started with a cancelled context")
	}
	if !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}
