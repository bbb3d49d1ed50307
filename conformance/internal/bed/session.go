package bed

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"natsfabric/conformance/internal/act"
	"natsfabric/conformance/internal/history"
	"natsfabric/conformance/internal/job"
	"natsfabric/objects"
	"natsfabric/session/client"
)

// Session is a client with a WebSocket, and what it was told.
type Session struct {
	*client.Client

	mu     sync.Mutex
	events []client.Event
	pushes []client.Push
}

// SessionURL is the address at which a member takes sessions. It must have been started with -sessions.
func (m *Member) SessionURL(t testing.TB) string {
	t.Helper()
	line := m.WaitOutput(t, "sessions ")
	_, url, _ := strings.Cut(line, "sessions ")
	return strings.TrimSpace(url)
}

// Session opens a session at one of these addresses, and ends the client with the test.
func (b *Bed) Session(t testing.TB, name string, urls ...string) *Session {
	t.Helper()
	s := &Session{}
	ctx, cancel := context.WithTimeout(b.ctx, Long)
	defer cancel()
	var err error
	s.Client, err = client.Dial(ctx, client.Config{URLs: urls, Name: name, MaxBackoff: time.Second, OnPush: func(_ *client.Binding, p client.Push) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.pushes = append(s.pushes, p)
	}, OnEvent: func(e client.Event) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.events = append(s.events, e)
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// User binds the session to an incarnation of an Actor, and returns a user whose requests and sends go through the
// binding.
func (s *Session) User(t testing.TB, name, actor string, generation uint64) *User {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Long)
	defer cancel()
	bound, err := s.Bind(ctx, objects.ActorRef{ID: actor, Generation: generation}.String())
	if err != nil {
		t.Fatal(err)
	}
	u := NewUser(t, name, nil)
	u.bound = bound
	return u
}

// Binding is that of a user who has a session.
func (u *User) Binding() *client.Binding { return u.bound }

// Events returns what the client was told so far, of a kind.
func (s *Session) Events(kind client.EventKind) (es []client.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.events {
		if e.Kind == kind {
			es = append(es, e)
		}
	}
	return es
}

// Pushes returns what was pushed so far.
func (s *Session) Pushes() []client.Push {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.pushes)
}

// relayed carries an operation out through the session.
func (u *User) relayed(ctx context.Context, a *act.Act) *act.Result {
	ctx, cancel := context.WithTimeout(ctx, a.Timeout)
	defer cancel()
	j := a.Job
	if j.ID = a.ID; j.Do == "" {
		j.Do = job.Reply
	}
	r := &act.Result{ID: a.ID}
	switch a.Way {
	case history.Send:
		return r.Fail(u.bound.Send(ctx, j.Encode()))
	case history.Request:
		reply, err := u.bound.Request(ctx, j.Encode())
		r.Reply = reply
		return r.Fail(err)
	}
	return r.Fail(fmt.Errorf("a session has no way %q", a.Way))
}
