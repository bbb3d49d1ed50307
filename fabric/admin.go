package fabric

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"natsfabric/internal/wire"
	"natsfabric/kvlocation"
	"natsfabric/objects"
	"natsfabric/outcome"
	"natsfabric/relocate"
)

// adminTimeout bounds the work behind one operator request.
const adminTimeout = 4 * time.Second

// adminAtOnce is how many operator requests one node answers at a time.
const adminAtOnce = 4

// adminPending bounds the operator requests that wait at one node, and their bytes.
const (
	adminPending      = 256
	adminPendingBytes = 1 << 20
)

// adminService is the token of a process run's own admin subjects: fab.<mesh>.node.<rid>.<lifecycle>.admin.<verb>.
const adminService = "admin"

// admin answers operator requests, JSON in and out: on fab.<mesh>.admin.<verb>, where any Ready node answers, one per
// request, and on the process run's own subjects, for what only it can tell.
type admin struct {
	n        *Node
	releases jobs[objects.ReleaseRequest, objects.ReleaseReport]
	moves    jobs[MoveRequest, *relocate.Moved]
	drains   jobs[relocate.Mode, *relocate.Result]
	subs     []*nats.Subscription
	closed   sync.WaitGroup // one for each subscription that has not handled its last message
	workers  chan struct{}  // holds an element for each request that is being answered
	working  sync.WaitGroup
}

// adminRequest is one operator request.
type adminRequest struct {
	verb string
	data []byte
	own  bool // it came on the process run's own subject
}

// verbs are the operator requests that a node answers.
var verbs = map[string]func(context.Context, *Node, adminRequest) (any, error){
	"nodes":    adminNodes,
	"locate":   adminLocate,
	"explain":  adminExplain,
	"objects":  adminObjects,
	"release":  adminRelease,
	"relocate": adminRelocate,
	"drain":    adminDrain,
	"sessions": adminSessions,
	"workers":  adminWorkers,
}

// NodesReply is the answer to the operator request `nodes`.
type NodesReply struct {
	Mesh       string                  `json:"mesh"`
	AnsweredBy string                  `json:"answered_by"`
	Nodes      []kvlocation.NodeStatus `json:"nodes"`
}

func adminNodes(ctx context.Context, n *Node, _ adminRequest) (any, error) {
	nodes, err := n.store.Nodes(ctx)
	return NodesReply{Mesh: n.cfg.Mesh, AnsweredBy: n.cfg.RID, Nodes: nodes}, err
}

func openAdmin(ctx context.Context, n *Node) (*admin, error) {
	a := &admin{n: n, workers: make(chan struct{}, adminAtOnce)}
	a.releases.init("release", releaseTime)
	a.moves.init("relocate", moveTime)
	a.drains.init("drain", drainTime)
	for _, s := range []struct{ subject, group string }{{n.mesh.Admin("*"), wire.QueueGroup}, {n.adminSubject("*"), ""}} {
		sub, err := n.link.nc.QueueSubscribe(s.subject, s.group, a.handle)
		if err != nil {
			a.close(ctx)
			return nil, outcome.Wrap("start", outcome.Unavailable, outcome.NotAccepted, "admin", "cannot subscribe", err)
		}
		a.closed.Add(1)
		sub.SetClosedHandler(func(string) { a.closed.Done() })
		a.subs = append(a.subs, sub)
		if err := sub.SetPendingLimits(adminPending, adminPendingBytes); err != nil {
			a.close(ctx)
			return nil, outcome.Wrap("start", outcome.InternalFailure, outcome.NotAccepted, "admin", "cannot bound the subscription", err)
		}
	}
	return a, nil
}

// adminSubject is the process run's own subject of an operator request.
func (n *Node) adminSubject(verb string) string {
	return n.mesh.NodeService(n.cfg.RID, n.lease.Lifecycle(), adminService) + "." + verb
}

// handle lets one request be answered beside the others, or waits while too many are. One whose answer may not go where it says is not
// begun.
func (a *admin) handle(m *nats.Msg) {
	if m.Reply == "" || !wire.Answerable(m.Reply) {
		return
	}
	a.workers <- struct{}{}
	a.working.Go(func() {
		defer func() { <-a.workers }()
		a.reply(m)
	})
}

func (a *admin) reply(m *nats.Msg) {
	verb := m.Subject[strings.LastIndexByte(m.Subject, '.')+1:]
	answer, err := a.answer(adminRequest{verb: verb, data: m.Data, own: m.Subject == a.n.adminSubject(verb)})
	reply := nats.NewMsg(m.Reply)
	if err == nil {
		reply.Data, err = json.Marshal(answer)
	}
	if err == nil && int64(len(reply.Data)) > a.n.link.nc.MaxPayload() {
		err = outcome.New("admin", outcome.CapacityExceeded, outcome.Accepted, verb, "the answer is larger than the server's payload limit")
	}
	if err != nil {
		e := asError("admin", verb, err)
		reply.Data, reply.Header = nil, e.Headers(e.Acceptance)
		reply.Header.Set(wire.HeaderFrom, a.n.cfg.RID)
	}
	// A failure to answer is the asker's timeout; there is nobody else to tell.
	_ = a.n.link.nc.PublishMsg(reply)
}

func (a *admin) answer(req adminRequest) (any, error) {
	do, ok := verbs[req.verb]
	if !ok {
		return nil, outcome.New("admin", outcome.NotFound, outcome.NotAccepted, req.verb, "there is no such operator request: there are "+strings.Join(slices.Sorted(maps.Keys(verbs)), ", "))
	}
	if s := a.n.State(); !s.Serves() {
		return nil, outcome.New("admin", outcome.Unavailable, outcome.NotAccepted, req.verb, "this node is "+string(s))
	}
	ctx, cancel := context.WithTimeout(context.Background(), adminTimeout)
	defer cancel()
	return do(ctx, a.n, req)
}

// decode reads the request's JSON. A field that is not known is refused: an operator who misspelt the field that narrows a
// release means less than all.
func (r adminRequest) decode(into any) error {
	d := json.NewDecoder(bytes.NewReader(r.data))
	d.DisallowUnknownFields()
	err := d.Decode(into)
	if errors.Is(err, io.EOF) {
		return r.invalid("the payload is empty: it must be a JSON object")
	}
	if err == nil && d.More() {
		err = errors.New("something follows the JSON object")
	}
	if err != nil {
		return r.invalid(fmt.Sprintf("the payload cannot be read: %v", err))
	}
	return nil
}

// invalid is the error of a request whose content is not allowed.
func (r adminRequest) invalid(detail string) *outcome.Error {
	return outcome.New("admin", outcome.InvalidOperation, outcome.NotAccepted, r.verb, detail)
}

// close answers what has come, until ctx ends, and stops the jobs that are under way. With a release, whoever asks again
// elsewhere goes on.
func (a *admin) close(ctx context.Context) {
	a.releases.stop()
	a.moves.stop()
	a.drains.stop()
	for _, sub := range a.subs {
		if !a.n.link.nc.IsConnected() || sub.Drain() != nil {
			_ = sub.Unsubscribe() // there is nobody to answer, and nothing to drain
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		a.closed.Wait()
		a.working.Wait()
	}()
	select {
	case <-done:
	case <-ctx.Done():
	case <-time.After(adminTimeout + time.Second):
	}
}

// wait waits for the jobs that were under way. A record write without an answer is pursued until the node's objects are
// closed, so it comes after that.
func (a *admin) wait() {
	a.releases.wait()
	a.moves.wait()
	a.drains.wait()
}
