package device

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"natsfabric/fence"
)

// LabelUser is the label that names a node's user in NATS.
const LabelUser = "nats_user"

// Permission is what decides whether a NATS user may connect: an auth call-out, the embedded servers' own authentication, a
// configuration that is reloaded.
type Permission interface {
	// Revoke takes the permission away, on every server, before it returns nil.
	Revoke(ctx context.Context, user string) error
	// Revoked reports whether the user's permission is taken away on every server.
	Revoked(ctx context.Context, user string) (bool, error)
}

// DenyList is a Permission for servers and auth call-outs inside this process: they ask Denied at each connect.
//
// Concurrency: its methods may be called from any goroutine. The zero value denies nobody.
type DenyList struct {
	mu    sync.RWMutex
	users map[string]bool
}

// Denied reports whether the user was denied.
func (l *DenyList) Denied(user string) bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.users[user]
}

// Revoke denies the user. It never fails.
func (l *DenyList) Revoke(_ context.Context, user string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.users == nil {
		l.users = map[string]bool{}
	}
	l.users[user] = true
	return nil
}

// Revoked is Denied.
func (l *DenyList) Revoked(_ context.Context, user string) (bool, error) { return l.Denied(user), nil }

// Allow takes a denial back.
func (l *DenyList) Allow(user string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.users, user)
}

// NATS fences a node by its user in NATS: its permission is taken away first, so that it cannot come back, then every
// server kicks its connections, and then every server is asked what it still has. All of that goes through the system
// account. Each node needs a user of its own.
//
// It is told how many servers there are: one that does not answer may have the node connected, so the answer is Unknown
// until all have answered. When a server is gone for good, or one was added, make a device with the new number.
type NATS struct {
	name       string
	system     *nats.Conn
	servers    int
	permission Permission
	user       func(fence.Target) string
}

// NewNATS returns the device. system is a connection of the system account, servers the number of servers that clients can
// be connected to. user says which user a target has, as the servers' connection list names it; nil takes its label LabelUser.
func NewNATS(name string, system *nats.Conn, servers int, p Permission, user func(fence.Target) string) *NATS {
	if user == nil {
		user = func(t fence.Target) string { return t.Labels[LabelUser] }
	}
	return &NATS{name: name, system: system, servers: servers, permission: p, user: user}
}

// Name returns the device's name.
func (d *NATS) Name() string { return d.name }

// Fence takes the permission away and kicks until no server has a connection of the user, or ctx ends.
func (d *NATS) Fence(ctx context.Context, t fence.Target) fence.Report {
	user := d.user(t)
	if user == "" {
		return fence.Report{Detail: fmt.Sprintf("node %q has no user", t.Node)}
	}
	if err := d.permission.Revoke(ctx, user); err != nil {
		return fence.Report{Detail: fmt.Sprintf("taking the permission of user %q: %v", user, err)}
	}
	for {
		lists, err := d.list(ctx, user)
		left := 0
		for _, l := range lists {
			for _, c := range l.Data.Conns {
				left++
				if kicked := d.kick(ctx, l.Server.ID, c.CID); kicked != nil && err == nil {
					err = kicked
				}
			}
		}
		switch {
		case err != nil && ctx.Err() != nil:
			return fence.Report{Detail: err.Error()}
		case err == nil && left == 0:
			return d.Check(ctx, t)
		}
		select {
		case <-ctx.Done():
			return fence.Report{Answer: fence.NotFenced, Detail: fmt.Sprintf("user %q has %d connections", user, left)}
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Check asks whether the permission is gone, and then every server for the user's connections.
func (d *NATS) Check(ctx context.Context, t fence.Target) fence.Report {
	user := d.user(t)
	if user == "" {
		return fence.Report{Detail: fmt.Sprintf("node %q has no user", t.Node)}
	}
	revoked, err := d.permission.Revoked(ctx, user)
	switch {
	case err != nil:
		return fence.Report{Detail: fmt.Sprintf("the permission of user %q: %v", user, err)}
	case !revoked:
		return fence.Report{Answer: fence.NotFenced, Detail: fmt.Sprintf("user %q may connect", user)}
	}
	lists, err := d.list(ctx, user)
	left := 0
	for _, l := range lists {
		left += len(l.Data.Conns)
	}
	switch {
	case left > 0:
		return fence.Report{Answer: fence.NotFenced, Detail: fmt.Sprintf("user %q has %d connections", user, left)}
	case err != nil:
		return fence.Report{Detail: err.Error()}
	}
	return fence.Report{Answer: fence.Fenced, Detail: fmt.Sprintf("user %q may not connect and is connected to none of %d servers", user, len(lists))}
}

// connections is one server's answer.
type connections struct {
	Server struct {
		ID string `json:"id"`
	} `json:"server"`
	Data *struct {
		Conns []struct {
			CID uint64 `json:"cid"`
		} `json:"connections"`
		Total int `json:"total"`
	} `json:"data"`
	Error *struct {
		Description string `json:"description"`
	} `json:"error"`
}

// listTime bounds the wait for all servers, and pageLimit what one of them tells of a user at once: a user with more
// connections is kicked page by page.
const (
	listTime  = 2 * time.Second
	pageLimit = 256
)

// surplusTime is how long an answer of one server too many is waited for: the cluster may have grown since the number of its
// servers was said.
const surplusTime = 250 * time.Millisecond

// list asks every server for the user's connections. It returns the answers that came also beside an error.
func (d *NATS) list(ctx context.Context, user string) ([]connections, error) {
	if d.servers < 1 {
		return nil, fmt.Errorf("the number of servers is said to be %d: it must be at least 1", d.servers)
	}
	ctx, cancel := context.WithTimeout(ctx, listTime)
	defer cancel()
	inbox := d.system.NewInbox()
	sub, err := d.system.SubscribeSync(inbox)
	if err != nil {
		return nil, err
	}
	defer sub.Unsubscribe() //nolint:errcheck // it ends with the connection at the latest
	req, err := json.Marshal(map[string]any{"auth": true, "user": user, "limit": pageLimit})
	if err != nil {
		return nil, err
	}
	if err := d.system.PublishRequest("$SYS.REQ.SERVER.PING.CONNZ", inbox, req); err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	var out []connections
	for {
		wait, stop := ctx, context.CancelFunc(func() {})
		if len(seen) == d.servers {
			wait, stop = context.WithTimeout(ctx, surplusTime)
		}
		m, err := sub.NextMsgWithContext(wait)
		stop()
		switch {
		case err != nil && len(seen) == d.servers:
			return out, nil
		case err != nil:
			return out, fmt.Errorf("%d of %d servers have answered: %w", len(seen), d.servers, err)
		}
		var c connections
		if err := json.Unmarshal(m.Data, &c); err != nil || c.Error != nil || c.Data == nil || c.Server.ID == "" {
			return out, fmt.Errorf("a server's answer cannot be used: %.200q", m.Data)
		}
		if !seen[c.Server.ID] {
			seen[c.Server.ID] = true
			out = append(out, c)
		}
		if len(seen) > d.servers {
			return out, fmt.Errorf("more servers have answered than the %d that there are said to be", d.servers)
		}
	}
}

// kick ends one connection.
func (d *NATS) kick(ctx context.Context, server string, cid uint64) error {
	ctx, cancel := context.WithTimeout(ctx, listTime)
	defer cancel()
	_, err := d.system.RequestWithContext(ctx, "$SYS.REQ.SERVER."+server+".KICK", fmt.Appendf(nil, `{"cid":%d}`, cid))
	return err
}
