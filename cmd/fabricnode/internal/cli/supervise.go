package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nuid"
	"go.uber.org/zap"

	"natsfabric/internal/wire"
	"natsfabric/kvlocation"
	"natsfabric/supervise"
)

type superviseCmd struct {
	Run    superviseRunCmd    `cmd:"" help:"Watch the workers of a mesh, and restart those that hang. Any number of these may run beside each other."`
	Policy supervisePolicyCmd `cmd:"" help:"Print who acts on which verdict, and when; talks to nobody."`
	Pause  supervisePauseCmd  `cmd:"" help:"Restart nothing until resumed, or until the time is over."`
	Resume superviseResumeCmd `cmd:"" help:"End a pause or a maintenance."`
	Mark   superviseMarkCmd   `cmd:"" help:"Say that a worker will look broken for a while because it is meant to."`
	Unmark superviseUnmarkCmd `cmd:"" help:"Remove what mark said."`
	Child  superviseChildCmd  `cmd:"" help:"Run a worker as a child process, and take the monitors' orders to restart it (supervise run --restart-request)."`
	Beat   superviseBeatCmd   `cmd:"" help:"Report for a worker that can't use the library: one beat for each line STATE [JOB [PROGRESS]] of standard input, or the same as JSON."`
}

// supervised is the store of supervision, open for one command.
type supervised struct {
	nc    *nats.Conn
	store *kvlocation.Store
	keys  *kvlocation.Shared
}

// open opens the store of supervision. The name that it goes by there is a fresh one.
func (f *meshFlags) open(ctx context.Context, log *zap.Logger) (*supervised, error) {
	nc, err := f.dial(ctx, log)
	if err != nil {
		return nil, err
	}
	store, err := kvlocation.Open(ctx, nc, kvlocation.Config{Mesh: f.Mesh, Domain: f.Domain, RID: "sv-" + nuid.Next(), Logger: log})
	if err != nil {
		nc.Close()
		return nil, startError(err)
	}
	return &supervised{nc, store, store.Shared(kvlocation.BucketSupervise)}, nil
}

func (s *supervised) close() {
	s.store.Close()
	s.nc.Close()
}

// maxAction bounds --action.
const maxAction = 64

// checkWorker refuses what is no worker's ID, before anything is opened.
func checkWorker(worker string) error {
	const most = 200
	if token, err := wire.EscapeID(worker); err != nil || len(token) > most {
		return fmt.Errorf("worker %.80q is not allowed: it must be UTF-8 of 1 to %d bytes, of which all but letters, digits, _ and - count three", worker, most)
	}
	return nil
}

// ask opens the store for one question, bounded as a whole.
func (f *meshFlags) ask(a *app, question func(ctx context.Context, s *supervised) error) error {
	ctx, cancel := context.WithTimeout(a.sig.ctx, storeTimeout)
	defer cancel()
	s, err := f.open(ctx, a.log)
	if err != nil {
		return err
	}
	defer s.close()
	return question(ctx, s)
}

// policyFlags are the numbers and choices that decisions depend on.
type policyFlags struct {
	Responsible map[string]string `group:"Policy" mapsep:"," default:"hung=restart,error=restart,unreachable=person,stalled=person" placeholder:"VERDICT=WHO,..." help:"Who acts on each verdict: restart or person. All four must be named. Default ${default}."`

	CheckInterval    time.Duration `group:"Policy" default:"30s" help:"Time between two looks, and between the two sightings that confirm."`
	HungAfter        time.Duration `group:"Policy" default:"2m" help:"Age of a heartbeat at which a worker that processes is hung."`
	ErrorAfter       time.Duration `group:"Policy" default:"30m" help:"How long a worker may be in state error."`
	UnreachableAfter time.Duration `group:"Policy" default:"10m" help:"Age of a heartbeat at which a worker without work is unreachable."`
	StalledAfter     time.Duration `group:"Policy" default:"30m" help:"How long a progress marker may stand still."`
	Persistence      time.Duration `group:"Policy" default:"3m" help:"How long a confirmed verdict must last before a restart."`
	Cooldown         time.Duration `group:"Policy" default:"10m" help:"How long after a restart nothing is timed anew."`
	EscalateAfter    time.Duration `group:"Policy" default:"10m" help:"How long after a restart a worker that is still broken is paged about."`
	Breaker          int           `group:"Policy" default:"3" help:"Restarts of one worker within --breaker-window."`
	BreakerWindow    time.Duration `group:"Policy" default:"24h" help:"See --breaker."`
	CommandLimit     time.Duration `group:"Policy" default:"1m" help:"Bound of a restart command."`
	CollectLimit     time.Duration `group:"Policy" default:"30s" help:"Bound of a log collection."`
	FleetBudget      int           `group:"Policy" default:"10" help:"Restarts of all workers together within --fleet-window."`
	FleetWindow      time.Duration `group:"Policy" default:"1h" help:"See --fleet-budget."`
	FleetShare       float64       `group:"Policy" default:"0.3" help:"Share of the workers that may look broken; with more, nothing is restarted."`
	FleetFloor       int           `group:"Policy" default:"2" help:"Workers that may look broken whatever the share."`
	Remind           time.Duration `group:"Policy" default:"1h" help:"How often an alert about something that lasts is repeated."`
	Retention        time.Duration `group:"Policy" default:"720h" help:"How long the audit is kept."`
	Scale            float64       `group:"Policy" default:"1" help:"Multiplies every time above, for trials."`
}

func (f *policyFlags) policy() (supervise.Policy, error) {
	p := supervise.DefaultPolicy()
	p.Responsible = map[supervise.Verdict]supervise.Responder{}
	for v, who := range f.Responsible {
		p.Responsible[supervise.Verdict(v)] = supervise.Responder(who)
	}
	p.CheckInterval, p.HungAfter, p.ErrorAfter, p.UnreachableAfter, p.StalledAfter = f.CheckInterval, f.HungAfter, f.ErrorAfter, f.UnreachableAfter, f.StalledAfter
	p.Persistence, p.Cooldown, p.EscalateAfter, p.Breaker, p.BreakerWindow = f.Persistence, f.Cooldown, f.EscalateAfter, f.Breaker, f.BreakerWindow
	p.CommandLimit, p.CollectLimit, p.LockTTL = f.CommandLimit, f.CollectLimit, max(p.LockTTL, f.CollectLimit+2*p.LaunchWindow+f.CommandLimit)
	p.FleetBudget, p.FleetWindow, p.FleetShare, p.FleetFloor = f.FleetBudget, f.FleetWindow, f.FleetShare, f.FleetFloor
	p.Remind, p.Retention = f.Remind, f.Retention
	if !(f.Scale > 0 && f.Scale <= 10) {
		return p, withCode(ExitUsage, fmt.Errorf("--scale %v is not allowed: it must be above 0, and at most 10", f.Scale))
	}
	if f.Scale != 1 {
		p = p.Scale(f.Scale)
	}
	return p, inPolicyFlags(p.Validate())
}

// policyNames are the flags behind the policy's fields.
var policyNames = strings.NewReplacer(
	"Responsible ", "--responsible ", "CheckInterval ", "--check-interval ", "HungAfter ", "--hung-after ", "HungAfter:", "--hung-after:", "ErrorAfter ", "--error-after ",
	"UnreachableAfter ", "--unreachable-after ", "StalledAfter ", "--stalled-after ", "Persistence ", "--persistence ", "Cooldown ", "--cooldown ",
	"Cooldown:", "--cooldown:", "EscalateAfter ", "--escalate-after ", "BreakerWindow ", "--breaker-window ", "BreakerWindow:", "--breaker-window:",
	"Breaker ", "--breaker ", "CommandLimit ", "--command-limit ", "CollectLimit ", "--collect-limit ", "FleetBudget ", "--fleet-budget ",
	"FleetWindow ", "--fleet-window ", "FleetShare ", "--fleet-share ", "FleetFloor ", "--fleet-floor ", "Remind ", "--remind ",
	"Retention ", "--retention ", "Expected ", "--expect ", "Expected:", "--expect:", "Notifiers ", "--webhook and --alert-subject ",
)

// inPolicyFlags is inFlags for what supervise refuses.
func inPolicyFlags(err error) error {
	if err == nil {
		return nil
	}
	return withCode(ExitUsage, errors.New(policyNames.Replace(err.Error())))
}

type supervisePolicyCmd struct {
	policyFlags
}

// policyReply is what policy answers with --json: the policy by the names of its flags, times in milliseconds.
type policyReply struct {
	OK     bool           `json:"ok"`
	Policy map[string]any `json:"policy"`
}

// policyJSON gives the policy's fields the names of the flags that set them.
func policyJSON(p supervise.Policy) map[string]any {
	return map[string]any{
		"responsible": p.Responsible, "check_interval_ms": p.CheckInterval.Milliseconds(), "hung_after_ms": p.HungAfter.Milliseconds(),
		"error_after_ms": p.ErrorAfter.Milliseconds(), "unreachable_after_ms": p.UnreachableAfter.Milliseconds(), "stalled_after_ms": p.StalledAfter.Milliseconds(),
		"persistence_ms": p.Persistence.Milliseconds(), "cooldown_ms": p.Cooldown.Milliseconds(), "escalate_after_ms": p.EscalateAfter.Milliseconds(),
		"breaker": p.Breaker, "breaker_window_ms": p.BreakerWindow.Milliseconds(), "command_limit_ms": p.CommandLimit.Milliseconds(),
		"collect_limit_ms": p.CollectLimit.Milliseconds(), "fleet_budget": p.FleetBudget, "fleet_window_ms": p.FleetWindow.Milliseconds(),
		"fleet_share": p.FleetShare, "fleet_floor": p.FleetFloor, "remind_ms": p.Remind.Milliseconds(), "retention_ms": p.Retention.Milliseconds(),
	}
}

func (c *supervisePolicyCmd) Run(a *app) error {
	p, err := c.policy()
	if err != nil {
		return err
	}
	return a.print(policyReply{true, policyJSON(p)}, func(w io.Writer) { err = p.WriteTable(w) })
}

type supervisePauseCmd struct {
	meshFlags
	Reason      string        `required:"" placeholder:"TEXT" help:"Why; everybody who looks sees it."`
	For         time.Duration `help:"Ends by itself after this time. Default for a pause: when it is resumed."`
	Maintenance bool          `help:"Send no alerts either. Needs --for."`
}

// controlReply is what pause and resume answer with --json.
type controlReply struct {
	OK  bool               `json:"ok"`
	Now *supervise.Control `json:"now,omitempty"`
	Was *supervise.Control `json:"was,omitempty"`
}

func (c *supervisePauseCmd) Run(a *app) error {
	if c.For != 0 {
		if err := checkDuration("--for", c.For, time.Second, supervise.MaxMaintenance); err != nil {
			return withCode(ExitUsage, err)
		}
	}
	if err := checkText("--reason", c.Reason, maxReason); err != nil {
		return withCode(ExitUsage, err)
	}
	ctl := supervise.Control{Mode: supervise.Paused, By: operator(), Reason: c.Reason}
	if c.Maintenance {
		if ctl.Mode = supervise.UnderMaintenance; c.For == 0 {
			return withCode(ExitUsage, errors.New("--maintenance needs --for: a maintenance ends by itself"))
		}
	}
	return c.ask(a, func(ctx context.Context, s *supervised) error {
		if c.For != 0 {
			now, _, err := s.keys.Now(ctx)
			if err != nil {
				return err
			}
			ctl.Until = now.Add(c.For).UTC().Truncate(time.Millisecond)
		}
		if err := supervise.SetControl(ctx, s.keys, ctl); err != nil {
			return err
		}
		now, err := supervise.GetControl(ctx, s.keys)
		if err != nil {
			return err
		}
		return a.print(controlReply{OK: true, Now: now}, func(w io.Writer) { fmt.Fprintln(w, controlText(now)) })
	})
}

// controlText says what is in force.
func controlText(c *supervise.Control) string {
	switch {
	case c == nil:
		return "supervision runs"
	case c.Until.IsZero():
		return fmt.Sprintf("%s by %s until resumed: %s", c.Mode, c.By, c.Reason)
	}
	return fmt.Sprintf("%s by %s until %s: %s", c.Mode, c.By, c.Until.UTC().Format(time.RFC3339), c.Reason)
}

type superviseResumeCmd struct {
	meshFlags
}

func (c *superviseResumeCmd) Run(a *app) error {
	return c.ask(a, func(ctx context.Context, s *supervised) error {
		was, err := supervise.ClearControl(ctx, s.keys)
		if err != nil {
			return err
		}
		return a.print(controlReply{OK: true, Was: was}, func(w io.Writer) {
			if was == nil {
				fmt.Fprintln(w, "nothing was paused")
				return
			}
			fmt.Fprintln(w, "resumed; it was "+controlText(was))
		})
	})
}

type superviseMarkCmd struct {
	meshFlags
	Worker string        `arg:"" help:"The worker."`
	Action string        `default:"maintenance" help:"What is done with it: drain, upgrade, shutdown, maintenance or another word. Default ${default}."`
	Reason string        `placeholder:"TEXT" help:"Why."`
	For    time.Duration `required:"" help:"How long; afterwards it counts as broken when it looks so."`
}

// markReply is what mark and unmark answer with --json.
type markReply struct {
	OK     bool              `json:"ok"`
	Marker *supervise.Marker `json:"marker,omitempty"`
}

func (c *superviseMarkCmd) Run(a *app) error {
	if err := errors.Join(checkWorker(c.Worker), checkText("--action", c.Action, maxAction), checkDuration("--for", c.For, time.Second, supervise.MaxMarker)); err != nil {
		return withCode(ExitUsage, err)
	}
	return c.ask(a, func(ctx context.Context, s *supervised) error {
		now, _, err := s.keys.Now(ctx)
		if err != nil {
			return err
		}
		m := supervise.Marker{
			Worker: c.Worker, Action: c.Action, By: operator(), Reason: c.Reason, Until: now.Add(c.For).UTC().Truncate(time.Millisecond),
		}
		if err := supervise.PutMarker(ctx, s.keys, m); err != nil {
			return err
		}
		return a.print(markReply{true, &m}, func(w io.Writer) {
			fmt.Fprintf(w, "%s: %s until %s\n", c.Worker, m.Action, m.Until.Format(time.RFC3339))
		})
	})
}

type superviseUnmarkCmd struct {
	meshFlags
	Worker string `arg:"" help:"The worker."`
}

func (c *superviseUnmarkCmd) Run(a *app) error {
	if err := checkWorker(c.Worker); err != nil {
		return withCode(ExitUsage, err)
	}
	return c.ask(a, func(ctx context.Context, s *supervised) error {
		if err := supervise.ClearMarker(ctx, s.keys, c.Worker); err != nil {
			return err
		}
		return a.print(markReply{OK: true}, func(w io.Writer) { fmt.Fprintf(w, "%s: nothing is planned\n", c.Worker) })
	})
}

type superviseBeatCmd struct {
	meshFlags
	Worker string        `arg:"" help:"The worker."`
	Every  time.Duration `default:"10s" help:"Least time between two writes while state and job stay the same."`
}

// beatLine is one line of JSON on beat's standard input.
type beatLine struct {
	State    supervise.State `json:"state"`
	Job      string          `json:"job"`
	Progress string          `json:"progress"`
}

// parseBeat reads "STATE [JOB [PROGRESS]]", or the same as JSON.
func parseBeat(line string) (b beatLine, err error) {
	if strings.HasPrefix(line, "{") {
		if err = json.Unmarshal([]byte(line), &b); err == nil && b.State == "" {
			err = errors.New("it has no state")
		}
		return b, err
	}
	words := strings.SplitN(line, " ", 3)
	words = append(words, "", "")
	return beatLine{supervise.State(words[0]), words[1], words[2]}, nil
}

// Run beats once for each line: the worker's own loop writes them, so that a loop that hangs is seen to hang. When the
// input ends without a line "stopped" the heartbeat just grows old, for then the worker did not stop in order.
func (c *superviseBeatCmd) Run(a *app) error {
	if err := errors.Join(checkWorker(c.Worker), checkDuration("--every", c.Every, 50*time.Millisecond, time.Hour)); err != nil {
		return withCode(ExitUsage, err)
	}
	ctx, cancel := context.WithTimeout(a.sig.ctx, storeTimeout)
	defer cancel()
	s, err := c.open(ctx, a.log)
	if err != nil {
		return err
	}
	defer s.close()
	agent, err := supervise.NewAgent(ctx, s.keys, supervise.AgentConfig{Worker: c.Worker, Every: c.Every, Logger: a.log})
	if err != nil {
		return inFlags(err)
	}
	end := func(how func(context.Context) error) error {
		final, done := context.WithTimeout(context.WithoutCancel(a.sig.ctx), storeTimeout)
		defer done()
		return how(final)
	}
	lines := make(chan string)
	go func() {
		defer close(lines)
		in := bufio.NewScanner(a.stdin)
		for in.Scan() {
			select {
			case lines <- in.Text():
			case <-a.sig.ctx.Done():
				return
			}
		}
	}()
	var last beatLine
	for {
		select {
		case <-a.sig.ctx.Done():
			return errors.Join(a.sig.ctx.Err(), end(agent.Leave))
		case line, more := <-lines:
			if line = strings.TrimSpace(line); line != "" {
				if last, err = parseBeat(line); err != nil {
					return withCode(ExitUsage, fmt.Errorf("line %.80q of standard input: %w", line, err))
				}
				agent.Loop().Tick(last.State, last.Job, last.Progress)
			}
			if errors.Is(agent.Err(), supervise.ErrSuperseded) {
				return withCode(ExitHeld, agent.Err())
			}
			if !more {
				if last.State == supervise.Stopped {
					return end(agent.Close)
				}
				a.screen.tell("the input has ended without a line \"stopped\": the heartbeat grows old from here")
				return end(agent.Leave)
			}
		}
	}
}
