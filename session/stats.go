package session

import "sync/atomic"

// counters count what happens to sessions here.
type counters struct {
	opened, refused, panics                                                               atomic.Uint64
	endedLeft, endedLost, endedSilent, endedSlow, endedDraining, endedMalformed           atomic.Uint64
	framesIn, framesUnknown, refusedBusy                                                  atomic.Uint64
	binds, tiesEnded, relays, relaysFailed, lookUps, confirms, farewellsUnheard           atomic.Uint64
	pushes, pushesDropped, pushesStale, gaps                                              atomic.Uint64
	bound, unbound, relaysStale, unbindsStale, pushesRefused, pushesLost, noticesRepeated atomic.Uint64
	turns                                                                                 atomic.Int64
}

// Stats counts what happened to the sessions of a node, and to the bindings of its Actors.
//
// Invariant, once nothing is under way: Opened = Sessions + the sum of Ended...
type Stats struct {
	// Sessions are those that the node owns now; Bound are the bindings of the Actors that live here now.
	Sessions int `json:"sessions"`
	Bound    int `json:"bound"`
	// Opened counts sessions opened, Refused handshakes refused, Panics those of the application's callbacks.
	Opened  uint64 `json:"opened"`
	Refused uint64 `json:"refused"`
	Panics  uint64 `json:"panics"`
	// EndedLeft and the rest count the ends of sessions: the client left; its connection was lost; nothing came from it
	// for two heartbeats; it read too slowly; it did not leave while the node drained; it did not keep to the protocol.
	EndedLeft      uint64 `json:"ended_left"`
	EndedLost      uint64 `json:"ended_lost"`
	EndedSilent    uint64 `json:"ended_silent"`
	EndedSlow      uint64 `json:"ended_slow"`
	EndedDraining  uint64 `json:"ended_draining"`
	EndedMalformed uint64 `json:"ended_malformed"`
	// Frames counts the frames from clients, FramesUnknown those of no known type, RefusedBusy the requests beyond
	// Config.InFlight.
	Frames        uint64 `json:"frames"`
	FramesUnknown uint64 `json:"frames_unknown"`
	RefusedBusy   uint64 `json:"refused_busy"`
	// Binds counts the bindings made for clients here, BindingsEnded those that their Actor or its node ended.
	Binds         uint64 `json:"binds"`
	BindingsEnded uint64 `json:"bindings_ended"`
	// Relays counts the messages brought to Actors, RelaysFailed those that ended with an error.
	Relays       uint64 `json:"relays"`
	RelaysFailed uint64 `json:"relays_failed"`
	// LookUps counts the look-ups in the store because a stored route was wrong, Confirms the questions to an Actor's
	// owner after the node's connection was another.
	LookUps  uint64 `json:"look_ups"`
	Confirms uint64 `json:"confirms"`
	// Pushes counts those handed to clients' queues, PushesDropped those dropped for slow clients, PushesStale those
	// that came twice or after their time, Gaps the gaps that were given up.
	Pushes        uint64 `json:"pushes"`
	PushesDropped uint64 `json:"pushes_dropped"`
	PushesStale   uint64 `json:"pushes_stale"`
	Gaps          uint64 `json:"gaps"`
	// ActorsBound and ActorsUnbound count the bindings of Actors here that began, by a bind, and ended.
	ActorsBound   uint64 `json:"actors_bound"`
	ActorsUnbound uint64 `json:"actors_unbound"`
	// RelaysStale counts relays, UnbindsStale unbinds and disconnects of a binding that the Actor did not have any more.
	RelaysStale  uint64 `json:"relays_stale"`
	UnbindsStale uint64 `json:"unbinds_stale"`
	// PushesRefused counts pushes for which there was no room at the Actor, PushesLost those that could not be brought to
	// the session's node.
	PushesRefused uint64 `json:"pushes_refused"`
	PushesLost    uint64 `json:"pushes_lost"`
	// NoticesRepeated counts the repeats of notices to sessions' nodes, FarewellsUnheard the Actors that did not hear of
	// a disconnect at once.
	NoticesRepeated  uint64 `json:"notices_repeated"`
	FarewellsUnheard uint64 `json:"farewells_unheard"`
}

// Stats returns the counters.
func (s *Service) Stats() Stats {
	s.mu.Lock()
	sessions := len(s.sessions)
	s.mu.Unlock()
	c := &s.stats
	return Stats{
		Sessions: sessions, Bound: s.bound.count(),
		Opened: c.opened.Load(), Refused: c.refused.Load(), Panics: c.panics.Load(),
		EndedLeft: c.endedLeft.Load(), EndedLost: c.endedLost.Load(), EndedSilent: c.endedSilent.Load(), EndedSlow: c.endedSlow.Load(),
		EndedDraining: c.endedDraining.Load(), EndedMalformed: c.endedMalformed.Load(),
		Frames: c.framesIn.Load(), FramesUnknown: c.framesUnknown.Load(), RefusedBusy: c.refusedBusy.Load(),
		Binds: c.binds.Load(), BindingsEnded: c.tiesEnded.Load(), Relays: c.relays.Load(), RelaysFailed: c.relaysFailed.Load(),
		LookUps: c.lookUps.Load(), Confirms: c.confirms.Load(),
		Pushes: c.pushes.Load(), PushesDropped: c.pushesDropped.Load(), PushesStale: c.pushesStale.Load(), Gaps: c.gaps.Load(),
		ActorsBound: c.bound.Load(), ActorsUnbound: c.unbound.Load(), RelaysStale: c.relaysStale.Load(), UnbindsStale: c.unbindsStale.Load(),
		PushesRefused: c.pushesRefused.Load(), PushesLost: c.pushesLost.Load(),
		NoticesRepeated: c.noticesRepeated.Load(), FarewellsUnheard: c.farewellsUnheard.Load(),
	}
}
