//go:build unix

package fence_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"natsfabric/fabrictest"
	"natsfabric/fence"
)

// The promoter is a process that is killed, or frozen beyond its right and its term, at each step of a promotion: before and
// after each of its writes was stored, and in each call of the device. Another candidate goes on: the device never acts twice
// at the same time, nobody leads before the old leader is cut off, each promotion has a token of its own that is higher than the one before,
// and a promoter that is thawed promotes itself only when it is its turn again.
func TestPromoterProcessDiesAndFreezes(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGSTOP} {
		name := map[syscall.Signal]string{syscall.SIGKILL: "killed", syscall.SIGSTOP: "frozen"}[sig]
		for _, write := range promotionWrites {
			for _, stored := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s at %s, stored=%t", name, write, stored), func(t *testing.T) {
					t.Parallel()
					p := newPromoter(t)
					reached := p.proxy.Arm(fabrictest.Trigger{
						Dir: fabrictest.ToServer, Subject: "$KV.FABRIC_m_FENCE.leader.db", Match: promotionWrite(write), Answer: stored, Action: fabrictest.Drop,
					})
					p.start(t)
					select {
					case <-reached.Reached():
					case <-time.After(readyIn):
						t.Fatalf("the promoter did not come to %s: %q", write, p.lines(t))
					}
					p.strike(t, sig)
				})
			}
		}
		for _, call := range []string{"fence", "check"} {
			t.Run(name+" in the device's "+call, func(t *testing.T) {
				t.Parallel()
				p := newPromoter(t)
				hold := filepath.Join(p.dir, "hold-"+call+"-b")
				if err := os.WriteFile(hold, nil, 0o600); err != nil {
					t.Fatal(err)
				}
				p.start(t)
				p.wait(t, map[string]string{"fence": "b fences", "check": "b checks"}[call])
				p.strike(t, sig, hold)
			})
		}
	}
}

// promoter is a mesh whose leader a is silent, and the process of candidate b.
type promoter struct {
	dir   string
	url   string
	proxy *fabrictest.Proxy
	old   *fence.Term
	cmd   *exec.Cmd
}

func newPromoter(t *testing.T) *promoter {
	t.Helper()
	servers, _ := startMesh(t, 1)
	p := &promoter{dir: t.TempDir(), url: servers[0].URL(), proxy: servers[0].Proxy(t)}
	p.old = silent(t, servers[0], fence.PromoterConfig("a", p.dir))
	return p
}

func (p *promoter) start(t *testing.T) {
	t.Helper()
	p.cmd = exec.Command(os.Args[0])
	p.cmd.Env = append(os.Environ(), "FENCE_TEST_CHILD=promoter", "FENCE_TEST_DIR="+p.dir, "FENCE_TEST_URL="+p.proxy.URL())
	p.cmd.Stderr = os.Stderr
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // it may be dead already
		_ = p.cmd.Wait()
	})
}

// strike stops the promoter where it is, lets another candidate go on, and, when the promoter was only frozen, thaws it.
func (p *promoter) strike(t *testing.T, sig syscall.Signal, holds ...string) {
	t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
	if sig == syscall.SIGKILL {
		_ = p.cmd.Wait()
	}
	for _, h := range holds {
		if err := os.Remove(h); err != nil {
			t.Fatal(err)
		}
	}
	cfg := fence.PromoterConfig("c", p.dir)
	cfg.TTL = time.Minute // it renews, however long the machine keeps it from that
	term := promoted(t, standby(t, candidate(t, p.url, cfg)))
	fence.FileDevice{Dir: p.dir, By: "c"}.Say("leads " + term.Token().String())
	if _, err := os.Stat(filepath.Join(p.dir, "cut-a")); err != nil {
		t.Errorf("promoted, and the old leader is not cut off: %v", err)
	}
	if sig == syscall.SIGSTOP {
		if err := p.cmd.Process.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		p.wait(t, "b sees c")
		if _, err := term.FenceToken(); err != nil {
			t.Errorf("the thawed promoter has ended the other one's term: %v", err)
		}
		if err := term.Resign(testContext(t)); err != nil {
			t.Fatal(err)
		}
		p.waitLast(t, "b leads")
	}
	p.judge(t)
}

// lines is the log.
func (p *promoter) lines(t *testing.T) []string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(p.dir, "log"))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(string(b)), "\n")
}

func (p *promoter) wait(t *testing.T, line string) {
	t.Helper()
	fabrictest.Eventually(t, readyIn, line, func() bool {
		for _, l := range p.lines(t) {
			if strings.HasPrefix(l, line) {
				return true
			}
		}
		return false
	})
}

// waitLast waits until the promotion that is the latest is one that begins with line.
func (p *promoter) waitLast(t *testing.T, line string) {
	t.Helper()
	fabrictest.Eventually(t, readyIn, line, func() bool {
		last := ""
		for _, l := range p.lines(t) {
			if strings.Contains(l, " leads ") {
				last = l
			}
		}
		return strings.HasPrefix(last, line)
	})
}

func (p *promoter) judge(t *testing.T) {
	t.Helper()
	highest, cut := p.old.Token(), false
	for _, l := range p.lines(t) {
		by, what, _ := strings.Cut(l, " ")
		switch verb, of, _ := strings.Cut(what, " "); verb {
		case "cut":
			cut = cut || of == "a"
		case "acted":
			t.Errorf("the device acted twice at once: %q", p.lines(t))
		case "leads":
			tok, err := fence.ParseToken(of)
			if err != nil {
				t.Fatal(err)
			}
			if !cut {
				t.Errorf("%s leads before a was cut off: %q", by, p.lines(t))
			}
			if tok.Compare(highest) <= 0 {
				t.Errorf("%s leads with %s after %s: %q", by, tok, highest, p.lines(t))
			}
			highest = tok
		case "failed:":
			t.Errorf("the promoter gave up: %q", l)
		}
	}
	if highest == p.old.Token() {
		t.Errorf("nobody was promoted: %q", p.lines(t))
	}
}
