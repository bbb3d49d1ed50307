package kvlocation

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"natsfabric/internal/monotime"
)

const (
	// noticeBuffer bounds the notices that were received and not yet looked at. What does not fit is dropped, which
	// the next check sees.
	noticeBuffer = 4096
	// noticeTime is how long the notice of an acknowledged own renewal may take.
	noticeTime = 2 * time.Second
	// maxRebuildPause bounds the growing time between two rebuilds of a source that stays silent.
	maxRebuildPause = 30 * time.Second
)

var errClosed = errors.New("the directory was closed")

// source is where a directory hears of changes: core subscriptions to what the stream republishes.
type source struct {
	notices chan *nats.Msg
	subs    []*nats.Subscription
	prefix  string // of the notices' subjects; the key follows
	dropped int    // notices that found no room, of the present subscriptions

	heard     uint64        // the sequence of the last own renewal whose notice came
	heardAt   monotime.Time // when it came
	unheard   monotime.Time // since when an acknowledged own renewal waits for its notice; 0 when none does
	rebuildAt monotime.Time // not before this
	pause     time.Duration // until the rebuild after the next
}

func (d *Directory) subscribe() error {
	d.prefix = d.s.mesh.ChangePrefix() + "." + changeNodes + "."
	d.notices, d.dropped = make(chan *nats.Msg, noticeBuffer), 0
	subjects := []string{d.prefix + descKey(">")}
	if d.cfg.Lease != nil {
		subjects = append(subjects, d.prefix+leaseKey(d.cfg.Lease.RID()))
	}
	for _, subject := range subjects {
		sub, err := d.s.nc.ChanSubscribe(subject, d.notices)
		if err != nil {
			d.unsubscribe()
			return err
		}
		d.subs = append(d.subs, sub)
	}
	if l := d.cfg.Lease; l != nil {
		d.heard = max(d.heard, l.acked.Load().revision) // the notice of what was stored before went to nobody
	}
	return nil
}

func (d *Directory) unsubscribe() {
	for _, sub := range d.subs {
		_ = sub.Unsubscribe() // fails only on a closed connection, which has no subscriptions
	}
	d.subs = nil
}

// follow is the directory's goroutine.
func (d *Directory) follow() {
	defer close(d.done)
	defer d.unsubscribe()
	var (
		check  = time.NewTicker(d.cfg.Interval)
		beat   = time.NewTicker(min(d.cfg.Interval, time.Second))
		resync = time.NewTimer(d.untilResync())
	)
	defer check.Stop()
	defer beat.Stop()
	defer resync.Stop()
	status := d.status
	for {
		select {
		case <-d.ctx.Done():
			return
		case st, ok := <-status:
			switch {
			case !ok:
				status = nil
			case st == nats.CONNECTED:
				d.suspect("the connection was replaced")
				_ = d.restore()
			default:
				d.suspect("the connection is lost")
			}
		case m := <-d.notices:
			d.takeNotices(m)
		case <-beat.C:
			d.checkHeartbeat()
		case <-check.C:
			d.check()
		case <-resync.C:
			if d.suspicion == "" {
				d.bounded(func(ctx context.Context) error { return d.readAll(ctx, false) })
			}
			resync.Reset(d.untilResync())
		case answer := <-d.ask:
			d.suspect("it was asked for")
			answer <- d.restore()
		}
	}
}

func (d *Directory) untilResync() time.Duration {
	return d.cfg.Resync - rand.N(d.cfg.Resync/5+1)
}

// suspect keeps the list as it is until everything was read again.
func (d *Directory) suspect(why string) {
	d.suspicion = why
	if d.State() == DirectoryFresh {
		d.setState(DirectoryStale, why)
	}
}

// restore reads everything again after something may have been missed.
func (d *Directory) restore() error {
	return d.bounded(func(ctx context.Context) error { return d.readAll(ctx, true) })
}

// bounded runs one conversation with the store (a write and a read at most) and notes whether the store answered.
func (d *Directory) bounded(talk func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(d.ctx, 2*d.s.attempt)
	defer cancel()
	err := talk(ctx)
	switch {
	case err == nil:
	case monotime.Since(d.contact) > d.cfg.Grace:
		d.suspicion = err.Error()
		d.setState(DirectoryExpired, d.suspicion)
	default:
		d.suspect(err.Error())
	}
	return err
}

// lost reports whether notices were dropped since the last call. A gap shows only with the next change of the same key.
func (d *Directory) lost() bool {
	before := d.dropped
	d.dropped = 0
	for _, sub := range d.subs {
		n, _ := sub.Dropped() // fails only on a closed connection
		d.dropped += max(0, n)
	}
	return d.dropped > before
}

// check asks the store for its newest descriptor, at a cost that does not depend on the mesh's size, and reads
// everything when that one is not known or notices were dropped.
func (d *Directory) check() {
	if d.lost() {
		d.gaps.Add(1)
		d.suspect("notices were dropped")
	}
	if d.suspicion != "" {
		_ = d.restore()
		return
	}
	_ = d.bounded(func(ctx context.Context) error {
		m, err := d.s.newest(ctx, d.s.nodes, descKey(">"))
		if err != nil {
			return err
		}
		d.contact = monotime.Now()
		if m != nil && m.revision > d.known[m.key] {
			d.gaps.Add(1)
			d.newest = max(d.newest, m.revision) // by a replica that is further than the next one to answer, perhaps
			return d.readAll(ctx, false)
		}
		return nil
	})
}

// checkHeartbeat replaces a source that did not deliver the notice of an own renewal.
func (d *Directory) checkHeartbeat() {
	if d.cfg.Lease == nil {
		return
	}
	acked, now := d.cfg.Lease.acked.Load(), monotime.Now()
	switch {
	case acked.revision <= d.heard:
		d.unheard, d.pause = 0, 0
	case d.unheard == 0 || d.heardAt > d.unheard:
		d.unheard = acked.at
	}
	if d.unheard == 0 || now.Sub(d.unheard) < noticeTime || now < d.rebuildAt {
		return
	}
	d.rebuilds.Add(1)
	d.pause = min(max(2*d.pause, noticeTime), maxRebuildPause)
	d.rebuildAt = now.Add(d.pause)
	d.s.log.Warn("no notice of an own renewal: the subscription to changes is replaced and everything is read again",
		zap.Uint64("revision", acked.revision), zap.Duration("for", now.Sub(d.unheard)))
	d.unheard = 0
	d.suspect("the source of changes was silent")
	d.unsubscribe()
	if err := d.subscribe(); err != nil {
		d.s.log.Warn("cannot subscribe to changes", zap.Error(err))
	}
	_ = d.restore()
}

// takeNotices applies a notice and all that wait behind it, and then publishes one new list.
func (d *Directory) takeNotices(m *nats.Msg) {
	var (
		list map[string]Member // a copy of the present one, made with the first change
		gap  bool
	)
	for more := true; more; {
		key, ok := strings.CutPrefix(m.Subject, d.prefix)
		seq, err1 := strconv.ParseUint(first(m.Header, "Nats-Sequence"), 10, 64)
		last, err2 := strconv.ParseUint(first(m.Header, "Nats-Last-Sequence"), 10, 64)
		switch {
		case !ok || err1 != nil || err2 != nil:
			gap = true // not from the stream: the store itself is asked
		case strings.HasPrefix(key, leaseKey("")):
			d.heard, d.heardAt = max(d.heard, seq), monotime.Now()
		case seq > d.known[key]:
			gap = gap || last != d.known[key]
			if list == nil {
				list = maps.Clone(d.list)
			}
			d.apply(list, &storedMsg{key: key, revision: seq, value: m.Data, header: m.Header})
		}
		select {
		case m = <-d.notices:
		default:
			more = false
		}
	}
	if d.suspicion != "" {
		return // everything is read again anyway, and until then nobody joins the list
	}
	if list != nil {
		d.publish(list)
	}
	if gap {
		d.gaps.Add(1)
		_ = d.bounded(func(ctx context.Context) error { return d.readAll(ctx, false) })
	}
}

// apply brings one message of a descriptor's key into list.
func (d *Directory) apply(list map[string]Member, m *storedMsg) {
	d.known[m.key] = m.revision
	d.newest = max(d.newest, m.revision)
	rid := strings.TrimPrefix(m.key, descKey(""))
	if l := d.cfg.Lease; l != nil && rid == l.RID() {
		d.setDisplaced(l.published.displacedBy(m, m.revision))
	}
	if m.deleted() {
		delete(list, rid)
		return
	}
	desc, err := decodeDescriptor(m)
	if err != nil {
		d.s.log.Warn("descriptor ignored", zap.Error(err))
		delete(list, rid)
		return
	}
	if _, there := list[rid]; !there && len(list) >= MaxMembers {
		if !d.full {
			d.full = true
			d.s.log.Error(fmt.Sprintf("the mesh has more than %d descriptors: the rest is ignored; forget nodes that are gone", MaxMembers))
		}
		return
	}
	list[rid] = Member{Descriptor: desc, Revision: m.revision}
}

// readAll reads every descriptor in one consistent state and makes only the changes that it shows (FO-7d). With
// confirm it reads no older than a write of its own, so that it also proves that the store takes writes.
func (d *Directory) readAll(ctx context.Context, confirm bool) error {
	ctx, cancel := d.s.bound(ctx)
	defer cancel()
	floor := d.newest
	if confirm {
		if err := d.s.nc.FlushWithContext(ctx); err != nil { // the subscriptions are with the server
			return unavailable("read descriptors", d.s.nodes.name, err)
		}
		seq, err := d.s.probe(ctx, d.s.nodes)
		if err != nil {
			return err
		}
		floor = seq
	}
	snap, err := d.s.snapshot(ctx, d.s.nodes, floor, descKey(">"))
	if err != nil {
		return err
	}
	d.resyncs.Add(1)
	d.contact, d.suspicion = monotime.Now(), ""
	d.full = false
	list := make(map[string]Member, len(snap.msgs))
	d.known = make(map[string]uint64, len(snap.msgs))
	for _, m := range snap.msgs {
		if strings.HasPrefix(m.key, descKey("")) { // not the probe, which is read along
			d.apply(list, m)
		}
	}
	if l := d.cfg.Lease; l != nil && d.known[descKey(l.RID())] == 0 {
		d.setDisplaced(l.published.displacedBy(nil, snap.upTo))
	}
	d.publish(list)
	d.setState(DirectoryFresh, "everything was read")
	return nil
}

// newest reads the newest message that matches a pattern of keys, from any replica; nil when there is none.
func (s *Store) newest(ctx context.Context, b *bucket, pattern string) (*storedMsg, error) {
	body, err := json.Marshal(map[string]string{"last_by_subj": b.subject + pattern})
	if err != nil {
		return nil, refused("read", b.name, err)
	}
	c := s.mux.take(false)
	defer s.mux.put(c)
	c.msg.Subject, c.msg.Data = b.direct, body
	var found *storedMsg
	err = s.ask(ctx, c, "read", b.name+" "+pattern, func(m *nats.Msg) (bool, error) {
		if statusOf(m) == "404" {
			return true, nil
		}
		var err error
		found, err = b.parse(m)
		return err == nil, err
	})
	return found, err
}
