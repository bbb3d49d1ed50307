package httpd

import "natsfabric/objects"

var (
	typeOwned    = gauge("objects_owned", "Actors and Spots that this node owns, those that are being created included.", "class", "type")
	typeCapacity = gauge("objects_capacity", "Actors and Spots of the type that this node takes at most.", "class", "type")
	typeAccepted = counter("objects_messages_accepted_total", "Messages that mailboxes took.", "class", "type")
	typeRun      = counter("objects_turns_total", "Turns begun for messages.", "class", "type")
	typeTimers   = counter("objects_timer_turns_total", "Turns of timers.", "class", "type")
	typeExpired  = counter("objects_messages_expired_total", "Accepted messages whose deadline passed before their turn.", "class", "type")
	typeDropped  = counter("objects_messages_dropped_total", "Accepted messages that ended because their object was closed, lost or not ready.", "class", "type")
	typeFailed   = counter("objects_turns_failed_total", "Turns that ended with an error, panics included.", "class", "type")
	typePanics   = counter("objects_turns_panics_total", "Turns that ended in a panic.", "class", "type")
	typeWithheld = counter("objects_results_withheld_total", "Results that were not given because ownership ended before the turn did.", "class", "type")
	typeRefused  = counter("objects_messages_refused_total", "Messages that this node refused.", "class", "type", "reason")
	typeRunning  = gauge("objects_turns_running", "Turns that run now.", "class", "type")
	typeBlocked  = gauge("objects_turns_blocked", "Turns that have been running for more than 10 s.", "class", "type")
	typeOldest   = gauge("objects_turn_oldest_seconds", "For how long the oldest turn has been running.", "class", "type")

	turnWorkers = gauge("objects_workers", "Goroutines that run turns, or wait for some.")
	turnsMost   = gauge("objects_turns_most", "Turns that may run at the same time.")
	turnsQueued = gauge("objects_queued", "Objects with mail that wait for a worker.")
	timersSet   = gauge("objects_timers", "Timers that are set.")

	creations       = counter("objects_creations_total", "Creations that ended at this node.", "result")
	creating        = gauge("objects_creating", "Creations that are under way.")
	takenOver       = counter("objects_creations_taken_over_total", "Creations of a dead node that this one made on.")
	overtaken       = counter("objects_creations_overtaken_total", "Creations of this node that another one made on.")
	dataLost        = counter("objects_creations_data_lost_total", "Creations that were cancelled because their stored input was gone.")
	firsts          = counter("objects_first_messages_total", "Stored first messages of creations that were taken over.", "result")
	factories       = counter("objects_factories_total", "Factory calls begun.")
	factoriesLate   = counter("objects_factories_late_total", "Factory calls that did not return in time.")
	factoriesNow    = gauge("objects_factories_running", "Factory calls that run now.")
	unresolved      = counter("objects_writes_unresolved_total", "Rounds in which a record write of unknown result was pursued.")
	adopted         = counter("objects_adopted_total", "Objects that went on under a new lease.")
	closed          = counter("objects_closed_total", "Objects that were destroyed or closed.")
	closingFailed   = counter("objects_closing_errors_total", "Closing callbacks that ended with an error.")
	released        = counter("objects_released_total", "Objects that this node released from an owner that was gone.")
	membershipMoves = counter("objects_membership_changes_total", "Joins and leaves of Actors.", "change")
	broadcasts      = counter("objects_broadcasts_total", "Broadcasts of this node's Spots.")
	gateway         = counter("objects_gateway_messages_total", "Messages of plain NATS clients that this node took for the mesh.")
	notOwner        = counter("objects_not_owner_total", "Messages for objects that are not at this node.")
	routes          = gauge("objects_routes", "Routes that are remembered.")
	routeLookups    = counter("objects_route_lookups_total", "Look-ups of routes that are remembered.", "result")
	routesDropped   = counter("objects_routes_dropped_total", "Remembered routes that were given up.", "why")
)

// objects puts what the node's Actors and Spots were given.
func (p page) objects(s objects.Snapshot) {
	for _, t := range s.Types {
		at := []string{string(t.Class), t.Name}
		p.put(typeOwned, float64(t.Owned), at...)
		p.put(typeCapacity, float64(t.Capacity), at...)
		p.put(typeAccepted, float64(t.Accepted), at...)
		p.put(typeRun, float64(t.Run), at...)
		p.put(typeTimers, float64(t.Timers), at...)
		p.put(typeExpired, float64(t.Expired), at...)
		p.put(typeDropped, float64(t.Dropped), at...)
		p.put(typeFailed, float64(t.Failed), at...)
		p.put(typePanics, float64(t.Panics), at...)
		p.put(typeWithheld, float64(t.Withheld), at...)
		p.put(typeRunning, float64(t.Running), at...)
		p.put(typeBlocked, float64(t.Blocked), at...)
		p.put(typeOldest, t.Oldest.Seconds(), at...)
		for reason, n := range map[string]uint64{
			"full": t.RefusedFull, "too large": t.RefusedTooLarge, "not here": t.RefusedClosed, "lease": t.RefusedLapsed,
			"draining": t.RefusedStopping, "past deadline": t.RefusedPast, "not created": t.RefusedAborted,
		} {
			p.put(typeRefused, float64(n), append(at, reason)...)
		}
	}
	p.put(turnWorkers, float64(s.Workers))
	p.put(turnsMost, float64(s.MaxTurns))
	p.put(turnsQueued, float64(s.Queued))
	p.put(timersSet, float64(s.Timers))
	p.protocol(s)
}

// protocol puts what happened around the turns.
func (p page) protocol(s objects.Snapshot) {
	p.put(creations, float64(s.Created), "created")
	p.put(creations, float64(s.CreateFailed), "failed")
	p.put(creating, float64(s.Creating))
	p.put(takenOver, float64(s.TakenOver))
	p.put(overtaken, float64(s.Overtaken))
	p.put(dataLost, float64(s.DataLost))
	p.put(firsts, float64(s.FirstTaken), "run")
	p.put(firsts, float64(s.FirstPast), "past deadline")
	p.put(factories, float64(s.Factories))
	p.put(factoriesLate, float64(s.FactoriesLate))
	p.put(factoriesNow, float64(s.FactoriesRunning))
	p.put(unresolved, float64(s.Unresolved))
	p.put(adopted, float64(s.Adopted))
	p.put(closed, float64(s.Closed))
	p.put(closingFailed, float64(s.ClosingFailed))
	p.put(released, float64(s.Released))
	p.put(membershipMoves, float64(s.Joined), "join")
	p.put(membershipMoves, float64(s.Left), "leave")
	p.put(broadcasts, float64(s.Broadcasts))
	p.put(gateway, float64(s.Gateway))
	p.put(notOwner, float64(s.NotOwner))
	p.put(routes, float64(s.Routes))
	p.put(routeLookups, float64(s.RouteHits), "hit")
	p.put(routeLookups, float64(s.RouteMisses), "miss")
	p.put(routesDropped, float64(s.RoutesDropped), "stale")
	p.put(routesDropped, float64(s.RoutesEvicted), "full")
}
