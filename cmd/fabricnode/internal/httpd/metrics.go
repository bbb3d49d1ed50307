package httpd

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"natsfabric/channels"
	"natsfabric/fabric"
	"natsfabric/kvlocation"
)

// collector turns the node's counters into Prometheus metrics each time that the page is asked for.
type collector struct{ s *Server }

// Describe sends nothing: which channels there are is known only at each collection.
func (c *collector) Describe(chan<- *prometheus.Desc) {}

// hostStates are the values of the label of fabric_host_state.
var hostStates = []kvlocation.NodeState{
	kvlocation.StatePreparing, kvlocation.StateServing, kvlocation.StateRelocating, kvlocation.StateRelocated,
	kvlocation.StateDraining, kvlocation.StateStopped, kvlocation.StateError,
}

// metric is one family of the page.
type metric struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
}

func counter(name, help string, labels ...string) metric {
	return metric{prometheus.NewDesc("fabric_"+name, help, labels, nil), prometheus.CounterValue}
}

func gauge(name, help string, labels ...string) metric {
	return metric{prometheus.NewDesc("fabric_"+name, help, labels, nil), prometheus.GaugeValue}
}

var (
	nodeInfo  = gauge("node_info", "Always 1; the labels name the node.", "mesh", "rid")
	lifecycle = gauge("node_lifecycle", "Number of this process run: a later run of the RID has a larger one; not a count.")
	hostState = gauge("host_state", "1 for the host state that the node is in.", "state")
	members   = gauge("members", "Nodes of the mesh that this node knows, by their host state.", "state")

	leaseHeld   = gauge("lease_held", "1 while this node holds its lease and may start something new.")
	listState   = gauge("member_list_state", "1 for how far the list of members can be trusted.", "state")
	listResyncs = counter("member_list_resyncs_total", "Full readings of the list of members.")
	listGaps    = counter("member_list_gaps_total", "Changes of the list that were found to be missed.")
	listRebuilt = counter("member_list_rebuilds_total", "Subscriptions to changes that were replaced because they were silent.")
	clockSkew   = gauge("store_clock_skew_seconds", "How far the store's clock is ahead of this machine's.")
	clockJumps  = counter("store_clock_jumps_total", "Readings of the store's clock that contradicted the ones before.")

	callsStarted    = counter("calls_started_total", "Operations begun by this process.", "channel")
	callsSucceeded  = counter("calls_succeeded_total", "Operations that ended without an error.", "channel")
	callsFailed     = counter("calls_failed_total", "Operations that ended with an error.", "channel", "kind", "acceptance")
	callsAttempts   = counter("calls_attempts_total", "Messages sent for operations.", "channel")
	callsReselected = counter("calls_reselected_total", "Attempts at a further member, before anybody had accepted.", "channel")
	callsRefused    = counter("calls_refused_total", "Refusals that came back.", "channel")
	callsNobody     = counter("calls_no_responders_total", "Attempts that nobody took.", "channel")

	served        = counter("requests_received_total", "Requests that arrived at this node.", "channel")
	servedRefused = counter("requests_refused_total", "Requests that this node refused.", "channel", "reason")
	servedExpired = counter("requests_expired_total", "Accepted requests whose deadline passed before their turn.", "channel")
	servedLapsed  = counter("requests_lapsed_total", "Accepted requests before whose turn the node's lease ended.", "channel")
	servedRan     = counter("requests_ran_total", "Handler calls begun.", "channel")
	servedPanics  = counter("requests_panics_total", "Handler calls that ended in a panic.", "channel")
	servedErrors  = counter("requests_handler_errors_total", "Handler calls that ended with an error.", "channel")
	servedReplies = counter("requests_replies_total", "Replies sent.", "channel", "result")
	servedNotices = counter("requests_notices_total", "Acceptance notices sent.", "channel")
	servedBusy    = counter("requests_busy_seconds_total", "Time spent in handlers.", "channel")
	servedQueued  = gauge("requests_queued", "Accepted requests that wait now.", "channel")
	servedBytes   = gauge("requests_queued_bytes", "Bytes of the requests that wait now.", "channel")
	servedRunning = gauge("requests_running", "Handlers that run now.", "channel")
	servedWeight  = gauge("channel_weight", "This node's weight in the channel.", "channel")

	epoch         = gauge("connection_epoch", "Connection epoch; 0 while disconnected.")
	waiting       = gauge("calls_waiting", "Attempts that wait for an answer now.")
	disconnected  = counter("calls_ended_by_disconnect_total", "Attempts that a lost connection ended.")
	late          = counter("answers_dropped_total", "Answers that came for nobody.", "why")
	strangers     = counter("requests_unknown_channel_total", "Direct requests for a channel that this node does not serve.")
	slow          = counter("slow_consumers_total", "Times that a subscription began to drop messages in this process.")
	asyncErrors   = counter("connection_errors_total", "Other errors that the connection reported.")
	freezes       = counter("process_freezes_total", "Freezes of this process that it noticed.")
	replacements  = counter("connection_replacements_total", "Connections given up after a freeze, or because a subscription was draining while one was replaced.")
	peerProbes    = counter("peer_hellos_total", "Handshakes and probes sent to peers.")
	peersSuspect  = counter("peer_suspicions_total", "Times that a peer became suspect.")
	detours       = counter("channel_detours_total", "Times that a channel began to go around its queue group, in which a request had vanished.")
	peersNotReady = counter("peer_not_ready_total", "Times that a peer became not ready.")
)

// page collects one answer.
type page chan<- prometheus.Metric

func (p page) put(m metric, v float64, labels ...string) {
	p <- prometheus.MustNewConstMetric(m.desc, m.kind, v, labels...)
}

// status puts how the node stands with the store.
func (p page) status(st fabric.Status) {
	is := func(b bool) float64 {
		if b {
			return 1
		}
		return 0
	}
	p.put(leaseHeld, is(st.LeaseHeld))
	for _, s := range []kvlocation.DirectoryState{kvlocation.DirectoryFresh, kvlocation.DirectoryStale, kvlocation.DirectoryExpired} {
		p.put(listState, is(st.Directory == s), s.String())
	}
	p.put(listResyncs, float64(st.DirectoryStats.Resyncs))
	p.put(listGaps, float64(st.DirectoryStats.Gaps))
	p.put(listRebuilt, float64(st.DirectoryStats.Rebuilds))
	p.put(clockSkew, st.Skew.Seconds())
	p.put(clockJumps, float64(st.ClockJumps))
}

// Collect reads the node's counters.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	p := page(out)
	state := c.s.state()
	for _, s := range hostStates {
		v := 0.0
		if s == state {
			v = 1
		}
		p.put(hostState, v, string(s))
	}
	n := c.s.node.Load()
	if n == nil {
		return
	}
	p.put(nodeInfo, 1, n.Mesh(), n.RID())
	p.put(lifecycle, float64(n.Lifecycle()))
	known := map[kvlocation.NodeState]int{}
	for _, m := range n.Members().All() {
		known[m.State]++
	}
	for s, count := range known {
		p.put(members, float64(count), string(s))
	}
	p.status(n.Status())
	p.router(n.Metrics())
	held := n.Objects().Metrics()
	p.objects(held)
	p.moves(n.Relocation().Progress(), held)
	if s := n.Sessions(); s != nil {
		p.sessions(s.Stats())
	}
}

func (p page) router(s channels.Snapshot) {
	for name, c := range s.Calls {
		p.calls(name, c)
	}
	// The channels beyond the first 1,024 share one entry, whose name is no channel's.
	p.calls("(other)", s.Other)
	for name, sv := range s.Served {
		p.served(name, sv)
	}
	p.put(epoch, float64(s.Epoch))
	p.put(waiting, float64(s.Waiting))
	p.put(disconnected, float64(s.EndedByDisconnect))
	p.put(late, float64(s.LateReplies), "late reply")
	p.put(late, float64(s.LateNotices), "late notice")
	p.put(late, float64(s.StaleReplies), "earlier connection")
	p.put(late, float64(s.StrayAnswers), "stray")
	p.put(strangers, float64(s.UnknownChannel))
	p.put(slow, float64(s.SlowConsumers))
	p.put(asyncErrors, float64(s.AsyncErrors))
	p.put(freezes, float64(s.FreezeGaps))
	p.put(replacements, float64(s.Replacements))
	p.put(peerProbes, float64(s.Hellos))
	p.put(peersSuspect, float64(s.Suspects))
	p.put(peersNotReady, float64(s.NotReady))
	p.put(detours, float64(s.Detours))
}

func (p page) calls(name string, c channels.CallSnapshot) {
	p.put(callsStarted, float64(c.Started), name)
	p.put(callsSucceeded, float64(c.Succeeded), name)
	p.put(callsAttempts, float64(c.Attempts), name)
	p.put(callsReselected, float64(c.Reselected), name)
	p.put(callsRefused, float64(c.Refused), name)
	p.put(callsNobody, float64(c.NoResponders), name)
	for kind, by := range c.Failed {
		for acceptance, n := range by {
			p.put(callsFailed, float64(n), name, kind.String(), acceptance.String())
		}
	}
}

func (p page) served(name string, s channels.ServeSnapshot) {
	p.put(served, float64(s.Received), name)
	for reason, n := range map[string]uint64{
		"full": s.RefusedFull, "too large": s.RefusedTooLarge, "draining": s.RefusedDraining, "not serving": s.RefusedNotServing, "lease": s.RefusedLease,
		"past deadline": s.RefusedPast, "thawing": s.RefusedThawing, "refused before": s.RefusedNamed,
	} {
		p.put(servedRefused, float64(n), name, reason)
	}
	p.put(servedExpired, float64(s.Expired), name)
	p.put(servedLapsed, float64(s.Lapsed), name)
	p.put(servedRan, float64(s.Ran), name)
	p.put(servedPanics, float64(s.Panics), name)
	p.put(servedErrors, float64(s.HandlerErrors), name)
	p.put(servedReplies, float64(s.Replied), name, "reply")
	p.put(servedReplies, float64(s.ErrorReplies), name, "error")
	p.put(servedReplies, float64(s.Oversized), name, "oversized")
	p.put(servedReplies, float64(s.Lost), name, "lost")
	p.put(servedNotices, float64(s.Notices), name)
	p.put(servedBusy, float64(s.Busy)/float64(time.Second), name)
	p.put(servedQueued, float64(s.Queued), name)
	p.put(servedBytes, float64(s.QueuedBytes), name)
	p.put(servedRunning, float64(s.Running), name)
	p.put(servedWeight, float64(s.Weight), name)
}
