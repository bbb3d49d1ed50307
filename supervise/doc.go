// Package supervise restarts workers that hang, without restart storms, and never ends in silence.
//
// # Overview
//
// A worker is any process with a work loop, a node of the mesh for instance. Its [Agent] keeps a [Record] in the mesh's
// bucket SUPERVISE: state, job, progress marker; the store's time stamp of the record is the heartbeat. A [Monitor] looks at
// all records at every check interval and comes to a [Verdict] for each. The [Policy] says who acts on each verdict: for
// hung and erroneous workers the restarter of their [Target], for unreachable and stalled ones a person.
//
// Any number of monitors may run. What they share is a few keys for each worker that is not well (listed in keys.go), as
// JSON that the nats CLI shows; Policy.next decides from these keys and the store's time alone what is done next, and
// Policy.due which alerts should have gone out. On the way to a restart, each line a step of its own:
//
//	sighted        the verdict was seen once                              created if absent
//	confirmed      seen again, a check interval later: the incident opens; alert
//	armed          it has to last                                         created if absent
//	refused        circuit breaker, fleet guard or fleet budget; page
//	locked         one monitor acts                                       created if absent
//	collected      logs, or why there are none
//	looked at      the record, markers, a pause: no older than now; well again = cleaned up
//	intended       one write: the breaker has counted, the cooldown has begun
//	looked at      again; well again = cancelled, and counts for nothing
//	run            the command
//	done, failed or unknown; page for the last two. Then the cooldown: nothing is timed in it, and nothing that was timed
//	before its end counts after it.
//	recovered      a fresh heartbeat ends the incident; without one, a page after Policy.EscalateAfter
//
// # Guarantees
//
//   - A verdict follows from the record and the store's clock (SV-1). No wall clock of a monitor or worker is asked.
//   - No worker is restarted within the cooldown of a restart, more often than the breaker allows, or when what it is
//     restarted for no longer held a second before, a fresh heartbeat of one that hung above all (SV-15): whatever
//     monitors die or freeze at whatever step, whatever answers of the store are lost, late or from a replica that is
//     behind. An attempt whose outcome is not known counts as a restart and pages.
//   - What began to last goes on lasting when its monitor ends, and a slower monitor does not begin it anew (SV-5).
//   - An incident that is open is alerted about, again after [Policy.Remind], until it ends; each outcome of an attempt is
//     told; a restart that did not recover the worker is paged about once (SV-11).
//   - Log collection and notifiers are bounded; that they fail, hang or panic changes nothing about a restart.
//   - A marker, a pause or a maintenance that was acknowledged is honoured by every command that is decided on after it (SV-16).
//   - While the store does not answer nothing is decided.
//   - Everything is bounded: workers at a time, notifiers, tries, events that wait, every key by a TTL.
//
// # Non-guarantees
//
//   - Between the last look and the effect of a command there is a gap: a second at most by the monitor's own clock, and for
//     a [Command] or [Child] of the monitor's own as long as it is frozen exactly between its check and the command. [Child]
//     and [ServeOrders] refuse an order once they have seen a newer one, and [InTime] one that comes when its time is over.
//   - A [Command] that outlives the monitor that began it, or is not held to its limit by one that is frozen, may restart the
//     worker when the attempt counts as unknown already.
//   - An alert may come twice when a monitor dies, or loses the store, between sending it and writing that down.
//   - The servers' clocks must agree: ages shift by as much as they differ when the stream's leader changes.
//   - Audit events are written beside the decisions; a monitor that is killed may take the last ones with it. The
//     incident itself never depends on them.
//   - Whoever may write the bucket SUPERVISE may have any worker restarted, or none: permissions are for the operator to set.
//
// # States
//
// Of an incident ([IncidentState]): open, recovered, gone. Of an attempt ([Outcome]): running, then done, failed, unknown or
// cancelled. Each constant says where it may go.
//
// # Failure handling
//
// Every error ends the work on that worker for this check; the next check begins with what the store holds then. What goes wrong is
// counted in [Snapshot] and logged. A configuration that leaves a verdict without anybody, or a restart without a
// restarter, is an error at the start (SV-3).
package supervise
