package device

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"natsfabric/fence"
)

// LabelRole is the label that names a node's role in the database.
const LabelRole = "db_role"

// DefaultSettle is the time between the two looks of a check.
const DefaultSettle = time.Second

// PostgreSQL fences a node by its role in a PostgreSQL database: the role may not log in any more, its sessions are ended,
// and nothing that it has prepared waits to be committed. Each node needs a role of its own.
//
// A session that is just being opened when the right is taken shows up a moment later: a check therefore looks twice, settle
// apart, and both looks must find nothing.
type PostgreSQL struct {
	name   string
	db     *sql.DB
	role   func(fence.Target) string
	settle time.Duration
}

// NewPostgreSQL returns the device. db is a connection as a role that may alter the others and end their sessions. role
// says which role a target has; nil takes its label LabelRole. settle is the time between the two looks of a check; 0 means
// DefaultSettle.
func NewPostgreSQL(name string, db *sql.DB, role func(fence.Target) string, settle time.Duration) *PostgreSQL {
	if role == nil {
		role = func(t fence.Target) string { return t.Labels[LabelRole] }
	}
	if settle == 0 {
		settle = DefaultSettle
	}
	return &PostgreSQL{name: name, db: db, role: role, settle: settle}
}

// Name returns the device's name.
func (p *PostgreSQL) Name() string { return p.name }

// Fence takes the right to log in, ends the role's sessions, and says what it sees then.
func (p *PostgreSQL) Fence(ctx context.Context, t fence.Target) fence.Report {
	role := p.role(t)
	if err := p.cut(ctx, role); err != nil {
		return fence.Report{Detail: fmt.Sprintf("role %q: %v", role, err)}
	}
	for {
		r := p.look(ctx, role)
		if r.Answer != fence.NotFenced {
			return r
		}
		if err := p.end(ctx, role); err != nil {
			return fence.Report{Detail: fmt.Sprintf("role %q: %v", role, err)}
		}
		select {
		case <-ctx.Done():
			return r
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// Check looks twice.
func (p *PostgreSQL) Check(ctx context.Context, t fence.Target) fence.Report {
	role := p.role(t)
	if r := p.look(ctx, role); r.Answer != fence.Fenced {
		return r
	}
	select {
	case <-ctx.Done():
		return fence.Report{Detail: "the second look: " + context.Cause(ctx).Error()}
	case <-time.After(p.settle):
	}
	return p.look(ctx, role)
}

// cut takes the right to log in.
func (p *PostgreSQL) cut(ctx context.Context, role string) error {
	var statement sql.NullString
	err := p.db.QueryRowContext(ctx, "SELECT format('ALTER ROLE %I NOLOGIN', rolname) FROM pg_roles WHERE rolname = $1 AND rolname <> session_user", role).Scan(&statement)
	if errors.Is(err, sql.ErrNoRows) {
		return errors.New("there is no such role, or it is the device's own")
	}
	if err == nil {
		_, err = p.db.ExecContext(ctx, statement.String)
	}
	if err == nil {
		err = p.end(ctx, role)
	}
	return err
}

func (p *PostgreSQL) end(ctx context.Context, role string) error {
	_, err := p.db.ExecContext(ctx, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = $1", role)
	return err
}

// look says what the database shows of the role now.
func (p *PostgreSQL) look(ctx context.Context, role string) fence.Report {
	var login bool
	var sessions, prepared int
	err := p.db.QueryRowContext(ctx, "SELECT rolcanlogin, (SELECT count(*) FROM pg_stat_activity WHERE usename = rolname),"+
		" (SELECT count(*) FROM pg_prepared_xacts WHERE owner = rolname) FROM pg_roles WHERE rolname = $1", role).Scan(&login, &sessions, &prepared)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		// A name that was never right looks like this too.
		return fence.Report{Detail: fmt.Sprintf("there is no role %q", role)}
	case err != nil:
		return fence.Report{Detail: fmt.Sprintf("role %q: %v", role, err)}
	case login || sessions > 0 || prepared > 0:
		return fence.Report{Answer: fence.NotFenced, Detail: fmt.Sprintf("role %q may log in: %t, it has %d sessions and %d prepared transactions", role, login, sessions, prepared)}
	}
	return fence.Report{Answer: fence.Fenced, Detail: fmt.Sprintf("role %q may not log in and has no session", role)}
}
