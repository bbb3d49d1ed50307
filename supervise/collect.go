package supervise

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"natsfabric/internal/leash"
)

// Collector gets a worker's logs before it is restarted. Collect is called with a context that ends after
// Policy.CollectLimit and returns the end of the logs; what is above 8 KiB is cut at the front. Whether it works changes
// nothing about the restart.
type Collector interface {
	Collect(ctx context.Context, worker string) (string, error)
}

// CollectFunc is a function as a Collector.
type CollectFunc func(ctx context.Context, worker string) (string, error)

// Collect calls f.
func (f CollectFunc) Collect(ctx context.Context, worker string) (string, error) {
	return f(ctx, worker)
}

// CommandLogs collects what a program writes: docker logs, journalctl, ssh and the like. "{worker}" in an argument becomes
// the worker's ID; for one that begins with a hyphen nothing is run.
type CommandLogs struct {
	Args []string
	Env  []string
}

// Collect runs the program. What it wrote is returned beside the error when it failed.
func (c CommandLogs) Collect(ctx context.Context, worker string) (string, error) {
	out, _, err := runFor(ctx, worker, c.Args, append([]string{"FABRIC_WORKER=" + worker}, c.Env...))
	if err != nil && ctx.Err() != nil {
		err = ctx.Err()
	}
	return out, err
}

// FileTail collects the end of a file. "{worker}" in Path becomes the worker's ID, its path separators replaced.
type FileTail struct{ Path string }

// Collect reads the file.
func (f FileTail) Collect(_ context.Context, worker string) (string, error) {
	path := strings.ReplaceAll(f.Path, "{worker}", strings.NewReplacer("/", "_", `\`, "_", "..", "__").Replace(worker))
	info, err := os.Stat(path) // before it is opened: a pipe would wait for its writer
	switch {
	case err != nil:
		return "", err
	case !info.Mode().IsRegular():
		return "", fmt.Errorf("%s is no regular file", path)
	}
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer file.Close()
	b, err := io.ReadAll(io.NewSectionReader(file, max(0, info.Size()-maxOutput), maxOutput))
	return strings.ToValidUTF8(string(b), "?"), err
}

// Logs is what was collected last from a worker.
type Logs struct {
	V        int       `json:"v"`
	Worker   string    `json:"worker"`
	Incident string    `json:"incident"`
	Time     time.Time `json:"time"`
	By       string    `json:"by"`
	Text     string    `json:"text,omitempty"`
	Error    string    `json:"error,omitempty"`
}

// errNoCollector is what alerts say in place of logs.
var errNoCollector = errors.New("no log collector is configured for this worker")

// logsOf gets a worker's logs within the limit, whatever the collector does.
func (r *runner) logsOf(ctx context.Context, c Collector, worker string) (text string, err error) {
	if c == nil {
		return "", errNoCollector
	}
	ctx, cancel := context.WithTimeout(ctx, r.policy.CollectLimit)
	defer cancel()
	// What was read comes beside an error, too.
	text, err = leash.Call(ctx, &r.leash, "logs of "+worker, 0, func(ctx context.Context) (string, error) { return c.Collect(ctx, worker) })
	if err != nil {
		err = fmt.Errorf("the collector: %w", err)
	}
	return strings.ToValidUTF8(text[max(0, len(text)-maxOutput):], "?"), err
}
