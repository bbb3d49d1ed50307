package main_test

import (
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/nats-io/nats-server/v2/server"

	"natsfabric/cmd/fabricnode/internal/reference"
	"natsfabric/fabrictest"
)

var update = flag.Bool("update", false, "rewrite docs/messages.md")

const messagesFile = "../../docs/messages.md"

// message is one thing that goes wrong and what a person sees then. The whole text is compared with docs/messages.md;
// says keeps a rewrite of that file from hiding that a text no longer says what it must.
type message struct {
	title string
	code  int
	says  []string
	args  []string
	stdin string
	// or is an exit code that is as true, and that luck or a busy machine may show instead; then the command is run again.
	or int
	// skip says why the failure cannot be provoked here; empty when it can.
	skip string
	// hide is what differs from run to run, and what stands for it in the document.
	hide [][2]string
}

// maxAgain bounds how often a command is run again.
const maxAgain = 20

// TestMessages provokes each failure with the real program and real servers.
func TestMessages(t *testing.T) {
	t.Parallel()
	bin := program(t)
	moves, objects := newMoveStage(t, bin), newObjectStage(t, bin)
	s := newStage(t, bin)
	messages := slices.Concat(s.messages(t), objects.messages(t, s.small), moves.messages(t))
	known := sections(t)
	got := make([]string, len(messages))
	t.Run("text", func(t *testing.T) {
		for i, m := range messages {
			t.Run(m.title, func(t *testing.T) {
				t.Parallel()
				if m.skip != "" {
					cannotMount(t, m.skip)
				}
				r := run(t, bin, m.stdin, m.args...)
				for again := 0; m.or != 0 && r.code == m.or && again < maxAgain; again++ {
					r = run(t, bin, m.stdin, m.args...)
				}
				text := lastMessage(r.stderr)
				if m.code == 0 {
					text = strings.TrimSpace(r.stdout)
				}
				if r.code != m.code {
					t.Errorf("exit code %d, want %d; it wrote:\n%s", r.code, m.code, r.stderr)
				}
				for _, s := range m.says {
					if !strings.Contains(text, s) {
						t.Errorf("the text does not say %q:\n%s", s, text)
					}
				}
				if strings.ContainsAny(text, "\n\r") || len(text) > 700 {
					t.Errorf("the text is not one line of a length that is read:\n%s", text)
				}
				got[i] = m.section(text, r.code)
				if !*update && known[m.title] != got[i] {
					t.Errorf("docs/messages.md says\n%s\nthe program says\n%s\n(-update rewrites the file)", known[m.title], got[i])
				}
			})
		}
	})
	if t.Failed() || slices.Contains(got, "") {
		return // some did not run: the document cannot be judged as a whole
	}
	doc := messagesHead + strings.Join(got, "") + reasonTable()
	if *update {
		if err := os.WriteFile(messagesFile, []byte(doc), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if text, err := os.ReadFile(messagesFile); err != nil || string(text) != doc {
		t.Errorf("docs/messages.md has more, or in another order, than the program says (%v): -update rewrites it", err)
	}
}

const messagesHead = `# What a person sees when something is wrong

Each text below was written by the program and is checked against it by a test
(` + "`go test ./cmd/fabricnode -run TestMessages`; with `-update`" + ` it rewrites this file). The exit codes are
explained by ` + "`fabricnode --help`" + `. Addresses, directories, times and numbers that differ from run to run are replaced.
`

// section is the message's part of the document.
func (m message) section(text string, code int) string {
	shown := append([]string(nil), m.args...)
	for i, a := range shown {
		switch {
		case !utf8.ValidString(a):
			shown[i] = "$'" + strings.Trim(strconv.Quote(a), `"`) + "'"
		case a == "" || strings.ContainsAny(a, " {>*"):
			shown[i] = "'" + a + "'"
		}
	}
	cmd := "fabricnode " + strings.Join(shown, " ")
	for _, h := range m.hide {
		cmd, text = strings.ReplaceAll(cmd, h[0], h[1]), strings.ReplaceAll(text, h[0], h[1])
	}
	for _, h := range varying {
		cmd, text = h.what.ReplaceAllString(cmd, h.with), h.what.ReplaceAllString(text, h.with)
	}
	return fmt.Sprintf("\n## %s\n\n    $ %s\n    %s\n\nExit code %d.\n", m.title, shorten(cmd), shorten(text), code)
}

// shorten cuts an ID that is long on purpose.
func shorten(text string) string {
	return regexp.MustCompile(`x{50,}`).ReplaceAllString(text, "xxx...")
}

// varying is what no test can know beforehand.
var varying = []struct {
	what *regexp.Regexp
	with string
}{
	{regexp.MustCompile(`lifecycle \d+`), "lifecycle 7"},
	{regexp.MustCompile(`((?:actor|spot)/[^@ ]+@)\d+`), "${1}12"},
	{regexp.MustCompile(`on host \S+`), "on host host-1"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ`), "2026-01-01T00:00:00Z"},
	{regexp.MustCompile(`\.probe-\d+`), ".probe-1"},
	{regexp.MustCompile(`127\.0\.0\.1:\d{5}`), "127.0.0.1:4222"},
}

// sections reads the document, by title.
func sections(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile(messagesFile)
	if err != nil && !*update {
		t.Errorf("%v", err)
	}
	out := map[string]string{}
	for _, s := range strings.Split(string(text), "\n## ")[1:] {
		title, _, _ := strings.Cut(s, "\n")
		out[title] = "\n## " + strings.TrimSuffix(s, "\n") + "\n"
	}
	return out
}

// lastMessage is the program's own line, without the log before it.
func lastMessage(stderr string) string {
	lines := strings.Split(strings.TrimSpace(stderr), "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, "fabricnode: ") {
			return strings.Join(lines[i:], "\n")
		}
	}
	return strings.TrimSpace(stderr)
}

// stage is what the messages need: servers of all sorts, and a node.
type stage struct {
	open, closed, small *fabrictest.Server // without and with credentials, with a small payload limit
	plain               string             // a server without JetStream
	old                 string             // one that is older than needed
	nobody              string             // an address where no server is
	taken               string             // an address that is in use
}

func newStage(t *testing.T, bin string) *stage {
	s := &stage{
		open:   fabrictest.StartServer(t),
		closed: fabrictest.StartServer(t, fabrictest.WithConfig(`authorization { user: app, password: right }`)),
		small:  fabrictest.StartServer(t, fabrictest.WithConfig(`max_payload: 4096`)),
		plain:  plainServer(t),
		old:    oldServer(t),
		nobody: "127.0.0.1:1",
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	s.taken = l.Addr().String()
	for _, srv := range []*fabrictest.Server{s.open, s.small} {
		if r := run(t, bin, "", "init", "--mesh", "shop", "--server", srv.URL()); r.code != 0 {
			t.Fatalf("init: %s", r.stderr)
		}
	}
	n := startNode(t, bin, "--mesh", "shop", "--rid", "n1", "--server", s.open.URL(), "--queue", "1", "--workers", "1",
		"--lease-ttl", "4s", "--lease-renew", "500ms", "--lease-margin", "1s")
	startNode(t, bin, "--mesh", "shop", "--rid", "n1", "--server", s.small.URL())
	s.occupy(t, n)
	return s
}

// occupy keeps n1 full until the test ends: one request of work runs, and one waits.
func (s *stage) occupy(t *testing.T, n *node) {
	t.Helper()
	nc, over, done := s.open.Connect(t), make(chan struct{}), make(chan struct{})
	t.Cleanup(func() { close(over); <-done })
	go func() {
		defer close(done)
		next := time.NewTicker(50 * time.Millisecond)
		defer next.Stop()
		for {
			// One too many is refused, to nobody.
			if err := nc.Publish("fab.shop.ch.work", fmt.Appendf(nil, `{"sleep_ms":%d}`, reference.MaxSleep.Milliseconds())); err != nil {
				t.Error(err)
				return
			}
			select {
			case <-next.C:
			case <-over:
				return
			}
		}
	}()
	fabrictest.Eventually(t, soon, "one request runs and one waits", func() bool {
		_, metrics := get(t, n.HTTP+"/metrics")
		return strings.Contains(metrics, "\nfabric_requests_running{channel=\"work\"} 1\n") &&
			strings.Contains(metrics, "\nfabric_requests_queued{channel=\"work\"} 1\n")
	})
}

func (s *stage) messages(t *testing.T) []message {
	shop := func(args ...string) []string { return append(args, "--mesh", "shop", "--server", s.open.URL()) }
	hide := func(pairs ...string) (out [][2]string) {
		for i := 0; i < len(pairs); i += 2 {
			out = append(out, [2]string{pairs[i], pairs[i+1]})
		}
		return append(out, [2]string{s.open.URL(), "nats://127.0.0.1:4222"})
	}
	readOnly, full, unmounted := mounts(t)
	dir := t.TempDir()
	badFile := filepath.Join(dir, "node.yaml")
	if err := os.WriteFile(badFile, []byte("mesh: shop\nwieght: 3\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	embedded := func(data string, more ...string) []string {
		return append([]string{"run", "--mesh", "shop", "--embedded", "--listen", "127.0.0.1:0", "--data", data}, more...)
	}
	return []message{
		{title: "No server at the URL", code: 3, says: []string{"no NATS server answers at nats://" + s.nobody, "start one"},
			args: []string{"nodes", "--mesh", "shop", "--server", "nats://" + s.nobody}, hide: hide(s.nobody, "127.0.0.1:4222")},
		{title: "Wrong credentials", code: 3, says: []string{"refused the credentials", `user "app"`},
			args: []string{"nodes", "--mesh", "shop", "--server", s.closed.URL(), "--user", "app", "--password", "wrong"}, hide: hide(s.closed.URL(), "nats://127.0.0.1:4222")},
		{title: "No credentials", code: 3, says: []string{"refused the credentials", "none given"},
			args: []string{"nodes", "--mesh", "shop", "--server", s.closed.URL()}, hide: hide(s.closed.URL(), "nats://127.0.0.1:4222")},
		{title: "A user without a password", code: 3, says: []string{"refused the credentials", `user "app" without a password`},
			args: []string{"nodes", "--mesh", "shop", "--server", s.closed.URL(), "--user", "app"}, hide: hide(s.closed.URL(), "nats://127.0.0.1:4222")},
		{title: "Wrong credentials in the URL", code: 3, says: []string{"refused the credentials", "those in the URL"},
			args: []string{"nodes", "--mesh", "shop", "--server", strings.Replace(s.closed.URL(), "nats://", "nats://app:wrong@", 1)}, hide: hide()},
		{title: "A credentials file that is not there", code: 2, says: []string{"--creds", "/nonexistent/app.creds"},
			args: shop("nodes", "--creds", "/nonexistent/app.creds"), hide: hide()},
		{title: "A credentials file that is none", code: 2, says: []string{"--creds", "no NATS credentials"},
			args: shop("nodes", "--creds", "/etc/passwd"), hide: hide()},
		{title: "No such context of the nats CLI", code: 3, says: []string{`"nosuch"`, "nats/context"},
			args: []string{"nodes", "--mesh", "shop", "--context", "nosuch"}, hide: hide()},
		{title: "No URL", code: 2, says: []string{"--server", "no URL"},
			args: []string{"nodes", "--mesh", "shop", "--server", "::bad::"}, hide: hide()},
		{title: "A port out of range", code: 2, says: []string{"--server", "65535"},
			args: []string{"nodes", "--mesh", "shop", "--server", "localhost:99999"}, hide: hide()},
		{title: "A URL of another protocol", code: 2, says: []string{"--server", "scheme"},
			args: []string{"nodes", "--mesh", "shop", "--server", "http://127.0.0.1:4222"}, hide: hide()},
		{title: "JetStream disabled", code: 3, says: []string{"JetStream"},
			args: []string{"init", "--mesh", "shop", "--server", s.plain}, hide: hide(s.plain, "nats://127.0.0.1:4222")},
		{title: "Server older than needed", code: 3, says: []string{"2.9.25", "too old", "2.12"},
			args: []string{"run", "--mesh", "shop", "--server", s.old}, hide: hide(s.old, "nats://127.0.0.1:4222")},
		{title: "Replicas 3 on one server", code: 3, says: []string{"3", "server"},
			args: []string{"init", "--mesh", "market", "--replicas", "3", "--server", s.open.URL()}, hide: hide()},
		{title: "A mesh whose streams were not made", code: 3, says: []string{"fabricnode init", "--server"},
			args: []string{"nodes", "--mesh", "market", "--server", s.open.URL()}, hide: hide()},
		{title: "Bad RID", code: 2, says: []string{`"node one"`, "1 to 64 characters"},
			args: shop("run", "--rid", "node one"), hide: hide()},
		{title: "Bad mesh name", code: 2, says: []string{`"shop.eu"`, "1 to 64 characters"},
			args: []string{"run", "--mesh", "shop.eu", "--server", s.open.URL()}, hide: hide()},
		{title: "A weight out of range", code: 2, says: []string{"--weight 300"},
			args: shop("run", "--weight", "300"), hide: hide()},
		{title: "A queue of nothing", code: 2, says: []string{"--queue 0"},
			args: shop("run", "--queue", "0"), hide: hide()},
		{title: "A timeout of nothing", code: 2, says: []string{"--timeout 0s"},
			args: shop("call", "--timeout", "0s", "echo"), hide: hide()},
		{title: "Clashing deadlines", code: 2, says: []string{"5s", "6s", "clashes"},
			args: shop("run", "--lease-ttl", "6s", "--lease-renew", "5s"), hide: hide()},
		{title: "Payload above the limit", code: 6, says: []string{"CapacityExceeded (NotAccepted)", "4096"},
			args: []string{"call", "--mesh", "shop", "--server", s.small.URL(), "echo", "-"}, stdin: strings.Repeat("x", 5000), hide: hide(s.small.URL(), "nats://127.0.0.1:4222")},
		{title: "Unknown channel", code: 5, says: []string{"NotFound (NotAccepted)", `"prices"`, "fabricnode nodes"},
			args: shop("call", "prices"), hide: hide()},
		{title: "Unknown node", code: 5, says: []string{"NotFound (NotAccepted)", `"n7"`},
			args: shop("call", "--to", "n7", "echo"), hide: hide()},
		{title: "All servers full", code: 6, or: 8, says: []string{"Unavailable (NotAccepted)", "full"}, // 8: the deadline came before the last refusal
			args: shop("call", "--timeout", "5s", "work", `{"sleep_ms":1}`), hide: hide()},
		{title: "A payload that the handler refuses", code: 7, says: []string{"InvalidOperation (Accepted", "sleep_ms"},
			args: []string{"call", "--mesh", "shop", "--server", s.small.URL(), "work", "hello"}, hide: hide(s.small.URL(), "nats://127.0.0.1:4222")},
		{title: "No answer in time", code: 8, says: []string{"DeadlineExceeded (Unknown)"},
			args: []string{"call", "--mesh", "shop", "--server", s.small.URL(), "--timeout", "5s", "work", `{"sleep_ms":60000}`}, hide: hide(s.small.URL(), "nats://127.0.0.1:4222")},
		{title: "Two nodes with one RID", code: 9, says: []string{`"n1"`, "in use", "choose another --rid"},
			args: shop("run", "--rid", "n1", "--lease-ttl", "4s", "--lease-renew", "500ms", "--lease-margin", "1s"), hide: hide()},
		{title: "Forget a node that lives", code: 6, says: []string{`"n1"`},
			args: shop("forget", "n1"), hide: hide()},
		{title: "Forget a node that was never there", code: 5, says: []string{`"n7"`},
			args: shop("forget", "n7"), hide: hide()},
		{title: "A bad flag", code: 2, says: []string{"--lissten", "--help"},
			args: []string{"run", "--mesh", "shop", "--lissten", "127.0.0.1:4222"}, hide: hide()},
		{title: "A flag without its value", code: 2, says: []string{"--mesh needs a value"},
			args: []string{"run", "--mesh"}, hide: hide()},
		{title: "An unknown command", code: 2, says: []string{`"bogus"`, "run, init"},
			args: []string{"bogus"}, hide: hide()},
		{title: "No mesh name", code: 2, says: []string{"--mesh", "--help"},
			args: []string{"run"}, hide: hide()},
		{title: "A bad key in the configuration file", code: 2, says: []string{`"wieght"`},
			args: []string{"run", "--config", badFile}, hide: hide(badFile, "node.yaml")},
		{title: "A server and an embedded one", code: 2, says: []string{"--embedded", "--server"},
			args: shop("run", "--embedded"), hide: hide()},
		{title: "A listening address without an embedded server", code: 2, says: []string{"--listen", "--embedded"},
			args: shop("run", "--listen", "127.0.0.1:4222"), hide: hide()},
		{title: "Replicas 3 on one embedded server", code: 2, says: []string{"--replicas 3", "--cluster-listen"},
			args: []string{"run", "--mesh", "shop", "--embedded", "--replicas", "3"}, hide: hide()},
		{title: "A route that is no address", code: 2, says: []string{"--routes", "nats://host:6222"},
			args: []string{"run", "--mesh", "shop", "--rid", "n1", "--embedded", "--cluster-listen", "127.0.0.1:6222", "--routes", "foo"}, hide: hide()},
		{title: "Port taken", code: 2, says: []string{s.taken, "in use", "another port"},
			args: []string{"run", "--mesh", "shop", "--embedded", "--listen", s.taken, "--data", dir}, hide: hide(s.taken, "127.0.0.1:4222", dir, "data")},
		{title: "HTTP port taken", code: 2, says: []string{s.taken, "in use", "another port"},
			args: shop("run", "--http", s.taken), hide: hide(s.taken, "127.0.0.1:8480")},
		{title: "A demo input that is not there", code: 2, says: []string{"/nonexistent/access.log"},
			args: []string{"demo", "--input", "/nonexistent/access.log"}, hide: hide()},
		{title: "A read-only data directory", code: 2, says: []string{readOnly, "read-only"}, skip: unmounted,
			args: embedded(readOnly), hide: hide(readOnly, "/data")},
		{title: "A full disk", code: 2, says: []string{full, "full"}, skip: unmounted,
			args: embedded(full), hide: hide(full, "/data")},
	}
}

// plainServer runs a server without JetStream.
func plainServer(t *testing.T) string {
	t.Helper()
	srv, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, NoLog: true, NoSigs: true})
	if err != nil {
		t.Fatal(err)
	}
	srv.Start()
	t.Cleanup(func() { srv.Shutdown(); srv.WaitForShutdown() })
	if !srv.ReadyForConnections(soon) {
		t.Fatal("the server is not ready")
	}
	return srv.ClientURL()
}

// mounts returns two directories for data: one on a read-only file system, one on a full disk; or why there are none.
func mounts(t *testing.T) (readOnly, full, why string) {
	t.Helper()
	readOnly, full = filepath.Join(t.TempDir(), "ro"), filepath.Join(t.TempDir(), "full")
	for dir, opts := range map[string]string{readOnly: "ro,size=64k", full: "size=64k"} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command("mount", "-t", "tmpfs", "-o", opts, "tmpfs", dir).CombinedOutput(); err != nil {
			return readOnly, full, fmt.Sprintf("mounting is not permitted here (run as root): %v: %s", err, out)
		}
		t.Cleanup(func() {
			if out, err := exec.Command("umount", dir).CombinedOutput(); err != nil {
				t.Errorf("umount %s: %v: %s", dir, err, out)
			}
		})
	}
	return readOnly, full, ""
}
