package channels

import (
	"encoding/json"
	"regexp"
	"strconv"
	"sync"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"go.uber.org/zap"

	"natsfabric/internal/wire"
)

// discoveryQueue bounds the discovery requests that wait to be answered.
const discoveryQueue = 256

// semantic is what service discovery accepts as a version.
var semantic = regexp.MustCompile(`^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z-.]+)?(\+[0-9A-Za-z-.]+)?$`)

// discovery answers $SRV.PING, $SRV.INFO and $SRV.STATS, so that `nats micro` lists every channel as a service.
type discovery struct {
	mu   sync.Mutex
	in   chan *nats.Msg
	subs map[*nats.Subscription]discoverySubject
}

// discoverySubject says what a discovery subscription asks for.
type discoverySubject struct {
	server *Server
	verb   micro.Verb
}

// add lets a server be found.
func (d *discovery) add(r *Router, s *Server) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.in == nil {
		d.in = make(chan *nats.Msg, discoveryQueue)
		d.subs = make(map[*nats.Subscription]discoverySubject)
		if !r.spawn(func() { r.answerDiscovery(d.in) }) {
			return errClosed
		}
	}
	for _, verb := range []micro.Verb{micro.PingVerb, micro.InfoVerb, micro.StatsVerb} {
		root := micro.APIPrefix + "." + verb.String()
		for _, subject := range []string{root, root + "." + s.spec.Name, root + "." + s.spec.Name + "." + r.serviceID()} {
			sub, err := r.nc.ChanSubscribe(subject, d.in)
			if err != nil {
				d.removeLocked(r, s)
				return err
			}
			d.subs[sub] = discoverySubject{s, verb}
		}
	}
	return nil
}

// remove hides a server again.
func (d *discovery) remove(r *Router, s *Server) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.removeLocked(r, s)
}

func (d *discovery) removeLocked(r *Router, s *Server) {
	for sub, what := range d.subs {
		if what.server == s {
			r.unsubscribe(sub)
			delete(d.subs, sub)
		}
	}
}

func (d *discovery) has(sub *nats.Subscription) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, ok := d.subs[sub]
	return ok
}

func (r *Router) answerDiscovery(in <-chan *nats.Msg) {
	for {
		select {
		case <-r.ctx.Done():
			return
		case m := <-in:
			r.srv.mu.Lock()
			what, ok := r.srv.subs[m.Sub]
			r.srv.mu.Unlock()
			if !ok || m.Reply == "" || !wire.Answerable(m.Reply) {
				continue
			}
			data, err := json.Marshal(what.server.describe(what.verb))
			if err == nil {
				err = r.nc.Publish(m.Reply, data)
			}
			if err != nil {
				r.log.Debug("answering service discovery", zap.Error(err))
			}
		}
	}
}

// serviceID tells the members of one channel apart.
func (r *Router) serviceID() string {
	return r.cfg.RID + "-" + strconv.FormatUint(r.cfg.Lifecycle, 10)
}

// describe makes the answer to one verb.
func (s *Server) describe(verb micro.Verb) any {
	version, meta := s.r.cfg.AppVersion, map[string]string{
		"fabric_mesh": string(s.r.cfg.Mesh), "fabric_rid": s.r.cfg.RID, "fabric_kind": string(s.spec.Kind),
	}
	if !semantic.MatchString(version) {
		if version != "" {
			meta["fabric_app_version"] = version
		}
		version = "0.0.0"
	}
	id := micro.ServiceIdentity{Name: s.spec.Name, ID: s.r.serviceID(), Version: version, Metadata: meta}
	subject := s.r.cfg.Mesh.Channel(s.spec.Name)
	switch verb {
	case micro.PingVerb:
		return micro.Ping{ServiceIdentity: id, Type: micro.PingResponseType}
	case micro.InfoVerb:
		return micro.Info{
			ServiceIdentity: id, Type: micro.InfoResponseType, Description: "channel of the mesh " + string(s.r.cfg.Mesh),
			Endpoints: []micro.EndpointInfo{{Name: s.spec.Name, Subject: subject, QueueGroup: wire.QueueGroup}},
		}
	}
	st := &s.stats
	ran, busy := st.ran.Load(), st.busy.Load()
	e := &micro.EndpointStats{
		Name: s.spec.Name, Subject: subject, QueueGroup: wire.QueueGroup,
		NumRequests: int(ran), NumErrors: int(st.handlerErrors.Load()), ProcessingTime: busyDuration(busy),
	}
	if ran > 0 {
		e.AverageProcessingTime = busyDuration(busy / int64(ran))
	}
	if err := st.lastError.Load(); err != nil {
		e.LastError = (*err).Error()
	}
	return micro.Stats{ServiceIdentity: id, Type: micro.StatsResponseType, Started: s.started, Endpoints: []*micro.EndpointStats{e}}
}
