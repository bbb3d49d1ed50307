package objects

import (
	"maps"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"natsfabric/channels"
	"natsfabric/internal/wire"
	"natsfabric/kvlocation"
)

// Message follow (FO-4.2b): after a committed move this node sends on what reaches it for an object that has gone, to where
// it has gone. It follows committed moves only, for a time, and within bounds.
const (
	// MaxHops is how often one message is sent on.
	MaxHops = 8
	// MaxFollowed and MaxFollowedBytes bound what is sent on for one move.
	MaxFollowed      = 1024
	MaxFollowedBytes = 16 << 20

	// maxFollows bounds the objects whose moves are followed; more are not.
	maxFollows = 1 << 17
)

// follows is what this node follows.
type follows struct {
	mu   sync.Mutex
	by   map[kvlocation.ObjectKey]*followed
	live gauge // moves
}

// followed is one object that has gone.
type followed struct {
	at   place
	move *followedMove
}

// followedMove is one move that is followed; guarded by follows.mu.
type followedMove struct {
	keys            []kvlocation.ObjectKey
	messages, bytes int
	over            bool
	timer           *time.Timer
}

func (fs *follows) init() { fs.by = make(map[kvlocation.ObjectKey]*followed) }

// add follows the objects of a departure for a while.
func (fs *follows) add(d *Departure, at place, during time.Duration) {
	if during <= 0 {
		return
	}
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if len(fs.by)+len(d.parts) > maxFollows {
		return
	}
	m := &followedMove{}
	for _, p := range d.parts {
		key := p.o.key()
		if old := fs.by[key]; old != nil {
			fs.endLocked(old.move)
		}
		fs.by[key] = &followed{at: d.placeOf(p.o, at), move: m}
		m.keys = append(m.keys, key)
	}
	fs.live.add(1)
	m.timer = time.AfterFunc(during, func() { fs.end(m) })
}

func (fs *follows) end(m *followedMove) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	fs.endLocked(m)
}

// endLocked ends the follow of a move.
func (fs *follows) endLocked(m *followedMove) {
	if m.over {
		return
	}
	m.over = true
	m.timer.Stop()
	for _, key := range m.keys {
		if f := fs.by[key]; f != nil && f.move == m {
			delete(fs.by, key)
		}
	}
	fs.live.add(-1)
}

// forget ends the follow of one object, which is here again. Until then it goes on, a reservation for the unit's return
// notwithstanding: its present owner serves until it is sealed, and from the moment at which the object arrives here its
// own queue comes first.
func (fs *follows) forget(key kvlocation.ObjectKey) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	f := fs.by[key]
	if f == nil {
		return
	}
	delete(fs.by, key)
	for _, other := range f.move.keys {
		if g := fs.by[other]; g != nil && g.move == f.move {
			return
		}
	}
	fs.endLocked(f.move)
}

// clear ends every follow.
func (fs *follows) clear() {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	for _, f := range fs.by {
		fs.endLocked(f.move)
	}
}

// where returns where an object has gone, while it is followed.
func (fs *follows) where(key kvlocation.ObjectKey) (at place, ok bool) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if f := fs.by[key]; f != nil {
		return f.at, true
	}
	return at, false
}

// charge returns where an object has gone if one more message of that size may be sent there.
func (fs *follows) charge(key kvlocation.ObjectKey, size int) (at place, ok bool) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	f := fs.by[key]
	if f == nil || f.move.messages >= MaxFollowed || f.move.bytes+size > MaxFollowedBytes {
		return at, false
	}
	f.move.messages++
	f.move.bytes += size
	return f.at, true
}

// hopsOf reads how often a message was sent on; what cannot be read counts as too often.
func hopsOf(h nats.Header) int {
	text := h.Get(wire.HeaderHops)
	if text == "" {
		return 0
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		return MaxHops
	}
	return n
}

// onward returns where a message of that size, sent on so often already, may follow its object.
func (s *Service) onward(key kvlocation.ObjectKey, hops, size int) (at place, ok bool) {
	if at, ok = s.follows.where(key); !ok {
		return at, false
	}
	m, here := s.cfg.Directory.Members().Get(at.rid)
	if hops < MaxHops && here && m.Lifecycle == at.lifecycle && s.router.PeerSelectable(&m) {
		at, ok = s.follows.charge(key, size)
	} else {
		ok = false
	}
	if !ok {
		s.stats.followRefused.Add(1)
	}
	return at, ok
}

// follow sends a message on to where its object has gone. It returns false when it is not followed: it is then to be
// refused.
func (s *Service) follow(in *channels.Inbound, key kvlocation.ObjectKey, verb string) bool {
	if in.Shared() {
		return false // a plain client's is a call of this node's own
	}
	h := in.Header()
	hops := hopsOf(h)
	at, ok := s.onward(key, hops, int(sizeOf(in.Data(), h)))
	if !ok {
		return false
	}
	with := make(nats.Header, len(h)+1)
	maps.Copy(with, h)
	with[wire.HeaderHops] = []string{strconv.Itoa(hops + 1)}
	token, _ := wire.EscapeID(key.ID)
	if err := s.router.Forward(at.rid, at.lifecycle, s.subject(at.rid, at.lifecycle, verb, key.Kind, token), in.ReplyTo(), in.Data(), with); err != nil {
		return false
	}
	s.stats.followed.Add(1)
	return true
}

// handOn sends a message that was held here to where its object has gone. The error says that it was sent on too often, or could not be sent.
func (s *Service) handOn(at place, key kvlocation.ObjectKey, p parcel) error {
	if p.hops >= MaxHops {
		s.stats.followRefused.Add(1)
		return whyMoved.refusal("", key.String(), true)
	}
	h := make(nats.Header, len(p.header)+4)
	maps.Copy(h, p.header)
	h[wire.HeaderHops] = []string{strconv.Itoa(p.hops + 1)}
	if p.chain != "" {
		h[wire.HeaderChain] = []string{p.chain}
	}
	if p.mark != "" && s.companion != nil {
		h[s.companion.header] = []string{p.mark}
	}
	verb := verbMessage
	if !p.broadcast.IsZero() {
		verb = verbMember
		h[wire.HeaderSpot] = []string{p.broadcast.String()}
	}
	token, _ := wire.EscapeID(key.ID)
	return s.router.Forward(at.rid, at.lifecycle, s.subject(at.rid, at.lifecycle, verb, key.Kind, token), p.reply, p.data, h)
}
