//go:build browser

package main_test

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"natsfabric/fabrictest"
)

// browser is a page in headless Chromium, driven over the DevTools protocol.
type browser struct {
	t    *testing.T
	conn *websocket.Conn
	next int
}

// openBrowser opens url in a browser of its own. Without Chromium (Debian: apt-get install chromium) the test fails.
func openBrowser(t *testing.T, url string) *browser {
	t.Helper()
	bin, err := exec.LookPath("chromium")
	if err != nil {
		t.Fatalf("Chromium is needed for this test (scripts/e2e-web installs it): %v", err)
	}
	dir := t.TempDir()
	cmd := exec.Command(bin, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
		"--remote-debugging-address=127.0.0.1", "--remote-debugging-port=0", "--user-data-dir="+dir, url)
	cmd.Env = append(os.Environ(), "HOME="+dir)
	p := fabrictest.StartProcess(t, cmd)
	m := regexp.MustCompile(`ws://([0-9.:]+)/`).FindStringSubmatch(p.WaitOutput(t, "DevTools listening on"))
	if m == nil {
		t.Fatal("Chromium does not say where it listens")
	}
	var target string
	fabrictest.Eventually(t, soon, "the page is open", func() bool {
		var pages []struct {
			Type, URL string
			Debugger  string `json:"webSocketDebuggerUrl"`
		}
		code, body := get(t, "http://"+m[1]+"/json/list")
		if code != http.StatusOK || json.Unmarshal([]byte(body), &pages) != nil {
			return false
		}
		for _, page := range pages {
			if page.Type == "page" && page.URL == url {
				target = page.Debugger
			}
		}
		return target != ""
	})
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	conn, _, err := websocket.Dial(ctx, target, nil)
	if err != nil {
		t.Fatal(err)
	}
	conn.SetReadLimit(1 << 20)
	t.Cleanup(func() { _ = conn.CloseNow() })
	return &browser{t: t, conn: conn}
}

// eval runs a script in the page and returns its value as text.
func (b *browser) eval(script string) string {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), soon)
	defer cancel()
	b.next++
	ask, err := json.Marshal(map[string]any{"id": b.next, "method": "Runtime.evaluate", "params": map[string]any{"expression": "String(" + script + ")", "returnByValue": true}})
	if err != nil {
		b.t.Fatal(err)
	}
	if err := b.conn.Write(ctx, websocket.MessageText, ask); err != nil {
		b.t.Fatal(err)
	}
	for {
		_, data, err := b.conn.Read(ctx)
		if err != nil {
			b.t.Fatal(err)
		}
		var answer struct {
			ID     int
			Result struct {
				Result           struct{ Value string }
				ExceptionDetails json.RawMessage
			}
		}
		if err := json.Unmarshal(data, &answer); err != nil {
			b.t.Fatal(err)
		}
		if answer.ID == b.next {
			if len(answer.Result.ExceptionDetails) > 0 {
				b.t.Fatalf("%s: %s", script, answer.Result.ExceptionDetails)
			}
			return answer.Result.Result.Value
		}
	}
}

// text is what the page shows in an element.
func (b *browser) text(id string) string {
	b.t.Helper()
	return strings.TrimSpace(b.eval(`(document.getElementById("` + id + `")?.textContent ?? "")`)) // it may not be loaded yet
}

// number is the number there; -1 while there is none.
func (b *browser) number(id string) float64 {
	b.t.Helper()
	n, err := strconv.ParseFloat(b.text(id), 64)
	if err != nil {
		return -1
	}
	return n
}

// A person opens the page and clicks: the Actor moves, from node to node and back, under 40 requests a second, and the page's
// one connection stays. Nothing is lost, doubled or failed, and each move's gap is shown.
func TestDemoInBrowser(t *testing.T) {
	p, url := startWebDemo(t)
	b := openBrowser(t, url)
	settled := func(what string, cond func() bool) {
		t.Helper()
		fabrictest.Eventually(t, soon, what, cond)
	}
	settled("the page has replies", func() bool { return b.number("replied") >= 20 })
	if owner, gen := b.text("owner"), b.number("owner-generation"); owner != "n1" || gen != 1 {
		t.Errorf("it begins at %s, owner generation %v", owner, gen)
	}
	session, generation := b.text("session"), b.text("generation")

	for i, to := range []string{"n2", "n3", "n1"} {
		b.eval(`document.getElementById("next").click()`)
		settled("the page shows the move to "+to, func() bool { return b.text("owner") == to && b.number("moves") == float64(i+1) })
		if gap := b.number("gap"); gap <= 0 || gap > float64(soon.Milliseconds()) {
			t.Errorf("the gap of the move to %s is %v ms", to, gap)
		}
		replied := b.number("replied")
		settled("it replies there", func() bool { return b.number("replied") > replied+10 })
	}
	b.eval(`document.querySelectorAll("#nodes button")[2].click()`) // straight to n3
	settled("the page shows the move to n3", func() bool { return b.text("owner") == "n3" })
	b.eval(`document.getElementById("auto").click()`)
	settled("it moves by itself", func() bool { return b.number("moves") >= 7 })
	b.eval(`document.getElementById("auto").click()`)
	settled("what was sent is replied to", func() bool { return b.number("sent")-b.number("replied") <= 2 && b.number("load-replied") > 20 })

	for id, want := range map[string]string{"connections": "1", "session": session, "generation": generation, "failed": "0", "lost": "0", "doubled": "0",
		"load-failed": "0", "load-lost": "0", "load-doubled": "0", "error": ""} {
		if got := b.text(id); got != want {
			t.Errorf("%s is %q, want %q", id, got, want)
		}
	}
	// What the page shows at one moment fits together; the last move may still be under way.
	fits := b.eval(`(text => [Number(text("owner-generation")) >= Number(text("moves")),
		document.getElementById("move-list").childElementCount === Number(text("moves")),
		document.querySelector("#nodes .owner b").textContent === text("owner")])(id => document.getElementById(id).textContent.trim())`)
	if fits != "true,true,true" {
		t.Errorf("owner generation, list of moves and marked box fit: %s", fits)
	}
	if t.Failed() {
		t.Logf("the page's replies:\n%s", b.eval(`document.getElementById("replies").innerText`))
	}
	t.Logf("%s requests, %s moves, greatest gap %s ms", b.text("sent"), b.text("moves"), b.text("gap-max"))
	endWebDemo(t, p)
}
