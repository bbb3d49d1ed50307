package fence

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/nats-io/nuid"
	"go.uber.org/zap"

	"natsfabric/internal/jsonkeep"
	"natsfabric/internal/leash"
	"natsfabric/internal/monotime"
	"natsfabric/internal/wire"
	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// Defaults and limits of an election. The defaults ride through one leader election of JetStream, as a node's lease does.
const (
	DefaultTermTTL    = 18 * time.Second
	MinTermTTL        = time.Second
	MaxTermTTL        = 5 * time.Minute
	DefaultBackoff    = 2 * time.Second
	DefaultMaxBackoff = time.Minute
)

// ElectionConfig says for what a candidate stands, and how a silent holder is dealt with.
type ElectionConfig struct {
	// Name is the leadership's: 1 to 64 characters of A-Z, a-z, 0-9, _ and -.
	Name string
	// Node is the candidate's own name, as fence devices know it: a node's RID. Same characters.
	Node string
	// Lifecycle tells apart process runs of the node. Optional.
	Lifecycle uint64
	// Labels are what fence devices need to know of this process (its process ID, its host's management board, its user in
	// the database). They are written into the record when it leads. At most 4 KiB together.
	Labels map[string]string
	// TTL is how long a silent holder is waited for, from 1 s to 5 min. 0 means 18 s.
	TTL time.Duration
	// Renew is the time between two renewals. 0 means a sixth of TTL.
	Renew time.Duration
	// Margin is how long before TTL is over a holder ends its term by itself. 0 means a sixth of TTL. 2 Renew + Margin must
	// fit into TTL.
	Margin time.Duration
	// Poll is how often a candidate reads the record. 0 means a sixth of TTL, at most 1 s.
	Poll time.Duration
	// Fencing is how a silent holder is fenced before another one leads (FE-5). Nil means that a silent holder is succeeded
	// without: then only the token keeps it from writing, and every resource must check it.
	Fencing *Plan
	// Backoff is the pause after all levels have failed, doubled each time up to MaxBackoff. 0 means 2 s and 1 min.
	Backoff, MaxBackoff time.Duration
	// AllowUnreplicated allows fencing on a store that is kept on one server. Without it that is refused: a store that is
	// as alive as one machine gives nobody a majority (FE-9).
	AllowUnreplicated bool
	// Logger gets what happens to the leadership; nil means silence.
	Logger *zap.Logger
}

func (c ElectionConfig) withDefaults() ElectionConfig {
	if c.TTL == 0 {
		c.TTL = DefaultTermTTL
	}
	if c.Renew == 0 {
		c.Renew = c.TTL / 6
	}
	if c.Margin == 0 {
		c.Margin = c.TTL / 6
	}
	if c.Poll == 0 {
		c.Poll = min(c.TTL/6, time.Second)
	}
	if c.Backoff == 0 {
		c.Backoff = DefaultBackoff
	}
	if c.MaxBackoff == 0 {
		c.MaxBackoff = max(DefaultMaxBackoff, c.Backoff)
	}
	if c.Logger == nil {
		c.Logger = zap.NewNop()
	}
	return c
}

// Validate returns an error that names each field that is wrong, its value and the allowed range, or what clashes.
func (c ElectionConfig) Validate() error {
	c = c.withDefaults()
	errs := []error{wire.CheckName("Name", c.Name), wire.CheckName("Node", c.Node)}
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	size := 0
	for k, v := range c.Labels {
		size += len(k) + len(v)
	}
	if size > 4<<10 {
		bad("Labels of %d bytes are not allowed: they must have %d at most", size, 4<<10)
	}
	switch {
	case c.TTL < MinTermTTL || c.TTL > MaxTermTTL:
		bad("TTL %v is not allowed: it must be %v to %v", c.TTL, MinTermTTL, MaxTermTTL)
	case c.Renew <= 0 || c.Margin <= 0 || c.Poll <= 0:
		bad("Renew %v, Margin %v and Poll %v are not allowed: each must be above 0", c.Renew, c.Margin, c.Poll)
	case 2*c.Renew+c.Margin > c.TTL:
		bad("Renew %v and Margin %v clash with TTL %v: two renewals and the margin must fit", c.Renew, c.Margin, c.TTL)
	}
	if c.Backoff < 0 || c.MaxBackoff < c.Backoff {
		bad("Backoff %v clashes with MaxBackoff %v: it must be 0 to that", c.Backoff, c.MaxBackoff)
	}
	if c.Fencing != nil {
		errs = append(errs, c.Fencing.Check())
	}
	return errors.Join(errs...)
}

// Election is one candidate of a leadership. A leadership has any number of candidates; each leads one term after the
// other.
//
// Concurrency: its methods may be called from any goroutine; Campaign and Lead one at a time.
type Election struct {
	cfg    ElectionConfig
	sh     *kvlocation.Shared
	self   Candidate
	mesh   string
	busy   chan struct{} // holds an element while Campaign runs
	newest uint64        // used by Campaign only; the highest revision of the record that it has read
	track  tracker

	devices leash.Leash // holds the calls of fence devices

	mu   sync.Mutex
	term *Term // guarded by mu; the present or last one
}

// NewElection returns a candidate. It writes nothing. The error is InvalidOperation for a wrong configuration.
func NewElection(store *kvlocation.Store, cfg ElectionConfig) (*Election, error) {
	if err := cfg.Validate(); err != nil {
		return nil, outcome.Wrap("configure", outcome.InvalidOperation, outcome.NotAccepted, fmt.Sprintf("leadership %q", cfg.Name), "", err)
	}
	cfg = cfg.withDefaults()
	cfg.Logger = cfg.Logger.With(zap.String("leadership", cfg.Name), zap.String("node", cfg.Node))
	return &Election{
		cfg: cfg, sh: store.Shared(kvlocation.BucketFence), mesh: string(store.Mesh()), busy: make(chan struct{}, 1),
		self: Candidate{Node: cfg.Node, Lifecycle: cfg.Lifecycle, Run: nuid.Next(), Labels: cfg.Labels},
	}, nil
}

// leaderKey is the key of a leadership's record.
func leaderKey(name string) string { return "leader." + name }

// view is the record at one revision.
type view struct {
	rec Leadership
	at  kvlocation.SharedEntry
}

// term is the revision of the holder's grant.
func (v view) term() uint64 {
	if v.rec.Term == 0 {
		return v.at.Revision
	}
	return v.rec.Term
}

func parse(e kvlocation.SharedEntry) (view, error) {
	v := view{at: e}
	if !e.Exists() {
		return v, nil
	}
	var err error
	v.rec.unknown, err = jsonkeep.Decode(e.Value, &v.rec, leadershipFields)
	if err == nil && v.rec.V > leadershipVersion {
		err = fmt.Errorf("its schema version is %d, and this program knows %d", v.rec.V, leadershipVersion)
	}
	if err == nil && (v.rec.Phase != PhaseVacant && v.rec.Holder == nil || v.rec.Phase == PhaseFencing && v.rec.Claim == nil) {
		err = errors.New("holder or claim is missing")
	}
	if err != nil {
		return v, outcome.Wrap("read leadership", outcome.ProtocolError, outcome.NotAccepted, e.Key, "the record cannot be understood", err)
	}
	return v, nil
}

// read reads a leadership's record, from any replica.
func read(ctx context.Context, sh *kvlocation.Shared, name string) (view, error) {
	e, err := sh.Get(ctx, leaderKey(name))
	if err != nil && !errors.Is(err, outcome.NotFound) {
		return view{}, err
	}
	e.Key = leaderKey(name)
	return parse(e)
}

// errLost says that a compare-and-set lost: the record is another one by now.
var errLost = errors.New("the record was changed meanwhile")

// change writes what the record becomes by ev, and returns the record as it stands then. It sends the same write again
// until it is known what became of it, ctx ends or the limit is over: a write that is still not known then may come true
// later, and never tell whether it did (see kvlocation.Shared.Resolve), so the record is looked at again instead. A refusal
// of the transition function, or errLost, says for ever that nothing was written.
func change(ctx context.Context, limit time.Duration, sh *kvlocation.Shared, name string, at view, ev event) (view, error) {
	rec, err := at.rec.apply(at.at.Revision, ev)
	if err != nil {
		return at, outcome.Wrap("change leadership", outcome.InvalidOperation, outcome.NotAccepted, leaderKey(name), "", err)
	}
	rec.Name = name
	value, err := jsonkeep.Encode(rec, rec.unknown)
	if err != nil {
		return at, err
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	e, err := sh.Update(ctx, at.at, value, 0)
	switch {
	case errors.Is(err, kvlocation.ErrConflict):
		return at, errLost
	case err != nil:
		return at, err
	}
	v, err := parse(e)
	if err == nil && string(e.Value) != string(value) {
		return v, errLost // it was applied, and somebody has written over it since
	}
	return v, err
}

// Campaign waits until this candidate leads and returns its term, or ctx ends (DeadlineExceeded). The work of its last
// term must have ended. A silent holder is
// fenced first when Fencing says how; while that does not succeed Campaign keeps trying, and Snapshot says why.
// InvalidOperation: a campaign or a term of this Election is under way, or fencing is wanted on a store that is kept on one
// server. DataLost: the store is not the one that was opened. ProtocolError: the record cannot be understood.
func (e *Election) Campaign(ctx context.Context) (*Term, error) {
	select {
	case e.busy <- struct{}{}:
		defer func() { <-e.busy }()
	default:
		return nil, e.wrong("a campaign is under way")
	}
	e.mu.Lock()
	leading := e.term != nil && e.term.held()
	e.mu.Unlock()
	if leading {
		return nil, e.wrong("the term of this Election has not ended")
	}
	enough := e.cfg.Fencing == nil || e.cfg.AllowUnreplicated
	idle := silence{}
	for {
		var v view
		var err error
		if !enough { // a store that does not answer as yet, for one that elects a leader, ends no campaign
			var n int
			if n, err = e.sh.Replicas(ctx); err == nil && n < 3 {
				return nil, e.wrong(fmt.Sprintf("the store is kept on %d servers: fencing needs three, of which two can decide without the third, or AllowUnreplicated", n))
			}
			enough = err == nil
		}
		if err == nil {
			v, err = e.look(ctx)
		}
		if err == nil {
			var t *Term
			t, err = e.step(ctx, v, idle.observe(v))
			if t != nil {
				return t, nil
			}
		}
		if err != nil && ctx.Err() == nil {
			if k := outcome.KindOf(err); k == outcome.DataLost || k == outcome.ProtocolError {
				return nil, err
			}
			e.track.note(err)
		}
		select {
		case <-ctx.Done():
			return nil, outcome.FromContext(ctx, "campaign", outcome.NotAccepted, fmt.Sprintf("leadership %q", e.cfg.Name), e.track.why())
		case <-time.After(e.cfg.Poll/2 + rand.N(e.cfg.Poll/2+1)):
		}
	}
}

// look reads the record and keeps it for Snapshot. A replica that shows less than was seen before is behind, or the store
// was rolled back: a read that needs the majority tells, and fails when it was.
func (e *Election) look(ctx context.Context) (view, error) {
	v, err := read(ctx, e.sh, e.cfg.Name)
	if err == nil && v.at.Revision < e.newest {
		v, err = confirmed(ctx, e.sh, e.cfg.Name)
	}
	if err == nil {
		e.newest = v.at.Revision
		e.track.see(e.status(v))
	}
	return v, err
}

func (e *Election) status(v view) Status { return statusOf(e.sh, e.cfg.Name, v) }

// confirmed reads a leadership's record no older than now.
func confirmed(ctx context.Context, sh *kvlocation.Shared, name string) (view, error) {
	e, err := sh.Confirm(ctx, leaderKey(name))
	if err != nil && !errors.Is(err, outcome.NotFound) {
		return view{}, err
	}
	e.Key = leaderKey(name)
	return parse(e)
}

// step does what the record allows this candidate to do now. A nil term and a nil error mean to wait.
func (e *Election) step(ctx context.Context, v view, idle bool) (*Term, error) {
	if h := v.rec.Holder; h != nil && h.Run == e.self.Run && (v.rec.Phase == PhaseLed || v.rec.Phase == PhaseFencing) {
		// What is left of an own term that has ended, or of a grant whose answer was lost.
		_, err := e.change(ctx, v, resign{run: e.self.Run, term: v.term(), at: time.Now().UTC()})
		return nil, ignoreLost(err)
	}
	switch v.rec.Phase {
	case PhaseLed:
		switch {
		case !idle:
			return nil, nil
		case e.cfg.Fencing == nil:
			return e.grant(ctx, v, idle)
		}
		return nil, e.fence(ctx, v, idle)
	case PhaseFencing:
		switch {
		case !idle && v.rec.Claim.By.Run != e.self.Run:
			return nil, nil
		case e.cfg.Fencing == nil:
			return nil, errMustFence
		}
		return nil, e.fence(ctx, v, idle)
	}
	return e.grant(ctx, v, idle)
}

// change changes the record. Beyond a TTL no write is worth waiting for: a grant would be over.
func (e *Election) change(ctx context.Context, at view, ev event) (view, error) {
	return change(ctx, e.cfg.TTL, e.sh, e.cfg.Name, at, ev)
}

// grant makes this candidate the holder.
func (e *Election) grant(ctx context.Context, v view, idle bool) (*Term, error) {
	sent := monotime.Now()
	v, err := e.change(ctx, v, grant{to: e.self, ttl: e.cfg.TTL, mustFence: e.cfg.Fencing != nil, idle: idle})
	if err != nil {
		if errors.Is(err, errLost) {
			return nil, nil
		}
		return nil, err
	}
	t := newTerm(e, v, sent)
	if !t.held() {
		t.finish(ErrTermLost)
		return nil, fmt.Errorf("%w: the grant was acknowledged too late", ErrTermLost)
	}
	e.mu.Lock()
	e.term = t
	e.mu.Unlock()
	e.track.granted(e.status(v))
	e.cfg.Logger.Info("leads", zap.Stringer("token", t.token))
	return t, nil
}

// Lead campaigns, calls lead with a context that ends with the term (cause ErrTermLost) or with ctx, waits for it and
// resigns. The context carries the term's token, so that guards take it. It returns Campaign's error or lead's. A panic of
// lead passes through; the term has ended then, and was not resigned, for nobody knows what is left of its work.
func (e *Election) Lead(ctx context.Context, lead func(ctx context.Context) error) error {
	t, err := e.Campaign(ctx)
	if err != nil {
		return err
	}
	defer t.finish(fmt.Errorf("%w: its work has ended without a word", ErrTermLost)) // after Resign it changes nothing
	tctx, cancel := context.WithCancelCause(t.Context())
	stop := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	err = lead(tctx)
	stop()
	cancel(nil)
	rctx, done := context.WithTimeout(context.WithoutCancel(ctx), e.cfg.TTL)
	defer done()
	if resigned := t.Resign(rctx); resigned != nil {
		e.track.note(resigned)
	}
	return err
}

// Observe calls f with the leadership's record at first and whenever it has changed, until ctx ends or f returns false. It
// reads once per Poll, from any replica. The error is that of ctx, nil after f returned false.
func (e *Election) Observe(ctx context.Context, f func(Status) bool) error {
	var last uint64
	for first := true; ; {
		v, err := read(ctx, e.sh, e.cfg.Name)
		// Any replica answers: one that is behind must not show the past again.
		if err == nil && (first || v.at.Revision > last) {
			first, last = false, v.at.Revision
			if !f(e.status(v)) {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(e.cfg.Poll):
		}
	}
}

// Close resigns a term that is held, within ctx, and may be called any number of times. The work of the term must have
// ended.
func (e *Election) Close(ctx context.Context) error {
	e.mu.Lock()
	t := e.term
	e.mu.Unlock()
	if t == nil {
		return nil
	}
	return t.Resign(ctx)
}

func (e *Election) wrong(detail string) error {
	return outcome.New("campaign", outcome.InvalidOperation, outcome.NotAccepted, fmt.Sprintf("leadership %q", e.cfg.Name), detail)
}

// silence is what a candidate knows about how long a record has not changed, on its own clock: from when it has read a
// revision for the first time. The record's TTL is over for this candidate when it has read the same revision all that
// time; that it is still the present one is then decided by the compare-and-set of whatever it writes.
type silence struct {
	revision uint64
	since    monotime.Time
}

func (s *silence) observe(v view) (idle bool) {
	if s.revision != v.at.Revision {
		s.revision, s.since = v.at.Revision, monotime.Now()
	}
	return monotime.Since(s.since) >= v.rec.TTL()
}
