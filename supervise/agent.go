package supervise

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nuid"
	"go.uber.org/zap"

	"natsfabric/internal/monotime"
	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// Defaults of AgentConfig.
const (
	DefaultBeatEvery = 10 * time.Second
	DefaultRecordTTL = 24 * time.Hour
)

// clockRefresh is how often an agent reads the store's clock anew. Only the texts for people depend on it.
const clockRefresh = 10 * time.Minute

// ErrSuperseded says that another process run reports under the same worker's ID: this one has stopped reporting.
var ErrSuperseded = errors.New("another process run reports as this worker")

// AgentConfig says who reports, and how often. Worker is required.
type AgentConfig struct {
	// Worker is the worker's ID: UTF-8, at most 200 bytes where A-Z, a-z, 0-9, _ and - count one and all others three.
	Worker string
	// Every is the least time between two writes of a record whose State and Job stay the same. Default 10 s, 50 ms
	// to 1 h. It must be well below the time after which a heartbeat counts as old (Policy.HungAfter), half of it at most.
	Every time.Duration
	// TTL is how long the record stays when nobody writes it; then the worker is unreachable. Default 24 h, whole
	// seconds, at least 10 times Every.
	TTL time.Duration
	// Node and Lifecycle are set when the worker is a node of the mesh.
	Node      string
	Lifecycle uint64
	// Logger gets a warning when beats can't be written. nil means silence.
	Logger *zap.Logger
}

func (c AgentConfig) withDefaults() AgentConfig {
	if c.Every == 0 {
		c.Every = DefaultBeatEvery
	}
	if c.TTL == 0 {
		c.TTL = DefaultRecordTTL
	}
	if c.Logger == nil {
		c.Logger = zap.NewNop()
	}
	return c
}

func (c AgentConfig) validate() error {
	var errs []error
	if _, err := escape(c.Worker); err != nil {
		errs = append(errs, err)
	}
	if c.Every < 50*time.Millisecond || c.Every > time.Hour {
		errs = append(errs, fmt.Errorf("Every %v is not allowed: it must be 50ms to 1h", c.Every))
	}
	if c.TTL < 10*c.Every || c.TTL < time.Second || c.TTL > kvlocation.MaxSharedTTL || c.TTL%time.Second != 0 {
		errs = append(errs, fmt.Errorf("TTL %v is not allowed: it must be whole seconds, at least 10 times Every (%v), at most %v", c.TTL, c.Every, kvlocation.MaxSharedTTL))
	}
	return errors.Join(errs...)
}

// Agent writes the record of one worker. It writes nothing by itself: each record is the consequence of a tick of the
// worker's loop, so that a loop that hangs stops the heartbeat, whatever other goroutines of the process still do.
//
// Concurrency: every method may be called from any goroutine.
type Agent struct {
	cfg   AgentConfig
	key   string
	keys  keys
	clock clock
	loop  Loop

	wake chan struct{} // holds one element while there is a tick to look at
	stop context.CancelFunc
	done chan struct{}

	// Of the writing goroutine alone.
	rec     Record
	at      kvlocation.SharedEntry
	written monotime.Time

	mu    sync.Mutex
	err   error // guarded by mu; ErrSuperseded, or why the last write failed
	ended bool  // guarded by mu
}

// NewAgent makes the agent of a worker and takes over its record from an earlier process run. Nothing is written before
// the first tick. ctx bounds the call alone. sh is store.Shared(kvlocation.BucketSupervise) of a node's store, or of one
// that was opened with an RID.
//
// Errors are *outcome.Error: InvalidOperation for a configuration that is not allowed or a store without an RID,
// Unavailable when the store does not answer.
func NewAgent(ctx context.Context, sh *kvlocation.Shared, cfg AgentConfig) (*Agent, error) {
	return newAgent(ctx, sh, cfg)
}

func newAgent(ctx context.Context, k keys, cfg AgentConfig) (*Agent, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, outcome.Wrap("report as worker", outcome.InvalidOperation, outcome.NotAccepted, fmt.Sprintf("worker %.80q", cfg.Worker), "", err)
	}
	token, _ := escape(cfg.Worker)
	a := &Agent{cfg: cfg, key: workerPrefix + token, keys: k, wake: make(chan struct{}, 1), done: make(chan struct{})}
	a.loop.agent = a
	var err error
	if a.clock, err = readClock(ctx, k, monotime.Now); err != nil {
		return nil, err
	}
	if a.at, err = k.Confirm(ctx, a.key); err != nil && !errors.Is(err, outcome.NotFound) {
		return nil, err
	}
	a.rec = Record{V: schemaVersion, Worker: cfg.Worker, Booted: a.now(), Instance: nuid.Next(), Node: cfg.Node, Lifecycle: cfg.Lifecycle}
	run, stop := context.WithCancel(context.Background())
	a.stop = stop
	go a.write(run)
	return a, nil
}

// Loop returns the worker's loop. There is one per agent, because a worker has one: give it to the code that does the
// work, and to nothing else.
func (a *Agent) Loop() *Loop { return &a.loop }

// Err returns why the last record could not be written, ErrSuperseded for ever once another process run reports as the
// same worker, and nil when all is well.
func (a *Agent) Err() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.err
}

// Close writes that the worker has stopped in order, unless the loop's last tick said that it failed or another process
// run has taken over, and ends the agent. It may be called any number of times; later calls wait and return nil. ctx
// bounds the write.
func (a *Agent) Close(ctx context.Context) error {
	return a.end(ctx, func(last tick) tick {
		if last.state != "" && last.state != Failed {
			last = tick{state: Stopped}
		}
		return last
	})
}

// Leave ends the agent like Close, but for what it writes: the last tick, if that is not written yet. From there the
// heartbeat grows old. It is for a sidecar whose worker went away without a word.
func (a *Agent) Leave(ctx context.Context) error {
	return a.end(ctx, func(last tick) tick { return last })
}

// end ends the agent; say makes its last record of the loop's last tick.
func (a *Agent) end(ctx context.Context, say func(last tick) tick) error {
	a.mu.Lock()
	first := !a.ended
	a.ended = true
	a.mu.Unlock()
	if !first {
		<-a.done
		return nil
	}
	a.stop()
	<-a.done
	last := a.loop.last()
	t := say(last)
	if t.state == "" || t == last && t.at <= a.written || errors.Is(a.Err(), ErrSuperseded) {
		return nil
	}
	err := a.beat(ctx, t)
	if errors.Is(err, errNotYet) { // the write that the end has cut off was made
		err = a.beat(ctx, t)
	}
	return err
}

func (a *Agent) now() time.Time {
	now, _ := a.clock.at()
	return now.UTC().Truncate(time.Millisecond)
}

// write writes a record when there is a tick worth one.
func (a *Agent) write(ctx context.Context) {
	defer close(a.done)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.wake:
		case <-timer.C:
		}
		t := a.loop.last()
		wait := a.due(t)
		if wait == 0 {
			bound, cancel := context.WithTimeout(ctx, max(a.cfg.Every, time.Second))
			err := a.beat(bound, t)
			cancel()
			if errors.Is(err, ErrSuperseded) {
				return
			}
			if err != nil {
				wait = max(a.cfg.Every/4, 10*time.Millisecond) // the tick may be young enough for another try
			}
		}
		if wait > 0 {
			timer.Reset(wait)
		}
	}
}

// due returns how long to wait before t is worth a write: 0 now, below 0 never, for a later tick will come.
//
// A tick that is older than the interval is never written: the write's time would claim a heartbeat that the loop did not
// have. A loop that is alive ticks again.
func (a *Agent) due(t tick) time.Duration {
	changed := t.state != a.rec.State || clip(t.job, MaxJob) != a.rec.Job || a.rec.Beats == 0
	switch passed := monotime.Since(a.written); {
	case t.state == "" || t.at <= a.written:
		return -1
	case monotime.Since(t.at) > max(a.cfg.Every, time.Second):
		return -1
	case changed || passed >= a.cfg.Every:
		return 0
	default:
		return a.cfg.Every - passed
	}
}

// beat writes the record that t leads to.
func (a *Agent) beat(ctx context.Context, t tick) error {
	if monotime.Since(a.clock.read) > clockRefresh {
		if c, err := readClock(ctx, a.keys, monotime.Now); err == nil {
			a.clock = c
		}
	}
	next := a.rec
	next.Heartbeat = a.now()
	next.Beats++
	if next.State != t.state || next.Beats == 1 {
		next.State, next.StateSince = t.state, next.Heartbeat
		next.ProgressAt = next.Heartbeat
	}
	next.Job = clip(t.job, MaxJob)
	if progress := clip(t.progress, MaxProgress); progress != next.Progress {
		next.Progress, next.ProgressAt = progress, next.Heartbeat
	}
	sent := monotime.Now()
	at, err := a.keys.Update(ctx, a.at, encode(next), a.cfg.TTL)
	switch {
	case err == nil:
		a.at, a.rec, a.written = at, next, sent
	case errors.Is(err, kvlocation.ErrConflict):
		err = a.lost(at)
	default:
		// Written or not is told by the next look at the key.
		if at, readErr := a.keys.Confirm(ctx, a.key); readErr == nil || errors.Is(readErr, outcome.NotFound) {
			if lost := a.lost(at); errors.Is(lost, ErrSuperseded) {
				err = lost
			}
		}
	}
	if err == nil || !errors.Is(ctx.Err(), context.Canceled) { // its own end is no failure: the last word is written after it
		a.report(err)
	}
	return err
}

// lost looks at what is there in place of what this agent wrote last. A record of another process run that began later
// ends this one's reports; all else (the record was removed, expired, or is the agent's own after a lost answer) is
// written over at the next beat.
func (a *Agent) lost(at kvlocation.SharedEntry) error {
	if there := factOf[Record](at); there != nil && there.value.Instance != a.rec.Instance && at.Revision > a.at.Revision && a.rec.Beats > 0 {
		return fmt.Errorf("worker %q: %w (instance %s, booted %v)", a.cfg.Worker, ErrSuperseded, there.value.Instance, there.value.Booted)
	}
	a.at = at
	return errNotYet
}

var errNotYet = errors.New("the record has changed meanwhile; the next beat is written over it")

func (a *Agent) report(err error) {
	a.mu.Lock()
	before := a.err
	a.err = err
	a.mu.Unlock()
	if err != nil && before == nil && !errors.Is(err, errNotYet) {
		a.cfg.Logger.Warn("worker record not written", zap.String("worker", a.cfg.Worker), zap.Error(err))
	}
}
