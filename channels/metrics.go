package channels

import (
	"sync/atomic"
	"time"

	"natsfabric/outcome"
)

func busyDuration(ns int64) time.Duration { return time.Duration(ns) }

// Failures counts failed operations by what was said to the caller.
type Failures map[outcome.Kind]map[outcome.Acceptance]uint64

// CallSnapshot counts the operations that this process began on one channel.
//
// Invariant, once nothing is in flight: Started = Succeeded + the sum of Failed (I3).
type CallSnapshot struct {
	// Started counts the operations begun; Succeeded those that ended without an error: replied requests, accepted
	// sends, unconfirmed sends handed over.
	Started, Succeeded uint64
	// Failed counts the operations that ended with an error, by kind and acceptance.
	Failed Failures
	// Attempts counts the messages sent for them, Reselected those after an operation's first.
	Attempts, Reselected uint64
	// Refused counts the refusals that came back, NoResponders the attempts that nothing took (503).
	Refused, NoResponders uint64
}

// ServeSnapshot counts what one served channel was given.
//
// Invariant, once nothing is queued or running: Received = the sum of Refused + Expired + Lapsed + Ran (I3).
type ServeSnapshot struct {
	// Received counts the requests that arrived.
	Received uint64
	// RefusedFull and the rest count the refusals by reason: the queue was full; the request alone was too large for
	// it; the channel was draining; the node was not serving; its lease had lapsed; the request was past its deadline;
	// it had no deadline and the process had just been frozen; it named this node among its refusers.
	RefusedFull, RefusedTooLarge, RefusedDraining, RefusedNotServing, RefusedLease, RefusedPast, RefusedThawing, RefusedNamed uint64
	// Expired counts the accepted requests whose deadline passed before their turn, Lapsed those before whose turn
	// the node's lease ended; they did not run.
	Expired, Lapsed uint64
	// Ran counts the handler calls begun, Panics and HandlerErrors those that ended so (a panic counts in both).
	Ran, Panics, HandlerErrors uint64
	// Replied counts replies sent, ErrorReplies error replies sent, Oversized the replies that were too large and
	// became error replies, Lost the answers that could not be sent.
	Replied, ErrorReplies, Oversized, Lost uint64
	// Notices counts the acceptance notices.
	Notices uint64
	// Queued and QueuedBytes are what waits now, Running the handlers that run now.
	Queued, QueuedBytes, Running int
	// Busy is the time spent in handlers.
	Busy time.Duration
	// Weight is the present weight, Subscriptions the queue subscriptions that are open now.
	Weight, Subscriptions int
}

// ServiceSnapshot counts what one service was given.
//
// Invariant: Received = Refused... (all but RefusedByService) + what the service's Handle was called with.
type ServiceSnapshot struct {
	// Received counts the messages that arrived.
	Received uint64
	// RefusedMuted and the rest count the refusals by reason: the service was muted; the node was not serving; its
	// lease had lapsed; the message was past its deadline; it had no deadline and the process had just been frozen; the
	// service itself refused it.
	RefusedMuted, RefusedNotServing, RefusedLease, RefusedPast, RefusedThawing, RefusedByService uint64
	// Replied, ErrorReplies, Oversized, Lost and Notices are those of ServeSnapshot.
	Replied, ErrorReplies, Oversized, Lost, Notices uint64
}

// Snapshot holds a router's counters. They only grow, but for the gauges (which say "now").
type Snapshot struct {
	// Calls has an entry for each channel that was called, at most 1,024; the rest count in Other.
	Calls map[string]CallSnapshot
	Other CallSnapshot
	// Served has an entry for each channel that is served now.
	Served map[string]ServeSnapshot
	// Runs counts the operations at services of named process runs (CallRun).
	Runs CallSnapshot
	// Services has an entry for each service of this node.
	Services map[string]ServiceSnapshot
	// Answers counts the answers sent by Answer and AnswerError, AnswersLost those that could not be sent.
	Answers, AnswersLost uint64

	// Epoch is the connection epoch now; 0 while disconnected.
	Epoch uint64
	// Waiting is the number of attempts that wait for an answer now.
	Waiting int
	// EndedByDisconnect counts the attempts that a lost connection ended.
	EndedByDisconnect uint64
	// LateReplies and LateNotices count answers to operations that had ended; StaleReplies answers of an earlier
	// connection epoch; StrayAnswers messages on the reply subject that nobody here can have asked for.
	LateReplies, LateNotices, StaleReplies, StrayAnswers uint64
	// UnknownChannel counts direct requests for a channel that this node does not serve.
	UnknownChannel uint64
	// SlowConsumers counts the times a subscription began to drop messages in the client library, AsyncErrors the
	// other errors that the connection reported for a subscription.
	SlowConsumers, AsyncErrors uint64
	// FreezeGaps counts the freezes of this process, Replacements how often Config.ReplaceConnection was asked for another
	// connection.
	FreezeGaps, Replacements uint64
	// Hellos counts the handshakes and probes sent, Suspects and NotReady the peers that were found so, Detours the
	// times that a channel began to go around its queue group because a request had vanished in it.
	Hellos, Suspects, NotReady, Detours uint64
}

type failures [int(outcome.InternalFailure) + 1][outcome.Accepted + 1]atomic.Uint64

func (f *failures) count(k outcome.Kind, a outcome.Acceptance) {
	if !k.Valid() {
		k = outcome.InternalFailure
	}
	f[k][min(a, outcome.Accepted)].Add(1)
}

func (f *failures) snapshot() Failures {
	out := make(Failures)
	for k := range f {
		for a := range f[k] {
			if n := f[k][a].Load(); n > 0 {
				if out[outcome.Kind(k)] == nil {
					out[outcome.Kind(k)] = make(map[outcome.Acceptance]uint64)
				}
				out[outcome.Kind(k)][outcome.Acceptance(a)] = n
			}
		}
	}
	return out
}

// callStats counts one channel's operations.
type callStats struct {
	started, succeeded, attempts, reselected, refused, noResponders atomic.Uint64

	failed failures
}

func (s *callStats) snapshot() CallSnapshot {
	return CallSnapshot{
		Started: s.started.Load(), Succeeded: s.succeeded.Load(), Failed: s.failed.snapshot(),
		Attempts: s.attempts.Load(), Reselected: s.reselected.Load(), Refused: s.refused.Load(), NoResponders: s.noResponders.Load(),
	}
}

// serveStats counts one served channel's requests.
type serveStats struct {
	received, expired, lapsed, ran, panics, handlerErrors atomic.Uint64

	answerStats
	refused   [whyCount]atomic.Uint64
	busy      atomic.Int64
	lastError atomic.Pointer[error]
}

func (s *serveStats) took(d time.Duration) { s.busy.Add(int64(d)) }

// Stats returns the server's counters.
func (s *Server) Stats() ServeSnapshot {
	s.r.serveMu.Lock()
	weight, subs := s.weight, len(s.group.open)
	s.r.serveMu.Unlock()
	st := &s.stats
	out := ServeSnapshot{
		Received: st.received.Load(), Expired: st.expired.Load(), Lapsed: st.lapsed.Load(), Ran: st.ran.Load(), Panics: st.panics.Load(),
		HandlerErrors: st.handlerErrors.Load(), Replied: st.replied.Load(), ErrorReplies: st.errorReplies.Load(),
		Oversized: st.oversized.Load(), Lost: st.lost.Load(), Notices: st.notices.Load(),
		RefusedFull: st.refused[whyFull].Load(), RefusedTooLarge: st.refused[whyTooLarge].Load(), RefusedDraining: st.refused[whyDraining].Load(),
		RefusedNotServing: st.refused[whyNotServing].Load(), RefusedLease: st.refused[whyGate].Load(),
		RefusedPast: st.refused[whyPast].Load(), RefusedThawing: st.refused[whyThawing].Load(), RefusedNamed: st.refused[whyNamed].Load(),
		Busy: time.Duration(st.busy.Load()), Weight: weight, Subscriptions: subs,
	}
	out.Queued, out.QueuedBytes, out.Running = s.queue.depth()
	return out
}

// serviceStats counts one service's messages.
type serviceStats struct {
	received, refusedByService atomic.Uint64

	answerStats
	refused [whyCount]atomic.Uint64
}

func (s *serviceStats) snapshot() ServiceSnapshot {
	return ServiceSnapshot{
		Received: s.received.Load(), RefusedMuted: s.refused[whyDraining].Load(),
		RefusedNotServing: s.refused[whyNotServing].Load(), RefusedLease: s.refused[whyGate].Load(),
		RefusedPast: s.refused[whyPast].Load(), RefusedThawing: s.refused[whyThawing].Load(), RefusedByService: s.refusedByService.Load(),
		Replied: s.replied.Load(), ErrorReplies: s.errorReplies.Load(), Oversized: s.oversized.Load(), Lost: s.lost.Load(), Notices: s.notices.Load(),
	}
}

// counters are those of the whole router.
type counters struct {
	endedByDisconnect, lateReplies, lateNotices, staleReplies, strayAnswers atomic.Uint64
	unknownChannel, slowConsumers, asyncErrors, replacements                atomic.Uint64
	hellos, suspects, notReady, detours                                     atomic.Uint64

	other, runs callStats
	answers     answerStats
}

// Metrics returns the router's counters. It may be called at any time, also after Close.
func (r *Router) Metrics() Snapshot {
	c := &r.counters
	out := Snapshot{
		Calls: make(map[string]CallSnapshot), Served: make(map[string]ServeSnapshot), Other: c.other.snapshot(),
		Epoch: r.Epoch(), Waiting: r.waiters.inFlight(), EndedByDisconnect: c.endedByDisconnect.Load(),
		LateReplies: c.lateReplies.Load(), LateNotices: c.lateNotices.Load(), StaleReplies: c.staleReplies.Load(), StrayAnswers: c.strayAnswers.Load(),
		UnknownChannel: c.unknownChannel.Load(), SlowConsumers: c.slowConsumers.Load(), AsyncErrors: c.asyncErrors.Load(),
		Runs: c.runs.snapshot(), Services: make(map[string]ServiceSnapshot),
		Answers:     c.answers.replied.Load() + c.answers.errorReplies.Load() + c.answers.notices.Load(),
		AnswersLost: c.answers.lost.Load(),
		FreezeGaps:  r.pulse.gaps.Load(), Replacements: c.replacements.Load(),
		Hellos: c.hellos.Load(), Suspects: c.suspects.Load(), NotReady: c.notReady.Load(), Detours: c.detours.Load(),
	}
	r.channelMu.RLock()
	for name, ch := range r.channels {
		out.Calls[name] = ch.stats.snapshot()
	}
	r.channelMu.RUnlock()
	for name, s := range *r.servers.Load() {
		out.Served[name] = s.Stats()
	}
	for name, s := range *r.services.Load() {
		out.Services[name] = s.stats.snapshot()
	}
	return out
}
