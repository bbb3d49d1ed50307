package objects

import (
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"natsfabric/channels"
	"natsfabric/internal/wire"
	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// movedMail is a message that came with its object from another node: its caller waits on the reply subject that the
// parcel names, and hears where the object is now.
type movedMail struct {
	s   *Service
	key kvlocation.ObjectKey
	p   parcel
}

func (m *movedMail) Data() []byte                    { return m.p.data }
func (m *movedMail) Header() nats.Header             { return m.p.header }
func (m *movedMail) OneWay() bool                    { return m.p.oneWay }
func (m *movedMail) Sender() (channels.Sender, bool) { return m.p.sender, m.p.sent }

// LocalDeadline is the caller's deadline on this machine's clock.
func (m *movedMail) LocalDeadline() (time.Time, bool) { return m.s.localDeadline(m.p.deadline) }

// Past reports whether the deadline has certainly passed.
func (m *movedMail) Past(time.Time) bool { return m.s.deadlinePast(m.p.deadline) }

// Accept sends the acceptance notice, if one was asked for.
func (m *movedMail) Accept() { m.s.router.Notice(m.p.reply, m.route(nil)) }

// Reply answers the caller.
func (m *movedMail) Reply(data []byte, h nats.Header) {
	if m.p.oneWay {
		return
	}
	if err := m.s.router.Answer(m.p.reply, data, m.route(h)); err != nil {
		m.s.log.Debug("answering a message that moved with its object", zap.Error(err))
	}
}

// Fail answers with an error of an accepted message.
func (m *movedMail) Fail(err error) {
	if !m.p.oneWay {
		m.refuse(outcome.Wrap("turn", outcome.KindOf(err), outcome.Accepted, "", "", err))
	}
}

// refuse answers with an error whose acceptance stays.
func (m *movedMail) refuse(err error) {
	if err := m.s.router.AnswerError(m.p.reply, plain(err)); err != nil {
		m.s.log.Debug("answering a message that moved with its object", zap.Error(err))
	}
}

// route adds where the object is to what a caller that is a program of the fabric hears.
func (m *movedMail) route(h nats.Header) nats.Header {
	if _, fabric := channels.SenderOf(m.p.reply); !fabric {
		return h
	}
	return m.s.withPlace(h, m.key)
}

// withPlace adds where an object of this node is to headers, which are not changed.
func (s *Service) withPlace(h nats.Header, key kvlocation.ObjectKey) nats.Header {
	o := s.rt.find(key.Kind, key.ID)
	if o == nil || o.is() == objectArriving {
		return h
	}
	with := make(nats.Header, len(h)+1)
	for k, v := range h {
		with[k] = v
	}
	with[wire.HeaderRoute] = []string{s.placeHere(o).String()}
	return with
}

// localDeadline turns a deadline on the store's clock in Unix milliseconds, 0 for none, into one on this machine's clock.
func (s *Service) localDeadline(ms int64) (time.Time, bool) {
	now := time.Now()
	at := s.router.StoreDeadline(now)
	if ms == 0 || at.IsZero() {
		return time.Time{}, false
	}
	return time.UnixMilli(ms).Add(now.Sub(at)), true
}

// deadlinePast reports whether a deadline on the store's clock has certainly passed.
func (s *Service) deadlinePast(ms int64) bool {
	return ms != 0 && s.cfg.Lease.Clock().Past(time.UnixMilli(ms))
}

// mailOf makes the mail of a parcel that came to o. accepted: the source's mailbox had taken it. It is a due timer's when the
// parcel names one.
func (s *Service) mailOf(o *object, p parcel, accepted bool) *envelope {
	if p.timer != "" {
		e := newOwn(mailTimer)
		e.own().timer = &timer{o: o, name: p.timer, data: p.data, state: timerDue, due: tick()}
		e.data = p.data
		e.word = envLeft | envAccepted
		return e
	}
	e := newRemote(&movedMail{s: s, key: o.key(), p: p})
	e.chain = parseChain(p.chain)
	if p.mark != "" || !p.broadcast.IsZero() {
		e.own().about = &about{broadcast: p.broadcast, mark: p.mark}
	}
	if accepted {
		e.word = envLeft | envAccepted
	}
	return e
}

// parcelOf is what goes along of a message from elsewhere; a message of this process has no reply route yet, which is local.
func (s *Service) parcelOf(e *envelope) (p parcel, local bool) {
	p = parcel{data: e.data, header: e.header, oneWay: e.oneWay, mark: e.mark(), broadcast: e.broadcast()}
	if e.chain != nil {
		p.chain = e.chain.String()
	}
	inbound := func(in *channels.Inbound) {
		p.reply = in.ReplyTo()
		if d, ok := in.Deadline(); ok {
			p.deadline = d.UnixMilli()
		}
		p.sender, p.sent = in.Sender()
		p.hops = hopsOf(in.Header())
	}
	switch m := e.from.(type) {
	case *channels.Inbound:
		inbound(m)
	case foreign:
		inbound(m.Inbound)
	case *routed:
		inbound(m.Inbound)
	case *movedMail:
		p.reply, p.deadline, p.sender, p.sent, p.hops = m.p.reply, m.p.deadline, m.p.sender, m.p.sent, m.p.hops
	case *storedFirst:
		p.reply, p.deadline = m.doc.Reply, m.doc.Deadline
	default:
		p.sender, p.sent = channels.Sender{RID: s.cfg.RID, Lifecycle: s.cfg.Lifecycle}, true
		if e.deadline != 0 && !e.oneWay {
			if d := s.router.StoreDeadline(localTime(e.deadline)); !d.IsZero() {
				p.deadline = d.UnixMilli()
			}
		}
		return p, true
	}
	return p, false
}
