package channels

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/nats-io/nats.go"

	"natsfabric/internal/wire"
	"natsfabric/outcome"
)

// Service is a protocol between process runs, on top of a router. The router subscribes
// fab.<mesh>.node.<rid>.<lifecycle>.<name>.> for it and refuses what must not be taken in before the service sees it:
// while the node is not serving, without a valid lease, past its deadline, and without a deadline after a freeze.
type Service struct {
	// Name is the service's token in its subjects. "ch", "hello" and an r followed by digits are taken.
	Name string
	// Handle takes a message into a queue of the service, or refuses it. It runs on the subscription's goroutine, one
	// message after the other per subject, and must not block.
	Handle func(*Inbound)
	// Shared are subjects beyond the process run's own that the service takes part in as a member of the queue group
	// "fabric": while the router is serving, and drained when it is not.
	Shared []string
}

func (s *Service) check() error {
	if err := wire.CheckName("Service.Name", s.Name); err != nil {
		return err
	}
	epoch := strings.HasPrefix(s.Name, "r") && len(s.Name) > 1 && strings.Trim(s.Name[1:], "0123456789") == ""
	switch {
	case s.Name == "ch", s.Name == "hello", epoch:
		return fmt.Errorf("Service.Name %q is not allowed: the router uses that subject itself", s.Name)
	case s.Handle == nil:
		return errors.New("Service.Handle is required")
	}
	return nil
}

// service is a Service that is listened for.
type service struct {
	r      *Router
	name   string
	handle func(*Inbound)
	prefix int // length of the own subjects up to the tail
	muted  atomic.Bool
	stats  serviceStats

	inbox  *intake
	groups []*group
}

// Listen begins to take messages for a service, and returns when the NATS server has the subscriptions. It ends with
// Close, which drains the shared subjects. The error names the field of s that is wrong, or is an *outcome.Error:
// AlreadyExists when the name is taken in this router, InvalidOperation in a client that is no node, ShuttingDown after
// Close, Unavailable when the connection is down.
func (r *Router) Listen(ctx context.Context, s Service) error {
	if err := s.check(); err != nil {
		return fmt.Errorf("channels: %w", err)
	}
	const op = "listen"
	target := "service " + s.Name
	if r.cfg.Lifecycle == 0 {
		return fail(op, outcome.InvalidOperation, outcome.NotAccepted, target, "only a node has services, and this is a client")
	}
	svc := &service{r: r, name: s.Name, handle: s.Handle}
	if err := r.beginService(svc, s.Shared); err != nil {
		return err
	}
	if err := r.flush(ctx); err != nil {
		r.serveMu.Lock()
		defer r.serveMu.Unlock()
		svc.removeLocked()
		return outcome.Wrap(op, outcome.Unavailable, outcome.NotAccepted, target, "subscribing", err)
	}
	return nil
}

// beginService registers a service and opens its subscriptions.
func (r *Router) beginService(svc *service, shared []string) error {
	const op = "listen"
	target := "service " + svc.name
	r.serveMu.Lock()
	defer r.serveMu.Unlock()
	if r.ended {
		return outcome.Wrap(op, outcome.ShuttingDown, outcome.NotAccepted, target, "", errClosed)
	}
	if (*r.services.Load())[svc.name] != nil {
		return fail(op, outcome.AlreadyExists, outcome.NotAccepted, target, "this node has it already")
	}
	own := r.cfg.Mesh.NodeService(r.cfg.RID, r.cfg.Lifecycle, svc.name)
	svc.prefix = len(own) + 1
	var err error
	if svc.inbox, err = r.subscribe(own+".>", "", svc.takeOwn); err != nil {
		return outcome.Wrap(op, outcome.Unavailable, outcome.NotAccepted, target, "subscribing", err)
	}
	for _, subject := range shared {
		svc.groups = append(svc.groups, &group{r: r, subject: subject, take: svc.takeShared})
	}
	services := maps.Clone(*r.services.Load())
	services[svc.name] = svc
	r.services.Store(&services)
	if err := svc.resizeLocked(); err != nil {
		svc.removeLocked()
		return outcome.Wrap(op, outcome.Unavailable, outcome.NotAccepted, target, "subscribing", err)
	}
	return nil
}

// resizeLocked takes part in the shared subjects while the router is serving, and only then.
func (s *service) resizeLocked() error {
	want := 0
	if s.r.serving.Load() {
		want = 1
	}
	var errs []error
	for _, g := range s.groups {
		errs = append(errs, g.resizeLocked(want))
	}
	return errors.Join(errs...)
}

// removeLocked forgets a service that never began.
func (s *service) removeLocked() {
	services := maps.Clone(*s.r.services.Load())
	delete(services, s.name)
	s.r.services.Store(&services)
	s.r.unsubscribe(s.inbox.sub)
	for _, g := range s.groups {
		_ = g.resizeLocked(0) // on a connection that is down
	}
}

// Mute makes a service refuse every new message from now on, with Unavailable and NotAccepted; the subscriptions stay
// to say so. It does nothing when there is no such service.
func (r *Router) Mute(name string) {
	if s := (*r.services.Load())[name]; s != nil {
		s.muted.Store(true)
	}
}

func (s *service) takeOwn(in *intake, m *nats.Msg)    { s.receive(in, m, s.prefix) }
func (s *service) takeShared(in *intake, m *nats.Msg) { s.receive(in, m, 0) }

// receive hands a message to the service or refuses it.
func (s *service) receive(in *intake, m *nats.Msg, tail int) {
	s.stats.received.Add(1)
	msg := &Inbound{s: s, msg: m, tail: tail}
	msg.blob, _ = wire.ParseReply(m.Reply)
	because := whyDraining
	if !s.muted.Load() {
		because = in.screen(&msg.blob)
	}
	if because != whyNot {
		s.stats.refused[because].Add(1)
		s.r.refuse(m, s.r.refusals[because])
		return
	}
	s.handle(msg)
}

// leaveServicesLocked begins to drain the shared subjects and returns the subscriptions that leave.
func (r *Router) leaveServicesLocked() (leaving []*intake, err error) {
	for _, s := range *r.services.Load() {
		err = errors.Join(err, s.resizeLocked())
		for _, g := range s.groups {
			leaving = append(leaving, g.leaving...)
		}
	}
	return leaving, err
}

// closeServices gives up the services' own subjects, as closeInbox does, and waits until no Handle runs any more.
func (r *Router) closeServices(ctx context.Context) {
	all := slices.Collect(maps.Values(*r.services.Load()))
	for _, s := range all {
		r.unsubscribe(s.inbox.sub)
	}
	for _, s := range all {
		awaitClosed(ctx, s.inbox)
	}
}

// awaitClosed waits until the subscription of an intake has handled its last message.
func awaitClosed(ctx context.Context, in *intake) {
	select {
	case <-in.closed:
	case <-ctx.Done():
	}
}
