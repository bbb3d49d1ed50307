package main_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"natsfabric/fabrictest"
)

// startWebDemo starts `fabricnode demo --web` and returns the address of its page.
func startWebDemo(t *testing.T) (*fabrictest.Process, string) {
	t.Helper()
	p := fabrictest.StartProcess(t, command(program(t), "demo", "--web", "--json"))
	var page struct{ URL string }
	if line := p.WaitOutput(t, `"event":"page"`); json.Unmarshal([]byte(line), &page) != nil || page.URL == "" {
		t.Fatalf("it says %s", line)
	}
	return p, page.URL
}

// endWebDemo interrupts the demo, and checks how its own client fared.
func endWebDemo(t *testing.T, p *fabrictest.Process) {
	t.Helper()
	p.Signal(t, os.Interrupt)
	if code := p.Wait(t).ExitCode(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	var res struct {
		OK   bool
		Load struct{ Sent, Replied, Lost, Doubled, Accepted, Unknown uint64 }
	}
	line := p.WaitOutput(t, `"load":`)
	if err := json.Unmarshal([]byte(line), &res); err != nil || !res.OK || res.Load.Replied == 0 || res.Load.Replied != res.Load.Sent || res.Load.Lost+res.Load.Doubled > 0 {
		t.Errorf("the demo's client: %s (%v)", line, err)
	}
	noTrace(t, demoDir(t, p.Output()), true)
}

// What the page of the web demo does, done by a Go client: the Actor goes around the nodes, the session stays, and nothing is
// lost or doubled. scripts/e2e-web does it with a browser.
func TestDemoWeb(t *testing.T) {
	t.Parallel()
	p, url := startWebDemo(t)
	for file, says := range map[string]string{"": "An Actor that moves", "demo.js": "import { connect }", "demo.css": "#nodes", "natsfabric.js": "export function connect", "status": `"n3"`} {
		if code, body := get(t, url+file); code != 200 || !strings.Contains(body, says) {
			t.Errorf("%s: %d %.80s", file, code, body)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	cl, err := dial(ctx, strings.Replace(strings.TrimSuffix(url, "demo/"), "http", "ws", 1)+"session", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	b, err := cl.Bind(ctx, "actor/counter-1")
	if err != nil {
		t.Fatal(err)
	}
	post := func(path, origin string) int {
		t.Helper()
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if origin != "" {
			req.Header.Set("Origin", origin)
		}
		resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	number := uint64(0)
	for i, to := range []string{"n2", "n3", "n1"} {
		if code := post("move/"+to, ""); code != 200 {
			t.Fatalf("the move to %s: %d", to, code)
		}
		for range 5 {
			number++
			var got struct {
				Ran, Late       uint64
				Node            string
				OwnerGeneration int `json:"owner_generation"`
			}
			reply, err := b.Request(ctx, fmt.Appendf(nil, `{"sender":"test","number":%d}`, number))
			if err != nil || json.Unmarshal(reply, &got) != nil || got.Ran != number || got.Late != 0 || got.Node != to || got.OwnerGeneration != i+2 {
				t.Fatalf("request %d at %s: %s, %v", number, to, reply, err)
			}
		}
	}
	if _, session, ok := cl.Session(); !ok || session != 1 {
		t.Errorf("the session is number %d, want the first one", session)
	}
	if code := post("move/n2", "http://elsewhere.example"); code != 403 {
		t.Errorf("a page of another site moves the Actor: %d", code)
	}
	if code := post("move/n9", ""); code != 409 {
		t.Errorf("a move to nowhere: %d", code)
	}
	cl.Close()
	fabrictest.Eventually(t, 30*time.Second, "the demo's own client has had an answer", func() bool {
		resp, err := http.Get(url + "status")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		var st struct{ Load struct{ Replied uint64 } }
		return json.NewDecoder(resp.Body).Decode(&st) == nil && st.Load.Replied > 0
	})
	endWebDemo(t, p)
}
