package sqlguard

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"strings"
	"sync"
)

// Querier is what *sql.DB, *sql.Conn and *sql.Tx have in common.
type Querier interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Tx is a transaction: *sql.Tx, or what wraps one. *sql.DB is none.
type Tx interface {
	Querier
	Commit() error
	Rollback() error
}

// Dialect is how a database writes what the guards need. It must know INSERT ... ON CONFLICT (...) DO UPDATE ... WHERE,
// and count the rows that an UPDATE matched.
type Dialect struct {
	// Name stands in errors.
	Name string
	// Placeholder returns the n-th parameter, counted from 1. It must carry the number: one parameter stands in several
	// places of a statement.
	Placeholder func(n int) string
	// Bytewise is what makes a comparison of texts bytewise, written after the left operand.
	Bytewise string

	// once is how Guard.Exec guards a single statement; a Dialect that is put together by hand has no such form.
	once onceForm
}

// onceForm is how one statement checks the token in the guard table and writes to another table.
type onceForm uint8

const (
	// onceByWriting: a WITH clause writes the guard's row, which orders the statement among all others that do.
	onceByWriting onceForm = iota + 1
	// onceByReading: the statement reads the guard's row. That is enough where a database has one writer at a time: nobody
	// can raise the guard between what a writing statement reads and its commit.
	onceByReading
)

// PostgreSQL is the dialect of PostgreSQL.
func PostgreSQL() Dialect {
	return Dialect{Name: "PostgreSQL", Placeholder: func(n int) string { return "$" + strconv.Itoa(n) }, Bytewise: `COLLATE "C"`, once: onceByWriting}
}

// SQLite is the dialect of SQLite, from 3.24 on.
func SQLite() Dialect {
	return Dialect{Name: "SQLite", Placeholder: func(n int) string { return "?" + strconv.Itoa(n) }, Bytewise: "COLLATE BINARY", once: onceByReading}
}

func (d Dialect) check() error {
	if d.Placeholder == nil || d.Bytewise == "" {
		return fmt.Errorf("sqlguard: Dialect %q needs Placeholder and Bytewise: take PostgreSQL() or SQLite(), or fill both", d.Name)
	}
	return nil
}

// maxName is the greatest length of a name, PostgreSQL's.
const maxName = 63

// quoted returns the name of a column, or of a table that may stand in a schema, as an identifier.
func quoted(field, name string, dots int) (string, error) {
	parts := strings.Split(name, ".")
	if len(parts) > dots+1 {
		return "", badName(field, name)
	}
	for i, p := range parts {
		if p == "" || len(p) > maxName {
			return "", badName(field, name)
		}
		for j := range len(p) {
			c := p[j]
			if letter := c == '_' || c|0x20 >= 'a' && c|0x20 <= 'z'; !letter && (j == 0 || c < '0' || c > '9') {
				return "", badName(field, name)
			}
		}
		parts[i] = `"` + p + `"`
	}
	return strings.Join(parts, "."), nil
}

func badName(field, name string) error {
	return fmt.Errorf("sqlguard: %s %.80q: a name must be 1 to %d letters, digits and underscores and begin with no digit; a table may be schema.table", field, name, maxName)
}

// writer writes a statement, whose parameters it counts.
type writer struct {
	strings.Builder
	d Dialect
	n int
}

// param returns the next parameter.
func (w *writer) param() string {
	w.n++
	return w.d.Placeholder(w.n)
}

// params returns the next n parameters.
func (w *writer) params(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = w.param()
	}
	return out
}

// texts remembers statements.
type texts struct {
	mu sync.RWMutex
	m  map[string]string // guarded by mu; at most maxTexts
}

// maxTexts bounds the statements that a guard remembers. A program has as many as it has sets of columns, or statements, to
// write.
const maxTexts = 256

func (t *texts) get(id string) (string, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	text, ok := t.m[id]
	return text, ok
}

// put keeps a statement, while there is room, and returns it.
func (t *texts) put(id, text string) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.m == nil {
		t.m = map[string]string{}
	}
	if len(t.m) < maxTexts {
		t.m[id] = text
	}
	return text
}
