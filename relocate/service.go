package relocate

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/maphash"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"natsfabric/channels"
	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// Service is one node's part in moving objects: the source of those that leave it, the target of those that come.
//
// Concurrency: all methods may be called from any goroutine.
type Service struct {
	cfg  Config
	log  *zap.Logger
	seed maphash.Seed

	inbox      *kvlocation.RelayInbox
	departures units[*departure]
	arrivals   units[*arrival]
	verdicts   verdicts
	slots      chan struct{} // one for each unit that leaves
	fetching   budget
	bulky      atomic.Int32 // units among departures and arrivals that are known to have bulk state
	stats      stats
	host       host
	watch      watchers

	ctx       context.Context // of everything under way; ends when Close is out of patience
	cancel    context.CancelFunc
	wg        sync.WaitGroup
	startMu   sync.Mutex // orders wg.Add before Close's wg.Wait
	closing   bool
	closeOnce sync.Once
	closed    chan struct{}
	closeErr  error
}

// stats counts since the start.
type stats struct {
	arrived, departed, failed atomic.Uint64
	objects                   atomic.Int64
	bytes                     atomic.Int64
}

// New returns a Service, subscribes to what sources and targets ask of it, and opens the standing consumer of what is handed to this node. The error names
// the field of cfg that is wrong, or says why nothing could be subscribed.
func New(cfg Config) (*Service, error) {
	if err := cfg.check(); err != nil {
		return nil, fmt.Errorf("relocate: %w", err)
	}
	s := &Service{cfg: cfg, log: cfg.Logger, seed: maphash.MakeSeed(), closed: make(chan struct{})}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.slots = make(chan struct{}, cfg.Concurrency)
	s.departures.most, s.arrivals.most = MaxConcurrency, MaxArriving
	s.fetching.init(maxFetching)
	s.watch.init()
	ctx, cancel := context.WithTimeout(s.ctx, listenTimeout)
	defer cancel()
	var err error
	if s.inbox, err = cfg.Store.OpenRelay(ctx, cfg.RID, cfg.Lifecycle, s.takePart); err != nil {
		s.cancel()
		return nil, fmt.Errorf("relocate: %w", err)
	}
	if err := cfg.Router.Listen(ctx, channels.Service{Name: serviceName, Handle: s.handle}); err != nil {
		s.cancel()
		s.inbox.Close()
		return nil, fmt.Errorf("relocate: %w", err)
	}
	return s, nil
}

// listenTimeout bounds the subscribing.
const listenTimeout = 10 * time.Second

// owner is this process run under its present lease generation.
func (s *Service) owner() kvlocation.Owner {
	return kvlocation.Owner{RID: s.cfg.RID, Lifecycle: s.cfg.Lifecycle, Lease: s.cfg.Lease.Generation()}
}

// Consumer is the name of the standing consumer on the NATS server. It changes when the consumer is made again.
func (s *Service) Consumer() string { return s.inbox.Consumer() }

// Move moves one unit of this node: an Actor, or a Spot (with its members, if it is SpotWide). generation names its incarnation, 0
// whatever is here. toRID names the target, whose maintenance wave and application version then do not matter; empty lets this
// node choose another one that serves, hosts the type, has this node's application version and another wave.
//
// A nil error means that the target owns the object and serves it. Errors are *outcome.Error: NotAccepted when the object
// stays where it is, Unknown when it was given up and the target has not said that it took it; ReasonOf tells the reason, whose Text is for people. When
// ctx ends before the boundary the move is given up; behind it Move goes on, for Config.UnitTimeout at most.
func (s *Service) Move(ctx context.Context, key kvlocation.ObjectKey, generation uint64, toRID string) (Moved, error) {
	return s.move(ctx, key, generation, wish{rid: toRID, version: s.cfg.AppVersion, wave: s.cfg.Wave})
}

// move moves one unit. The unit may outlive the call, while the store does not say what became of a write.
func (s *Service) move(ctx context.Context, key kvlocation.ObjectKey, generation uint64, w wish) (Moved, error) {
	if !s.begin() {
		return Moved{}, moveError(key, outcome.NotAccepted, "", errClosing)
	}
	free := s.wg.Done
	select {
	case s.slots <- struct{}{}:
		free = func() { <-s.slots; s.wg.Done() }
	case <-ctx.Done():
		free()
		return Moved{}, moveError(key, outcome.NotAccepted, "other units are under way", context.Cause(ctx))
	case <-s.ctx.Done():
		free()
		return Moved{}, moveError(key, outcome.NotAccepted, "", errClosing)
	}
	begun := time.Now()
	d, err := s.agree(ctx, key, generation, w, begun)
	if err != nil {
		free()
		s.count(Moved{}, err)
		return Moved{}, err
	}
	type result struct {
		m   Moved
		err error
	}
	done := make(chan result, 1)
	go func() {
		defer free()
		s.changed()
		m, err := d.depart(ctx, begun)
		s.count(m, err)
		done <- result{m, err}
	}()
	patience := time.NewTimer(s.cfg.UnitTimeout + callerPatience)
	defer patience.Stop()
	for {
		select {
		case r := <-done:
			return r.m, r.err
		case <-patience.C:
			if err := d.unsettled(); err != nil {
				return Moved{}, err
			}
			patience.Reset(s.cfg.UnitTimeout)
		}
	}
}

// callerPatience is how much longer than its unit the caller of a move waits for the store.
const callerPatience = time.Second

// count keeps the score of the moves from here.
func (s *Service) count(m Moved, err error) {
	if err != nil {
		s.stats.failed.Add(1)
	} else {
		s.stats.departed.Add(1)
		s.stats.objects.Add(int64(m.Objects))
		s.stats.bytes.Add(int64(m.Bytes))
	}
	s.changed()
}

// agree begins the departure and finds a target.
func (s *Service) agree(ctx context.Context, key kvlocation.ObjectKey, generation uint64, w wish, begun time.Time) (*departure, error) {
	if err := s.cfg.Lease.Admit(); err != nil {
		return nil, moveError(key, outcome.NotAccepted, "", &failure{RuntimeNotReady, err})
	}
	dep, err := s.cfg.Objects.Depart(ctx, key, generation)
	if err != nil {
		return nil, moveError(key, outcome.NotAccepted, "", err)
	}
	u := dep.Unit()
	t, op, err := s.reserve(ctx, &u, w)
	if err != nil {
		dep.Abort(err)
		return nil, moveError(key, outcome.NotAccepted, "it stays where it is", err)
	}
	return s.newDeparture(dep, t, op, begun), nil
}

// ask puts one question to the other side.
func (s *Service) ask(ctx context.Context, to kvlocation.Owner, verb, op string, key kvlocation.ObjectKey, data []byte, timeout time.Duration) (a answer, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	r, err := s.cfg.Router.CallRun(ctx, &channels.RunCall{
		Op: "move: " + verb, Target: key.String(), RID: to.RID, Lifecycle: to.Lifecycle,
		Subject: s.cfg.Router.RunSubject(to.RID, to.Lifecycle, serviceName, verb+"."+op), Data: data,
	})
	if err != nil {
		return a, err
	}
	if err := json.Unmarshal(r.Data, &a); err != nil || a.V != version {
		return a, outcome.Wrap("move: "+verb, outcome.ProtocolError, outcome.Accepted, key.String(), "node "+to.RID+" gives an answer that cannot be read", err)
	}
	return a, nil
}

// cancelAt tells a target that nothing follows. It does not wait: the reservation expires anyway.
func (s *Service) cancelAt(to kvlocation.Owner, op string) {
	s.background(func(ctx context.Context) {
		if _, err := s.ask(ctx, to, verbCancel, op, kvlocation.ObjectKey{}, nil, askTimeout); err != nil {
			s.log.Debug("a target was not told that a move is given up", zap.String("move", op), zap.Error(err))
		}
	})
}

// background runs f beside what goes on; its context ends with the Service.
func (s *Service) background(f func(ctx context.Context)) {
	if !s.begin() {
		return
	}
	go func() {
		defer s.wg.Done()
		f(s.ctx)
	}()
}

// begin holds Close back until wg.Done; it reports false once the Service closes.
func (s *Service) begin() bool {
	s.startMu.Lock()
	defer s.startMu.Unlock()
	if s.closing {
		return false
	}
	s.wg.Add(1)
	return true
}

func (s *Service) isClosing() bool {
	s.startMu.Lock()
	defer s.startMu.Unlock()
	return s.closing
}

// takePart takes one part from the relay. It does not block.
func (s *Service) takePart(p kvlocation.RelayPart) {
	if a, ok := s.arrivals.get(p.Op); ok {
		a.take(p)
	}
}

// handle takes one message of another node. It does not block.
func (s *Service) handle(in *channels.Inbound) {
	verb, op, _ := strings.Cut(in.Tail(), ".")
	switch verb {
	case verbReserve:
		reply(in, s.takeReservation(op, in))
	case verbReady:
		if a, ok := s.arrivals.get(op); ok {
			a.await(in)
			return
		}
		reply(in, s.verdicts.of(op))
	case verbCancel:
		if a, ok := s.arrivals.get(op); ok {
			a.post(event{kind: evCancel})
		}
		reply(in, answer{V: version})
	case verbCommitted:
		var n notice
		if err := json.Unmarshal(in.Data(), &n); err != nil || n.V != version {
			in.Refuse(outcome.ProtocolError, "the notice cannot be read", nil)
			return
		}
		if d, ok := s.departures.get(op); ok {
			d.committed(n, in)
			return
		}
		reply(in, answer{V: version}) // it has come to its end already
	default:
		in.Refuse(outcome.ProtocolError, fmt.Sprintf("node %s knows no verb %.80q", s.cfg.RID, verb), nil)
	}
}

// from reports whether a message comes from a process run, as its reply subject says.
func from(in *channels.Inbound, who kvlocation.Owner) bool {
	sender, ok := in.Sender()
	return ok && sender.RID == who.RID && sender.Lifecycle == who.Lifecycle
}

func reply(in *channels.Inbound, a answer) {
	data, err := json.Marshal(a)
	if err != nil {
		in.Fail(err)
		return
	}
	in.Reply(data, nil)
}

// takeReservation keeps a place for a unit, or says why not.
func (s *Service) takeReservation(op string, in *channels.Inbound) answer {
	no := func(r Reason, format string, args ...any) answer {
		return answer{V: version, Reason: r, Detail: short(fmt.Sprintf(format, args...))}
	}
	var r reservation
	switch err := json.Unmarshal(in.Data(), &r); {
	case err != nil:
		return no(RelocationFailed, "the reservation cannot be read: %v", err)
	case r.V != version:
		return no(RelocationFailed, "the reservation has version %d, this node knows %d", r.V, version)
	case !r.Named && r.Version != s.cfg.AppVersion:
		return no(TargetUnavailable, "the application version is %q, not %q", s.cfg.AppVersion, r.Version)
	case !r.Named && r.Wave != "" && r.Wave == s.cfg.Wave:
		return no(TargetUnavailable, "the maintenance wave is %q too", s.cfg.Wave)
	case r.Source.RID == s.cfg.RID || !from(in, r.Source):
		return no(RelocationFailed, "the source is %s", r.Source)
	}
	if a, ok := s.arrivals.get(op); ok { // the question came twice
		return answer{V: version, Lease: a.rec.target.Lease}
	}
	hold := time.Duration(min(max(r.Millis, 1000), (MaxUnitTimeout+reservationSlack).Milliseconds())) * time.Millisecond
	r.Millis = hold.Milliseconds()
	arr, err := s.cfg.Objects.Expect(r.Unit, op, time.Now().Add(hold+reservationSlack))
	if err != nil {
		reason := reasonFor(err)
		if reason == RelocationFailed || reason == RelocationDisabled {
			reason = TargetUnavailable
		}
		return no(reason, "%v", err)
	}
	if !s.begin() {
		arr.Abort(errClosing)
		return no(TargetUnavailable, "node %s takes no units any more", s.cfg.RID)
	}
	a := &arrival{runner: newRunner(s, op, r.Unit.Key.String(), newTarget()), arr: arr, res: r}
	a.rec = record{s: s, op: op, key: r.Unit.Key, generation: r.Unit.Generation, ownerGeneration: r.Unit.OwnerGeneration, source: r.Source, target: s.owner()}
	if !s.arrivals.add(op, a) {
		s.wg.Done()
		arr.Abort(errClosing)
		return no(TargetUnavailable, "%d units are on their way to this node already", MaxArriving)
	}
	if s.isClosing() { // it was not there yet when Close looked
		a.post(event{kind: evGiveUp})
	}
	go func() {
		defer s.wg.Done()
		s.changed()
		s.arrive(a)
		s.arrivals.remove(op)
		s.changed()
	}()
	return answer{V: version, Lease: a.rec.target.Lease}
}

// closePatience is how long a Service that closes waits for the other side of a unit that has passed its boundary.
const closePatience = 5 * time.Second

// silence is how long the other side of a unit behind its boundary may say nothing.
func (s *Service) silence() time.Duration {
	if s.isClosing() {
		return closePatience
	}
	return s.cfg.UnitTimeout
}

// Close gives up what has not passed its boundary, waits for the rest for as long as ctx allows, and ends the Service. A unit whose other side is silent is waited
// for 5 s; a store that is silent, until ctx ends. What is cut off then is decided by the records, and by the other side. It may be called any number of times: later calls wait for the first one.
func (s *Service) Close(ctx context.Context) error {
	s.closeOnce.Do(func() {
		defer close(s.closed)
		s.closeErr = s.close(ctx)
	})
	<-s.closed
	return s.closeErr
}

func (s *Service) close(ctx context.Context) error {
	s.startMu.Lock()
	s.closing = true
	s.startMu.Unlock()
	s.departures.each(func(d *departure) {
		d.fail(errClosing)
		d.post(event{kind: evGiveUp})
		d.after(closePatience, evSilent)
	})
	s.arrivals.each(func(a *arrival) {
		a.post(event{kind: evGiveUp})
		a.after(closePatience, evSilent)
	})
	done := make(chan struct{})
	go func() {
		s.wg.Wait()
		close(done)
	}()
	var err error
	select {
	case <-done:
	case <-ctx.Done():
		err = fmt.Errorf("relocate: %d units that leave and %d that come were cut off: %w", s.departures.count(), s.arrivals.count(), context.Cause(ctx))
	}
	s.cancel()
	<-done
	s.cfg.Router.Mute(serviceName)
	s.inbox.Close()
	s.watch.close()
	return err
}

// short cuts a text for people to 500 bytes.
func short(s string) string {
	const most = 500
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "..."
}

// MoveUnit is Move as package objects calls it, for an Actor that joins a Spot elsewhere.
func (s *Service) MoveUnit(ctx context.Context, key kvlocation.ObjectKey, generation uint64, toRID string) error {
	_, err := s.Move(ctx, key, generation, toRID)
	return err
}
