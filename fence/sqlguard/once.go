package sqlguard

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"natsfabric/outcome"
)

// Entered stands in a statement of Guard.Exec for the condition that the token may write.
const Entered = "{entered}"

// Exec runs one statement that writes, guarded, in one round trip and one commit. It is the cheap form of Do for a single
// statement: check, raise and write are one statement for the database. The query is an UPDATE, an INSERT with a SELECT or a
// DELETE, and has the word of Entered once, where its condition belongs:
//
//	guard.Exec(ctx, db, "UPDATE account SET balance = $1 WHERE id = $2 AND "+sqlguard.Entered, 100, "alice")
//
// Parameters must be numbered ($1 on PostgreSQL, ?1 on SQLite); the guard's own follow them. The result is the statement's:
// no row means that its other conditions matched none. Refusals, with which nothing is written, and a transaction given as
// q is rolled back: *fence.StaleError, *fence.SourceError, InvalidOperation without a token, for a query of another form,
// and for a Dialect that is neither PostgreSQL's nor SQLite's, which needs Do.
//
// A holder raises the guard first, as with the other forms. On PostgreSQL a statement sees what was committed before it
// began: one that had to wait for an older holder's transaction would miss the rows which that has inserted. After Raise
// there is no such transaction.
func (g *Guard) Exec(ctx context.Context, q Querier, query string, args ...any) (sql.Result, error) {
	res, err := g.once(ctx, q, query, args)
	if err == nil {
		g.gate.Pass()
		return res, nil
	}
	if tx, ok := q.(Tx); ok {
		err = errors.Join(err, rollback(tx))
	}
	return nil, err
}

func (g *Guard) once(ctx context.Context, q Querier, query string, args []any) (sql.Result, error) {
	t, err := g.gate.Token(ctx)
	if err != nil {
		return nil, err
	}
	text, err := g.text(query, len(args))
	if err != nil {
		return nil, err
	}
	all := append(append(make([]any, 0, len(args)+3), args...), g.gate.Resource(), t.Source, t.Numbers())
	for raised := false; ; raised = true {
		res, err := q.ExecContext(ctx, text, all...)
		if err != nil {
			return nil, g.failed(err)
		}
		if n, err := res.RowsAffected(); err != nil || n > 0 {
			return res, g.failed(err)
		}
		seen, err := g.seen(ctx, q)
		switch {
		case err != nil:
			return nil, err
		case seen == t: // it was let in, and its own conditions matched no row
			return res, nil
		case raised:
			return nil, refusal(g.gate, t, seen)
		}
		if err := g.gate.Judge(t, seen); err != nil {
			return nil, err
		}
		if err := g.write(ctx, q); err != nil { // the guard's first holder, or one that has not raised
			return nil, err
		}
	}
}

// text returns the statement with its condition.
func (g *Guard) text(query string, args int) (string, error) {
	id := fmt.Sprint(args, query)
	if text, ok := g.texts.get(id); ok {
		return text, nil
	}
	wrong := ""
	verb, _, _ := strings.Cut(strings.TrimSpace(query), " ")
	switch strings.ToUpper(verb) {
	case "UPDATE", "INSERT", "DELETE":
	default:
		wrong = "it must begin with UPDATE, INSERT or DELETE"
	}
	if n := strings.Count(query, Entered); n != 1 {
		wrong = fmt.Sprintf("it has %s %d times instead of once", Entered, n)
	}
	if g.d.once == 0 {
		wrong = fmt.Sprintf("dialect %q has no form for one statement: use Do", g.d.Name)
	}
	if wrong != "" {
		return "", outcome.New("guarded write", outcome.InvalidOperation, outcome.NotAccepted, fmt.Sprintf("resource %q", g.gate.Resource()),
			fmt.Sprintf("the statement %.80q is not allowed: %s", query, wrong))
	}
	w := &writer{d: g.d, n: args}
	resource, source, token := w.param(), w.param(), w.param()
	where := g.found(resource, source)
	with, condition := "", fmt.Sprintf("EXISTS (SELECT 1 FROM %s WHERE %s = %s)", g.table, where, token)
	if g.d.once == onceByWriting {
		// The condition asks nothing of the row that the statement writes, so it is decided before that row is looked for: every
		// statement locks the guard's row first, and one that has waited for its own row does not come back to it.
		with = fmt.Sprintf("WITH fabric_entered AS (UPDATE %s SET token = %s WHERE %s <= %[2]s RETURNING 1) ", g.table, token, where)
		condition = "EXISTS (SELECT 1 FROM fabric_entered)"
	}
	return g.texts.put(id, with+strings.Replace(query, Entered, condition, 1)), nil
}
