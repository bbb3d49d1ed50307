package objects

import "sync/atomic"

// protocolStats are the counters of everything around the turns.
type protocolStats struct {
	created, createFailed, takenOver, overtaken, dataLost atomic.Uint64
	firstTaken, firstPast                                 atomic.Uint64
	factories, factoriesLate                              atomic.Uint64
	factoriesRunning                                      atomic.Int64
	unresolved, adopted, closed, closingFailed, released  atomic.Uint64
	joined, left, broadcasts, gateway, notOwner           atomic.Uint64

	departures, departAborted, departed, departFailed atomic.Uint64
	arrivals, arriveAborted, arrived                  atomic.Uint64
	published, handedOn                               atomic.Uint64
	followed, followRefused                           atomic.Uint64
}

// Snapshot is what a Service has counted since it began, and its present state.
type Snapshot struct {
	RuntimeSnapshot

	// Created and CreateFailed count the creations that ended here; TakenOver those that were made on from another's
	// record, Overtaken those that another made on, DataLost those whose stored input was gone.
	Created, CreateFailed, TakenOver, Overtaken, DataLost uint64
	// FirstTaken counts the stored first messages that run here after a takeover, FirstPast those that were past their
	// deadline and do not run.
	FirstTaken, FirstPast uint64
	// Creating is how many creations are under way, FactoriesRunning how many factories; Factories counts them all, and
	// FactoriesLate those that did not return in time.
	Creating, FactoriesRunning int
	Factories, FactoriesLate   uint64
	// Unresolved counts the rounds in which a record write of unknown result was pursued.
	Unresolved uint64
	// Adopted, Closed and Released count records; ClosingFailed the Closing callbacks that returned an error.
	Adopted, Closed, ClosingFailed, Released uint64
	// Joined and Left count changes of membership, Broadcasts the broadcasts that Spots of this node made.
	Joined, Left, Broadcasts uint64
	// Departures counts the moves of units away from this node, Departed those that were committed, DepartAborted those
	// after which the unit went on here, DepartFailed those whose target was lost after the boundary.
	Departures, Departed, DepartAborted, DepartFailed uint64
	// Arrivals counts the reservations for units that were to come, Arrived those that came, ArriveAborted the others.
	Arrivals, Arrived, ArriveAborted uint64
	// Moving is how many of both are under way.
	Moving int
	// Published counts the held messages that were given to targets with a number, HandedOn those that were sent to them
	// after the commit.
	Published, HandedOn uint64
	// Following is how many moves are followed; Followed counts the messages sent on, FollowRefused those that were not,
	// because of a bound or because the target has gone. Owed is how many answers of moved work callers here wait for.
	Following, Owed         int
	Followed, FollowRefused uint64
	// Gateway counts the messages of plain clients, NotOwner the messages for objects that are not here.
	Gateway, NotOwner uint64
	// Routes is how many routes the cache holds. RouteHits and RouteMisses count its look-ups, RoutesDropped the routes
	// that were found stale, RoutesEvicted those that had to make room.
	Routes                                               int
	RouteHits, RouteMisses, RoutesDropped, RoutesEvicted uint64
}

// Metrics returns the present counters.
func (s *Service) Metrics() Snapshot {
	c := &s.stats
	return Snapshot{
		RuntimeSnapshot: s.rt.snapshot(),
		Created:         c.created.Load(), CreateFailed: c.createFailed.Load(), TakenOver: c.takenOver.Load(),
		Overtaken: c.overtaken.Load(), DataLost: c.dataLost.Load(),
		FirstTaken: c.firstTaken.Load(), FirstPast: c.firstPast.Load(),
		Creating: s.flights.count(), FactoriesRunning: int(c.factoriesRunning.Load()),
		Factories: c.factories.Load(), FactoriesLate: c.factoriesLate.Load(),
		Unresolved: c.unresolved.Load(), Adopted: c.adopted.Load(), Closed: c.closed.Load(),
		ClosingFailed: c.closingFailed.Load(), Released: c.released.Load(),
		Joined: c.joined.Load(), Left: c.left.Load(), Broadcasts: c.broadcasts.Load(),
		Departures: c.departures.Load(), Departed: c.departed.Load(), DepartAborted: c.departAborted.Load(),
		DepartFailed: c.departFailed.Load(), Arrivals: c.arrivals.Load(), Arrived: c.arrived.Load(),
		ArriveAborted: c.arriveAborted.Load(), Moving: s.moves.under.now(),
		Published: c.published.Load(), HandedOn: c.handedOn.Load(),
		Following: s.follows.live.now(), Owed: s.owed.now(),
		Followed: c.followed.Load(), FollowRefused: c.followRefused.Load(),
		Gateway: c.gateway.Load(), NotOwner: c.notOwner.Load(),
		Routes: s.routes.known(), RouteHits: s.routes.hits.Load(), RouteMisses: s.routes.misses.Load(),
		RoutesDropped: s.routes.dropped.Load(), RoutesEvicted: s.routes.evicted.Load(),
	}
}
