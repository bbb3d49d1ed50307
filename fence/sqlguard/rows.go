package sqlguard

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"

	"natsfabric/fence"
	"natsfabric/outcome"
)

// The columns of a guarded row, unless RowsConfig says otherwise.
const (
	DefaultSourceColumn = "fence_source"
	DefaultTokenColumn  = "fence_token"
)

// RowsConfig says which rows a Rows guards.
type RowsConfig struct {
	// Dialect is the database's. Required.
	Dialect Dialect
	// Table holds the rows, schema.table allowed. Names are taken as they are written: PostgreSQL folds the names of
	// unquoted statements to lower case. Required.
	Table string
	// Key names the columns of the primary key, or of another unique index. At least one.
	Key []string
	// SourceColumn and TokenColumn hold the token of the row's last writer (DefaultSourceColumn, DefaultTokenColumn).
	SourceColumn, TokenColumn string
	// Source is the one source whose tokens are taken; with "" each row is bound by its first guarded write.
	Source string
}

// Column is a column and the value that a write gives it.
type Column struct {
	Name  string
	Value any
}

// Rows guards the rows of a table, each by the token of its last writer.
//
// Concurrency: any number of goroutines, processes and machines may write to the same rows.
type Rows struct {
	gate          *fence.Gate
	d             Dialect
	table         string   // quoted
	key           []string // quoted
	source, token string   // quoted
	read          string   // the statement that reads a row's token

	texts texts // by form and columns
}

// NewRows returns the guard of a table's rows. It talks to no database. Errors are of the configuration.
func NewRows(c RowsConfig) (*Rows, error) {
	if c.SourceColumn == "" {
		c.SourceColumn = DefaultSourceColumn
	}
	if c.TokenColumn == "" {
		c.TokenColumn = DefaultTokenColumn
	}
	if len(c.Key) == 0 {
		return nil, errors.New("sqlguard: RowsConfig.Key is empty: it names the columns of a unique key")
	}
	r := &Rows{gate: fence.NewGate(c.Table, c.Source), d: c.Dialect, key: slices.Clone(c.Key)}
	var errs [3]error
	r.table, errs[0] = quoted("RowsConfig.Table", c.Table, 1)
	r.source, errs[1] = quoted("RowsConfig.SourceColumn", c.SourceColumn, 0)
	r.token, errs[2] = quoted("RowsConfig.TokenColumn", c.TokenColumn, 0)
	if err := errors.Join(append(errs[:], c.Dialect.check())...); err != nil {
		return nil, err
	}
	for i, k := range r.key {
		var err error
		if r.key[i], err = quoted("RowsConfig.Key", k, 0); err != nil {
			return nil, err
		}
	}
	w := &writer{d: r.d}
	fmt.Fprintf(w, "SELECT %s, %s FROM %s WHERE ", r.source, r.token, r.table)
	r.where(w, w.params(len(r.key)))
	r.read = w.String()
	return r, nil
}

// Schema returns the statements that add the two columns to the table, for a migration. Rows that are there already take
// any first token.
func (r *Rows) Schema() []string {
	var out []string
	for _, c := range []string{r.source, r.token} {
		out = append(out, fmt.Sprintf("ALTER TABLE %s ADD COLUMN %s TEXT NOT NULL DEFAULT ''", r.table, c))
	}
	return out
}

// Update writes the columns of the row with the key under the token of ctx, in one statement. Refusals, with which
// nothing is written, and a transaction given as q is rolled back: *fence.StaleError, *fence.SourceError,
// InvalidOperation without a token or with a name that is none, NotFound when there is no such row.
func (r *Rows) Update(ctx context.Context, q Querier, key []any, set ...Column) error {
	return r.write(ctx, q, key, set, update)
}

// Put is Update, or the row's insertion when there is none.
func (r *Rows) Put(ctx context.Context, q Querier, key []any, set ...Column) error {
	return r.write(ctx, q, key, set, put)
}

// Raise makes the token of ctx the highest that the row has seen, so that from its return on no older holder writes the
// row (FE-11). It refuses as Update does: where there is no row, nothing can remember. Put one, or use a Guard.
func (r *Rows) Raise(ctx context.Context, q Querier, key []any) error {
	return r.write(ctx, q, key, nil, update)
}

// Stats returns what this guard has decided; other processes' are not in it.
func (r *Rows) Stats() fence.Stats { return r.gate.Stats() }

// The forms of statements.
const (
	update = 'u'
	put    = 'p'
)

func (r *Rows) write(ctx context.Context, q Querier, key []any, set []Column, form byte) error {
	err := r.try(ctx, q, key, set, form)
	if err == nil {
		if len(set) > 0 {
			r.gate.Pass()
		}
		return nil
	}
	if tx, ok := q.(Tx); ok {
		return errors.Join(err, rollback(tx))
	}
	return err
}

func (r *Rows) try(ctx context.Context, q Querier, key []any, set []Column, form byte) error {
	t, err := r.gate.Token(ctx)
	if err != nil {
		return err
	}
	if len(key) != len(r.key) {
		return r.wrong(outcome.InvalidOperation, fmt.Sprintf("the key has %d values, its columns are %d", len(key), len(r.key)), nil)
	}
	text, err := r.text(form, set)
	if err != nil {
		return err
	}
	args := append(make([]any, 0, len(key)+len(set)+2), key...)
	for _, c := range set {
		args = append(args, c.Value)
	}
	args = append(args, t.Source, t.Numbers())
	changed, err := exec(ctx, q, text, args...)
	if err != nil || changed {
		return failed(r.gate, err)
	}
	seen, err := readToken(q.QueryRowContext(ctx, r.read, key...))
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return r.wrong(outcome.NotFound, "there is no such row", nil)
	case err != nil:
		return failed(r.gate, err)
	}
	return refusal(r.gate, t, seen)
}

// text returns the statement of a form that writes the columns.
func (r *Rows) text(form byte, set []Column) (string, error) {
	id := string(form)
	for _, c := range set {
		id += "," + c.Name
	}
	if text, ok := r.texts.get(id); ok {
		return text, nil
	}
	names := make([]string, len(set))
	for i, c := range set {
		var err error
		if names[i], err = quoted("Column.Name", c.Name, 0); err != nil {
			return "", r.wrong(outcome.InvalidOperation, "", err)
		}
		if names[i] == r.source || names[i] == r.token || slices.Contains(r.key, names[i]) {
			return "", r.wrong(outcome.InvalidOperation, "column "+names[i]+" is the guard's or the key's", nil)
		}
	}
	w := &writer{d: r.d}
	if form == put {
		r.put(w, names)
	} else {
		r.update(w, names)
	}
	return r.texts.put(id, w.String()), nil
}

// update writes: UPDATE table SET column = .., source = .., token = .. WHERE key = .. AND <the token may>. Parameters are the
// key, the columns and the token, as in put.
func (r *Rows) update(w *writer, names []string) {
	keys := w.params(len(r.key))
	fmt.Fprintf(w, "UPDATE %s SET ", r.table)
	for _, name := range names {
		fmt.Fprintf(w, "%s = %s, ", name, w.param())
	}
	source, token := w.param(), w.param()
	fmt.Fprintf(w, "%s = %s, %s = %s WHERE ", r.source, source, r.token, token)
	r.where(w, keys)
	fmt.Fprintf(w, " AND %[1]s %[3]s IN ('', %[4]s) AND %[2]s %[3]s <= %[5]s", r.source, r.token, r.d.Bytewise, source, token)
}

// put writes: INSERT INTO table .. ON CONFLICT (key) DO UPDATE SET .. WHERE <the token may>.
func (r *Rows) put(w *writer, names []string) {
	columns := append(append(append([]string(nil), r.key...), names...), r.source, r.token)
	params, sets := w.params(len(columns)), make([]string, 0, len(columns))
	for _, n := range columns[len(r.key):] {
		sets = append(sets, n+" = excluded."+n)
	}
	fmt.Fprintf(w, "INSERT INTO %s AS g (%s) VALUES (%s) ON CONFLICT (%s) DO UPDATE SET %s", r.table,
		strings.Join(columns, ", "), strings.Join(params, ", "), strings.Join(r.key, ", "), strings.Join(sets, ", "))
	fmt.Fprintf(w, " WHERE g.%[1]s %[3]s IN ('', excluded.%[1]s) AND g.%[2]s %[3]s <= excluded.%[2]s", r.source, r.token, r.d.Bytewise)
}

// where writes: key = .. AND key = ..
func (r *Rows) where(w *writer, params []string) {
	for i, k := range r.key {
		if i > 0 {
			w.WriteString(" AND ")
		}
		fmt.Fprintf(w, "%s = %s", k, params[i])
	}
}

func (r *Rows) wrong(kind outcome.Kind, detail string, cause error) error {
	return outcome.Wrap("guarded write", kind, outcome.NotAccepted, fmt.Sprintf("resource %q", r.gate.Resource()), detail, cause)
}
