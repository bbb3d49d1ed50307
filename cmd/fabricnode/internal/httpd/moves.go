package httpd

import (
	"natsfabric/objects"
	"natsfabric/relocate"
	"natsfabric/session"
)

var (
	unitsMoving   = gauge("relocation_units", "Objects, or Spots with their members, that are moving now.", "direction")
	unitsDeparted = counter("relocation_departed_total", "Moves away from this node that have ended.", "result")
	unitsArrived  = counter("relocation_arrived_total", "Moves to this node that have ended.", "result")
	movedObjects  = counter("relocation_objects_total", "Objects that have left this node.")
	movedBytes    = counter("relocation_state_bytes_total", "Bytes of captured state that have left this node.")
	drainUnits    = gauge("relocation_drain_units", "Of the present or last drain of this node: found so far, moved, stayed.", "what")
	held          = counter("relocation_held_messages_total", "Messages that arrived during a move, by how they went to the target: with a number, or behind the commit.", "how")
	following     = gauge("relocation_following", "Moves whose old routes this node still serves.")
	followed      = counter("relocation_followed_messages_total", "Messages that came by an old route.", "result")
	owed          = gauge("relocation_answers_owed", "Callers in this process that wait for an answer of work that has moved.")

	sessionsNow      = gauge("sessions", "Sessions of clients that this node owns.")
	sessionsBound    = gauge("sessions_bound_actors", "Bindings of the Actors of this node.")
	sessionsOpened   = counter("sessions_opened_total", "Sessions that were opened.")
	sessionsRefused  = counter("sessions_refused_total", "Handshakes that were refused.")
	sessionsEnded    = counter("sessions_ended_total", "Sessions that have ended.", "why")
	sessionsFrames   = counter("sessions_frames_total", "Frames from clients.")
	sessionsBusy     = counter("sessions_requests_refused_total", "Requests beyond what one session may have under way.")
	sessionsBinds    = counter("sessions_binds_total", "Bindings made for clients.")
	sessionsUnbound  = counter("sessions_bindings_ended_total", "Bindings of clients that their Actor, or its node, ended.")
	sessionsRelays   = counter("sessions_relays_total", "Messages of clients brought to Actors.", "result")
	sessionsLookups  = counter("sessions_route_lookups_total", "Look-ups in the store because a stored route was wrong.")
	sessionsConfirms = counter("sessions_confirms_total", "Bindings confirmed with their Actor's node after the connection was another.")
	sessionsPushes   = counter("sessions_pushes_total", "Pushes for clients of this node.", "result")
	sessionsGaps     = counter("sessions_push_gaps_total", "Pushes that were waited for and did not come.")
	actorsPushes     = counter("sessions_actor_pushes_failed_total", "Pushes of this node's Actors that found no room, or could not be brought to the session's node.", "why")
	sessionsStale    = counter("sessions_stale_total", "What came of a binding that its Actor did not have any more.", "what")
	sessionsPanics   = counter("sessions_panics_total", "Panics of the application's callbacks.")
)

// moves puts what moved from and to this node.
func (p page) moves(at relocate.Progress, s objects.Snapshot) {
	p.put(unitsMoving, float64(at.Moving), "out")
	p.put(unitsMoving, float64(at.Arriving), "in")
	p.put(unitsDeparted, float64(at.Departed), "moved")
	p.put(unitsDeparted, float64(at.Failed), "failed")
	p.put(unitsArrived, float64(s.Arrived), "moved")
	p.put(unitsArrived, float64(s.ArriveAborted), "failed")
	p.put(movedObjects, float64(at.Objects))
	p.put(movedBytes, float64(at.Bytes))
	p.put(drainUnits, float64(at.Total), "found")
	p.put(drainUnits, float64(at.Moved), "moved")
	p.put(drainUnits, float64(at.Kept), "stayed")
	p.put(held, float64(s.Published), "numbered")
	p.put(held, float64(s.HandedOn), "behind")
	p.put(following, float64(s.Following))
	p.put(followed, float64(s.Followed), "sent on")
	p.put(followed, float64(s.FollowRefused), "refused")
	p.put(owed, float64(s.Owed))
}

// sessions puts what happened to clients.
func (p page) sessions(s session.Stats) {
	p.put(sessionsNow, float64(s.Sessions))
	p.put(sessionsBound, float64(s.Bound))
	p.put(sessionsOpened, float64(s.Opened))
	p.put(sessionsRefused, float64(s.Refused))
	for why, n := range map[string]uint64{
		"left": s.EndedLeft, "lost": s.EndedLost, "silent": s.EndedSilent, "slow": s.EndedSlow, "draining": s.EndedDraining, "malformed": s.EndedMalformed,
	} {
		p.put(sessionsEnded, float64(n), why)
	}
	p.put(sessionsFrames, float64(s.Frames))
	p.put(sessionsBusy, float64(s.RefusedBusy))
	p.put(sessionsBinds, float64(s.Binds))
	p.put(sessionsUnbound, float64(s.BindingsEnded))
	p.put(sessionsRelays, float64(s.Relays-s.RelaysFailed), "reply")
	p.put(sessionsRelays, float64(s.RelaysFailed), "error")
	p.put(sessionsLookups, float64(s.LookUps))
	p.put(sessionsConfirms, float64(s.Confirms))
	p.put(sessionsPushes, float64(s.Pushes), "sent")
	p.put(sessionsPushes, float64(s.PushesDropped), "dropped")
	p.put(sessionsPushes, float64(s.PushesStale), "stale")
	p.put(sessionsGaps, float64(s.Gaps))
	p.put(actorsPushes, float64(s.PushesRefused), "no room")
	p.put(actorsPushes, float64(s.PushesLost), "lost")
	p.put(sessionsStale, float64(s.RelaysStale), "relay")
	p.put(sessionsStale, float64(s.UnbindsStale), "unbind")
	p.put(sessionsPanics, float64(s.Panics))
}
