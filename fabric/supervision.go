package fabric

import (
	"context"
	"strconv"
	"time"

	"go.uber.org/zap"

	"natsfabric/kvlocation"
	"natsfabric/supervise"
)

// DefaultMarkerTime is how long the marker of a planned action holds.
const DefaultMarkerTime = 10 * time.Minute

// Supervision says how monitors (package supervise) know the node.
type Supervision struct {
	// Worker is the ID under which monitors know this process. When it is given, planned actions (Relocate, Shutdown)
	// leave a marker under it, which monitors honour (SV-16). Empty means the RID if Report is set, else no worker.
	Worker string
	// Report lets the node write its own worker record. Its heartbeat comes from the goroutine on which the node's life
	// depends. Without it a sidecar may report under the same ID.
	Report bool
	// Every is the least time between two records that say the same. Default 10 s; 50 ms to 1 h.
	Every time.Duration
	// MarkerTime is how long the marker of a planned action holds, unless the node serves again before. Default 10 min;
	// 1 s to 7 days.
	MarkerTime time.Duration
}

// withDefaults returns s with every unset field filled in.
func (s Supervision) withDefaults(rid string) Supervision {
	if s.Worker == "" && s.Report {
		s.Worker = rid
	}
	if s.Every == 0 {
		s.Every = supervise.DefaultBeatEvery
	}
	if s.MarkerTime == 0 {
		s.MarkerTime = DefaultMarkerTime
	}
	return s
}

// worker is the node's part as a worker that monitors watch.
type worker struct {
	agent *supervise.Agent // nil when the node does not report
	last  uint64           // what was done at the last beat
	idle  uint64           // beats at which nothing was to be done
}

// shared returns the keys that monitors read.
func (n *Node) shared() *kvlocation.Shared { return n.store.Shared(kvlocation.BucketSupervise) }

// openWorker begins to report, if that is wanted.
func (n *Node) openWorker(ctx context.Context) (err error) {
	s := n.cfg.Supervision
	if s.Worker == "" {
		return nil
	}
	n.unmark(ctx)
	if !s.Report {
		return nil
	}
	n.worker.agent, err = supervise.NewAgent(ctx, n.shared(), supervise.AgentConfig{
		Worker: s.Worker, Every: s.Every, Node: n.cfg.RID, Lifecycle: n.lease.Lifecycle(), Logger: n.log,
	})
	return err
}

// beats returns the ticks at which the host goroutine beats: nil, for never, when the node does not report.
func (n *Node) beats() (ticks <-chan time.Time, stop func()) {
	if n.worker.agent == nil {
		return nil, func() {}
	}
	t := time.NewTicker(n.cfg.Supervision.Every / 2)
	return t.C, t.Stop
}

// beat reports what the node does. To serve is a node's work, so it is Processing for as long as it serves, and one that
// hangs is found although nobody asked it for anything. The progress is what has been done; while nothing is to be done,
// the beats take its place. Only the host goroutine calls it.
func (n *Node) beat() {
	if n.worker.agent == nil {
		return
	}
	state := supervise.State(n.State())
	switch s := n.State(); {
	case s.Serves():
		state = supervise.Processing
	case s == kvlocation.StatePreparing:
		state = supervise.Starting
	case s == kvlocation.StateError:
		state = supervise.Failed
	}
	done, open := n.done()
	if done == n.worker.last && open == 0 {
		n.worker.idle++
	}
	n.worker.last = done
	n.worker.agent.Loop().Tick(state, "", strconv.FormatUint(done+n.worker.idle, 10))
}

// done counts the requests and turns that have ended, and those that wait or run.
func (n *Node) done() (ended uint64, open int) {
	for _, s := range n.router.Metrics().Served {
		ended += s.Ran + s.Expired + s.Lapsed - uint64(s.Running)
		open += s.Queued + s.Running
	}
	for _, t := range n.objects.Metrics().Types {
		gone := t.Run + t.Expired + t.Dropped
		ended += gone + t.Timers - uint64(t.Running)
		open += t.Running + int(t.Accepted-gone)
	}
	return ended, open
}

// markTime bounds what a marker may hold up.
const markTime = 2 * time.Second

// mark leaves the marker of a planned action, unless somebody else's is there that holds for longer: an operator's maintenance
// does not end because the node was shut down in it. That it could not be left holds up nothing: it is logged.
func (n *Node) mark(ctx context.Context, action, reason string) {
	s := n.cfg.Supervision
	if s.Worker == "" || n.store == nil || n.lease == nil {
		return
	}
	ctx, cancel := boundedBy(ctx, markTime)
	defer cancel()
	now, _, err := n.shared().Now(ctx)
	until := now.Add(s.MarkerTime).UTC()
	var there supervise.Marker
	if err == nil {
		there, _, err = supervise.MarkerOf(ctx, n.shared(), s.Worker)
	}
	if err == nil && (there.By == n.markedBy() || !there.Until.After(until)) {
		err = supervise.PutMarker(ctx, n.shared(), supervise.Marker{
			Worker: s.Worker, Action: action, By: n.markedBy(), Reason: reason, Until: until,
		})
	}
	if err != nil {
		n.log.Warn("the marker of a planned action could not be left: monitors may take it for a failure", zap.String("action", action), zap.Error(err))
	}
}

// unmark removes a marker that this RID has left, and no other's.
func (n *Node) unmark(ctx context.Context) {
	s := n.cfg.Supervision
	if s.Worker == "" {
		return
	}
	ctx, cancel := boundedBy(ctx, markTime)
	defer cancel()
	m, ok, err := supervise.MarkerOf(ctx, n.shared(), s.Worker)
	if ok && m.By == n.markedBy() {
		err = supervise.ClearMarker(ctx, n.shared(), s.Worker)
	}
	if err != nil {
		n.log.Warn("the marker of a planned action stays until it expires", zap.Error(err))
	}
}

func (n *Node) markedBy() string { return "node " + n.cfg.RID }
