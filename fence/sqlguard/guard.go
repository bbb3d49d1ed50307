package sqlguard

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"natsfabric/fence"
	"natsfabric/outcome"
)

// DefaultTable is the guard table's name unless Config says otherwise.
const DefaultTable = "fabric_guard"

// Config says what a Guard guards.
type Config struct {
	// Dialect is the database's. Required.
	Dialect Dialect
	// Table is the guard table, schema.table allowed (DefaultTable). Names are taken as they are written: PostgreSQL
	// folds the names of unquoted statements to lower case.
	Table string
	// Resource is the key of the guard's row and stands in errors. Required.
	Resource string
	// Source is the one source whose tokens the guard takes; with "" the first token that the row sees binds it.
	Source string
}

// Guard guards whatever is written in a transaction that entered it, and what one statement writes by Exec.
//
// Concurrency: any number of goroutines, processes and machines may use guards of the same row.
type Guard struct {
	gate  *fence.Gate
	d     Dialect
	table string // quoted
	// enter writes the token if it may where there is a row, raise also where there is none, and read returns what stands there.
	enter, raise, read string

	texts texts // of Exec, by statement and number of arguments
}

// New returns a guard. It talks to no database. Errors are of the configuration.
func New(c Config) (*Guard, error) {
	if c.Table == "" {
		c.Table = DefaultTable
	}
	if err := c.Dialect.check(); err != nil {
		return nil, err
	}
	table, err := quoted("Config.Table", c.Table, 1)
	switch {
	case err != nil:
		return nil, err
	case c.Resource == "":
		return nil, errors.New("sqlguard: Config.Resource is empty: it names the guard's row")
	}
	g := &Guard{gate: fence.NewGate(c.Resource, c.Source), d: c.Dialect, table: table}
	w := &writer{d: g.d}
	g.raising(w)
	g.enter, g.raise, g.read = g.entering(&writer{d: g.d}), w.String(), fmt.Sprintf("SELECT source, token FROM %s WHERE resource = %s", table, g.d.Placeholder(1))
	return g, nil
}

// entering returns the statement that writes a token into the row if it may. Its parameters are those of raising.
func (g *Guard) entering(w *writer) string {
	resource, source, token := w.param(), w.param(), w.param()
	return fmt.Sprintf("UPDATE %s SET token = %s WHERE %s <= %[2]s", g.table, token, g.found(resource, source))
}

// found is the condition that the row is the guard's and its source's, up to the comparison of its token.
func (g *Guard) found(resource, source string) string {
	return fmt.Sprintf("resource = %s AND source %s = %s AND token %[2]s", resource, g.d.Bytewise, source)
}

// raising writes the statement that makes a token the highest if it may. Its parameters are resource, source and token.
func (g *Guard) raising(w *writer) {
	fmt.Fprintf(w, "INSERT INTO %s AS g (resource, source, token) VALUES (%s, %s, %s)", g.table, w.param(), w.param(), w.param())
	fmt.Fprintf(w, " ON CONFLICT (resource) DO UPDATE SET token = excluded.token"+
		" WHERE g.source %[1]s = excluded.source AND g.token %[1]s <= excluded.token", g.d.Bytewise)
}

// Schema returns the statement that makes the guard table unless it is there. Run it once, as a migration.
func Schema(table string) (string, error) {
	if table == "" {
		table = DefaultTable
	}
	name, err := quoted("table", table, 1)
	if err != nil {
		return "", err
	}
	return "CREATE TABLE IF NOT EXISTS " + name + " (resource TEXT PRIMARY KEY, source TEXT NOT NULL, token TEXT NOT NULL)", nil
}

// Enter checks the token of ctx and holds the guard's row until tx ends: what tx writes from here on is guarded, and
// another holder's Enter or Raise waits for its end. It must be the first statement of tx. On every error tx has been
// rolled back. Refusals: *fence.StaleError, *fence.SourceError, InvalidOperation without a token.
func (g *Guard) Enter(ctx context.Context, tx Tx) error {
	if err := g.write(ctx, tx); err != nil {
		return errors.Join(err, rollback(tx))
	}
	g.gate.Pass()
	return nil
}

// Do begins a transaction, enters it, calls write and commits; after an error, or a panic, it rolls back and returns the
// error as it is. What has become of a commit that failed is the database's to say. opts may be nil.
func (g *Guard) Do(ctx context.Context, db *sql.DB, opts *sql.TxOptions, write func(tx *sql.Tx) error) error {
	if _, err := g.gate.Token(ctx); err != nil {
		return err // no need to ask the database
	}
	tx, err := db.BeginTx(ctx, opts)
	if err != nil {
		return g.failed(err)
	}
	defer tx.Rollback() //nolint:errcheck // after a commit there is nothing to roll back, before one it ends with the connection
	if err := g.Enter(ctx, tx); err != nil {
		return err
	}
	if err := write(tx); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return g.failed(err)
	}
	return nil
}

// Raise makes the token of ctx the highest seen, so that from its return on no older holder writes (FE-11). It refuses
// as Enter does, and waits for a transaction that has entered, until ctx ends. On every error a transaction given as q has
// been rolled back.
func (g *Guard) Raise(ctx context.Context, q Querier) error {
	err := g.write(ctx, q)
	if tx, ok := q.(Tx); ok && err != nil {
		return errors.Join(err, rollback(tx))
	}
	return err
}

// Highest returns the highest token that the database has seen, and false when there was none.
func (g *Guard) Highest(ctx context.Context, q Querier) (fence.Token, bool, error) {
	t, err := g.seen(ctx, q)
	return t, !t.IsZero(), err
}

// Stats returns what this guard has decided; other processes' are not in it.
func (g *Guard) Stats() fence.Stats { return g.gate.Stats() }

func (g *Guard) write(ctx context.Context, q Querier) error {
	t, err := g.gate.Token(ctx)
	if err != nil {
		return err
	}
	// Nearly always the row is there, and a plain UPDATE costs the database less than an INSERT that conflicts.
	for _, statement := range []string{g.enter, g.raise} {
		changed, err := exec(ctx, q, statement, g.gate.Resource(), t.Source, t.Numbers())
		if err != nil || changed {
			return g.failed(err)
		}
	}
	seen, err := g.seen(ctx, q)
	if err != nil {
		return err
	}
	return refusal(g.gate, t, seen)
}

// seen reads the highest token, zero when there was none.
func (g *Guard) seen(ctx context.Context, q Querier) (fence.Token, error) {
	t, err := readToken(q.QueryRowContext(ctx, g.read, g.gate.Resource()))
	if errors.Is(err, sql.ErrNoRows) {
		return fence.Token{}, nil
	}
	return t, g.failed(err)
}

func (g *Guard) failed(err error) error { return failed(g.gate, err) }

// failed names the resource in an error of the database's.
func failed(g *fence.Gate, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("guarded write resource %q: %w", g.Resource(), err)
}

// exec reports whether the statement changed a row.
func exec(ctx context.Context, q Querier, query string, args ...any) (bool, error) {
	res, err := q.ExecContext(ctx, query, args...)
	if err != nil {
		return false, err
	}
	n, err := res.RowsAffected()
	return n > 0, err
}

// readToken reads a row of source and numbers. A row that no guarded write has touched has the zero Token.
func readToken(row *sql.Row) (fence.Token, error) {
	var source, numbers string
	if err := row.Scan(&source, &numbers); err != nil || source == "" && numbers == "" {
		return fence.Token{}, err
	}
	return fence.ParseToken(source + ":" + numbers)
}

// refusal explains why the database changed no row: what stands there now refuses the token, or has changed since.
func refusal(g *fence.Gate, t, seen fence.Token) error {
	if err := g.Judge(t, seen); err != nil {
		return err
	}
	return outcome.New("guarded write", outcome.Unavailable, outcome.NotAccepted, fmt.Sprintf("resource %q", g.Resource()),
		"the database refused the write, and what it compared with has changed since")
}

// rollback ends a refused transaction. One that has ended already, with its connection or its context, is as good.
func rollback(tx Tx) error {
	if err := tx.Rollback(); err != nil && !errors.Is(err, sql.ErrTxDone) {
		return fmt.Errorf("rolling back: %w", err)
	}
	return nil
}
