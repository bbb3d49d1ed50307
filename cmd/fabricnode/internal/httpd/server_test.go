package httpd

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The pages answer before there is a node: alive, not ready. What they say of a node is shown with a real one in
// cmd/fabricnode.
func TestBeforeTheNode(t *testing.T) {
	s, err := Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if !strings.HasPrefix(s.URL(), "http://127.0.0.1:") {
		t.Errorf("URL is %s", s.URL())
	}
	client := http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	for _, c := range []struct {
		path, contains string
		code           int
	}{
		{"/healthz", `{"ok":true,"state":"Preparing","reason":"starting"}`, 200},
		{"/readyz", `{"ok":false,"state":"Preparing","reason":"starting"}`, 503},
		{"/metrics", `fabric_host_state{state="Preparing"} 1`, 200},
		{"/", "/readyz", 200},
		{"/nothing", "", 404},
	} {
		resp, err := client.Get(s.URL() + c.path)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != c.code || !strings.Contains(string(body), c.contains) {
			t.Errorf("%s: %d %s %v", c.path, resp.StatusCode, body, err)
		}
	}
	s.Close() // any number of times
}

func TestListen(t *testing.T) {
	off, err := Listen(Off)
	if err != nil || off.URL() != "" {
		t.Errorf("off: %q, %v", off.URL(), err)
	}
	off.Close()
	first, err := Listen(":0")
	if err != nil || !strings.HasPrefix(first.URL(), "http://127.0.0.1:") {
		t.Fatalf("an empty host is not loopback: %v", err)
	}
	defer first.Close()
	for addr, says := range map[string]string{
		"8480": "must look like 127.0.0.1:8480",
		strings.TrimPrefix(first.URL(), "http://"): "in use by another program",
		"127.0.0.1:notaport":                       "cannot listen there",
	} {
		if _, err := Listen(addr); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("Listen(%q) = %v, want an error that says %q", addr, err, says)
		}
	}
}
