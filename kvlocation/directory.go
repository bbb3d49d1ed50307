package kvlocation

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"natsfabric/internal/monotime"
)

// Defaults and limits of a directory.
const (
	// DefaultGrace is the default of DirectoryConfig.Grace.
	DefaultGrace = 30 * time.Second
	// DefaultResync is the default of DirectoryConfig.Resync.
	DefaultResync = 5 * time.Minute
	// MaxMembers is how many descriptors a mesh may have: what one consistent read covers, less a reserve for the
	// markers of those that were removed within the last ten minutes.
	MaxMembers = 1000
)

// DirectoryConfig says how a directory follows the mesh's descriptors. The zero value is a good one.
type DirectoryConfig struct {
	// Lease is the node's own lease. The notices of its renewals are the heartbeat of the source of changes. A
	// program that is no node has none; its source is checked by the interval's read alone.
	Lease *Lease
	// Interval is the time between two checks that the newest descriptor of the store is known, one small read
	// each. 0 means the lease's renewal interval, or 3 s without a lease.
	Interval time.Duration
	// Grace (StoreFailureGrace) is how long the last list may be used while the store does not answer. 0 means 30 s.
	Grace time.Duration
	// Resync is the time between two full reads that are made without a reason, less up to a fifth at random.
	// 0 means 5 min.
	Resync time.Duration
}

// DirectoryState says how far a directory's list can be trusted.
type DirectoryState uint8

// The states of a directory.
const (
	// DirectoryFresh: the store answers and the list follows it. Next: DirectoryStale.
	DirectoryFresh DirectoryState = iota + 1
	// DirectoryStale: the store does not answer, or everything is being read again. The list is the last one that
	// was read in full, and nobody is added to it (FO-7b). Next: DirectoryFresh, DirectoryExpired.
	DirectoryStale
	// DirectoryExpired: the store has not answered for longer than the grace. The list says so (Members.Expired),
	// and nothing may be concluded from it. Next: DirectoryFresh.
	DirectoryExpired
)

func (s DirectoryState) String() string {
	switch s {
	case DirectoryFresh:
		return "fresh"
	case DirectoryStale:
		return "stale"
	case DirectoryExpired:
		return "expired"
	}
	return fmt.Sprintf("DirectoryState(%d)", uint8(s))
}

// DirectoryStats counts what a directory did.
type DirectoryStats struct {
	// Resyncs counts full reads.
	Resyncs uint64
	// Gaps counts changes that were found to be missed.
	Gaps uint64
	// Rebuilds counts subscriptions that were replaced because the source was silent.
	Rebuilds uint64
}

// Directory follows the descriptors of a mesh. It costs no consumer: it hears republished changes, finds gaps in
// them by their sequences, and reads everything in one consistent state when it missed something.
//
// Concurrency: every method may be called from any goroutine. Members takes no lock.
type Directory struct {
	s   *Store
	cfg DirectoryConfig

	members atomic.Pointer[Members]
	state   atomic.Uint32
	changed atomic.Pointer[chan struct{}]

	displaced atomic.Bool

	resyncs, gaps, rebuilds atomic.Uint64

	ask    chan chan error // requests for a full read
	status chan nats.Status
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	once   sync.Once
	done   chan struct{}

	// Only the follower goroutine touches the rest.
	source
	list      map[string]Member // by RID
	known     map[string]uint64 // the last sequence of each key, markers included
	newest    uint64            // the highest of them
	contact   monotime.Time     // when the store answered last
	full      bool              // MaxMembers was reported
	suspicion string            // why everything must be read again before the list changes; "" when it need not
}

// OpenDirectory reads the descriptors of the mesh and follows them until Close.
//
// Errors are *outcome.Error: Unavailable when the store does not answer, InvalidOperation for a configuration that
// is not allowed.
func (s *Store) OpenDirectory(ctx context.Context, cfg DirectoryConfig) (*Directory, error) {
	if err := cfg.fill(); err != nil {
		return nil, refused("open directory of", fmt.Sprintf("mesh %q", s.mesh), err)
	}
	d := &Directory{
		s: s, cfg: cfg, list: map[string]Member{}, known: map[string]uint64{},
		ask: make(chan chan error), done: make(chan struct{}),
	}
	changed := make(chan struct{})
	d.changed.Store(&changed)
	d.members.Store(NewMembers(nil))
	d.state.Store(uint32(DirectoryStale))
	d.ctx, d.cancel = context.WithCancel(s.ctx)
	d.status = s.nc.StatusChanged(nats.CONNECTED, nats.RECONNECTING, nats.DISCONNECTED)
	if err := d.subscribe(); err != nil {
		d.abandon()
		return nil, unavailable("open directory of", fmt.Sprintf("mesh %q", s.mesh), err)
	}
	if err := d.readAll(ctx, true); err != nil {
		d.unsubscribe()
		d.abandon()
		return nil, err
	}
	go d.follow()
	return d, nil
}

// abandon ends what was begun of a directory that cannot be opened.
func (d *Directory) abandon() {
	d.cancel()
	d.s.nc.RemoveStatusListener(d.status)
}

func (c *DirectoryConfig) fill() error {
	if c.Interval == 0 {
		c.Interval = DefaultRenew
		if c.Lease != nil {
			c.Interval = c.Lease.cfg.Renew
		}
	}
	if c.Grace == 0 {
		c.Grace = DefaultGrace
	}
	if c.Resync == 0 {
		c.Resync = DefaultResync
	}
	switch {
	case c.Interval < MinRenew:
		return fmt.Errorf("directory interval %v is not allowed: it must be at least %v", c.Interval, MinRenew)
	case c.Grace < c.Interval:
		return fmt.Errorf("store failure grace %v clashes with directory interval %v: it must be at least that", c.Grace, c.Interval)
	case c.Resync < c.Interval:
		return fmt.Errorf("directory resync %v clashes with directory interval %v: it must be at least that", c.Resync, c.Interval)
	}
	return nil
}

// Members returns the present list. It is never nil.
func (d *Directory) Members() *Members { return d.members.Load() }

// State returns how far the list can be trusted.
func (d *Directory) State() DirectoryState { return DirectoryState(d.state.Load()) }

// Healthy reports whether the state is DirectoryFresh.
func (d *Directory) Healthy() bool { return d.State() == DirectoryFresh }

// Displaced reports whether the node's own descriptor, as it was last published under DirectoryConfig.Lease, was
// overwritten or removed by somebody else. The node then publishes it again; PublishDescriptor says so if a later
// process run was it. False without a lease.
func (d *Directory) Displaced() bool { return d.displaced.Load() }

// Changed returns a channel that is closed at the next change of the list, of the state or of Displaced. To miss nothing, take
// the channel first and the list afterwards.
func (d *Directory) Changed() <-chan struct{} { return *d.changed.Load() }

// Stats returns what the directory has done so far.
func (d *Directory) Stats() DirectoryStats {
	return DirectoryStats{Resyncs: d.resyncs.Load(), Gaps: d.gaps.Load(), Rebuilds: d.rebuilds.Load()}
}

// Resync reads everything again, no older than the call. After a reconnect the directory does so by itself.
//
// Errors are *outcome.Error, Unavailable when the store does not answer before ctx ends; the list stays as it is.
func (d *Directory) Resync(ctx context.Context) error {
	answer := make(chan error, 1)
	select {
	case d.ask <- answer:
	case <-d.done:
		return unavailable("resync directory of", fmt.Sprintf("mesh %q", d.s.mesh), errClosed)
	case <-ctx.Done():
		return unavailable("resync directory of", fmt.Sprintf("mesh %q", d.s.mesh), ctx.Err())
	}
	select {
	case err := <-answer:
		return err
	case <-d.done:
		return unavailable("resync directory of", fmt.Sprintf("mesh %q", d.s.mesh), errClosed)
	case <-ctx.Done():
		return unavailable("resync directory of", fmt.Sprintf("mesh %q", d.s.mesh), ctx.Err())
	}
}

// Close ends the following and waits for it. The last list stays readable. It may be called any number of times.
func (d *Directory) Close() error {
	d.once.Do(d.abandon)
	<-d.done
	return nil
}

// publish makes list the present one if it differs, and wakes those who wait for a change.
func (d *Directory) publish(list map[string]Member) {
	same := maps.EqualFunc(d.list, list, func(a, b Member) bool { return a.Revision == b.Revision })
	d.list = list
	if same {
		return
	}
	all := make([]Member, 0, len(list))
	for _, m := range list {
		all = append(all, m)
	}
	d.members.Store(NewMembers(all))
	d.wake()
}

func (d *Directory) wake() {
	next := make(chan struct{})
	close(*d.changed.Swap(&next))
}

// setDisplaced notes whether the node's own descriptor is another's.
func (d *Directory) setDisplaced(displaced bool) {
	if d.displaced.Swap(displaced) == displaced {
		return
	}
	if displaced {
		d.s.log.Warn("this node's descriptor was changed by somebody else", zap.String("key", descKey(d.cfg.Lease.RID())))
	}
	d.wake()
}

// setState changes the state and says why, when it is not the one already.
func (d *Directory) setState(s DirectoryState, why string) {
	if old := DirectoryState(d.state.Swap(uint32(s))); old != s {
		d.members.Store(d.members.Load().expiredIf(s == DirectoryExpired))
		level := zap.DebugLevel // a reconnect makes it stale and fresh again: the connection's own lines tell of that
		switch {
		case s == DirectoryExpired:
			level = zap.WarnLevel
		case old == DirectoryExpired:
			level = zap.InfoLevel
		}
		d.s.log.Log(level, "directory is "+s.String(), zap.Stringer("was", old), zap.String("why", why), zap.Int("members", len(d.list)))
		d.wake()
	}
}
