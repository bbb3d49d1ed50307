package session

import (
	"context"
	"errors"
	"strings"

	"github.com/nats-io/nats.go"

	"natsfabric/channels"
	"natsfabric/outcome"
	"natsfabric/session/internal/frame"
)

// verbIn is where the frames of a NATS client come in: fab.<mesh>.node.<rid>.<lifecycle>.ses.in.<session ID>.
const verbIn = "in"

// natsClient is a client that speaks plain NATS: its frames come as messages to the session's subject, and those for it
// go to the reply subject of its hello.
type natsClient struct {
	s     *Service
	inbox string
	epoch uint64 // the connection's when the session was opened: a session does not outlive it
}

func (n *natsClient) kind() Transport { return TransportNATS }
func (n *natsClient) most() int       { return int(n.s.cfg.Conn.MaxPayload()) }
func (n *natsClient) close(*ending)   {}
func (n *natsClient) cut()            {}

func (n *natsClient) send(data []byte) error {
	if n.s.router.Epoch() != n.epoch {
		return errNewEpoch
	}
	err := n.s.cfg.Conn.Publish(n.inbox, data)
	if errors.Is(err, nats.ErrMaxPayload) {
		n.s.stats.pushesDropped.Add(1) // an answer was cut before
		return nil
	}
	return err
}

// openNATS begins a session for a hello that came on the mesh's subject for that.
func (s *Service) openNATS(in *channels.Inbound) {
	inbox := in.ReplyTo()
	if inbox == "" || strings.HasPrefix(inbox, "fab.") {
		in.Refuse(outcome.InvalidOperation, "a hello needs a reply subject of the client's own: the session's frames go there", nil)
		return
	}
	to := &natsClient{s: s, inbox: inbox, epoch: s.router.Epoch()}
	if e := s.reserve(); e != nil {
		s.refuse(to, e)
		return
	}
	started := s.spawn(func() {
		ctx, cancel := context.WithTimeout(s.ctx, s.cfg.HandshakeTimeout)
		defer cancel()
		who, e := s.greet(ctx, in.Data(), Hello{Transport: TransportNATS})
		if e == nil {
			_, e = s.open(to, who, func(id string) string {
				return s.router.RunSubject(s.cfg.RID, s.cfg.Lifecycle, serviceName, verbIn+"."+id)
			})
		}
		if e != nil {
			s.refuse(to, e)
		}
	})
	if !started {
		s.unreserve()
		s.refuse(to, errDraining)
	}
}

// takeNATS takes a frame of a NATS client's.
func (s *Service) takeNATS(in *channels.Inbound, id string) {
	c := s.session(id)
	if c == nil || c.kind != TransportNATS {
		in.Refuse(outcome.NotFound, "the node has no such session: open a new one", nil)
		return
	}
	if len(in.Data()) > s.cfg.MaxMessage+frame.MaxHeader+1+slack {
		c.end(&ending{kind: outcome.CapacityExceeded, text: "a frame is far above the size that the welcome names", count: endMalformed("").count})
		return
	}
	s.run(c.take(in.Data()))
}
