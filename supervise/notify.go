package supervise

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"
)

// Notifier takes alerts to people. Notify is called with a context that ends after Policy.NotifyLimit, by any number of
// goroutines; what it returns decides only whether the alert is tried again, never what happens to a worker.
type Notifier interface {
	// Name tells the notifiers of a monitor apart: 1 to 64 bytes, stable, the same in all monitors.
	Name() string
	// Notify delivers the alert. An error means that it was not delivered.
	Notify(ctx context.Context, a Alert) error
}

// maxNotifiers bounds the notifiers of one monitor.
const maxNotifiers = 8

// Log writes alerts to a logger: pages as errors, warnings as warnings. It never fails.
type Log struct{ Logger *zap.Logger }

// Name is "log".
func (Log) Name() string { return "log" }

// Notify writes one entry.
func (l Log) Notify(_ context.Context, a Alert) error {
	level := map[Severity]func(string, ...zap.Field){Page: l.Logger.Error, Warning: l.Logger.Warn, Info: l.Logger.Info}[a.Severity]
	level(a.Text, zap.String("alert", a.Kind), zap.String("worker", a.Worker), zap.String("incident", a.Incident))
	return nil
}

// Subject publishes alerts as JSON on a NATS subject. It is delivered once the server has read it, whoever listens.
type Subject struct {
	Conn    *nats.Conn
	Subject string
}

// Name is "subject <subject>".
func (s Subject) Name() string { return clip("subject "+s.Subject, 64) }

// Notify publishes the alert and waits until the server has it.
func (s Subject) Notify(ctx context.Context, a Alert) error {
	if err := s.Conn.Publish(s.Subject, encode(a)); err != nil {
		return err
	}
	return s.Conn.FlushWithContext(ctx)
}

// Webhook posts alerts as JSON: the fields of Alert, and "content" with the text again, so that the chat tools that read
// "text" (Slack, Mattermost, Teams, Google Chat) and the one that reads "content" (Discord) can be pointed at directly.
type Webhook struct {
	URL string
	// Mention goes before the text of pages: "<!channel>", "@oncall".
	Mention string
	// Client defaults to http.DefaultClient. It follows redirects as that does.
	Client *http.Client
}

// Name is "webhook <host> <hash of the URL>": one host takes the hooks of several channels, and a URL may be a secret.
func (w Webhook) Name() string {
	host := ""
	if u, err := url.Parse(w.URL); err == nil {
		host = u.Host
	}
	h := fnv.New32a()
	h.Write([]byte(w.URL)) //nolint:errcheck // it never fails
	return fmt.Sprintf("%s %08x", clip("webhook "+host, 55), h.Sum32())
}

// Validate returns an error unless URL is an http or https one.
func (w Webhook) Validate() error {
	if u, err := url.Parse(w.URL); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return fmt.Errorf("webhook URL %.80q is not allowed: it must be http://... or https://...", w.URL)
	}
	return nil
}

// Notify posts the alert. Every answer but 2xx is an error.
func (w Webhook) Notify(ctx context.Context, a Alert) error {
	if a.Severity == Page && w.Mention != "" {
		a.Text = w.Mention + " " + a.Text
	}
	text := a.Text
	if a.Logs != "" {
		const tail = 1500 // chat tools take some 2,000 to 4,000 characters
		text += "\n" + strings.ToValidUTF8(a.Logs[max(0, len(a.Logs)-tail):], "")
	}
	body, err := json.Marshal(struct {
		Alert
		Content string `json:"content"`
	}{a, text})
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.URL, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	client := w.Client
	if client == nil {
		client = http.DefaultClient
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	said, _ := io.ReadAll(io.LimitReader(resp.Body, 512)) // a body that breaks off changes nothing about the status
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("%s answered %s: %s", w.Name(), resp.Status, strings.TrimSpace(string(said)))
	}
	return nil
}
