package sqlguard

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"strings"
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
	// Placeholder returns the n-th parameter, counted from 1.
	Placeholder func(n int) string
	// Bytewise is what makes a comparison of texts bytewise, written after the left operand.
	Bytewise string
}

// PostgreSQL is the dialect of PostgreSQL.
func PostgreSQL() Dialect {
	return Dialect{Name: "PostgreSQL", Placeholder: func(n int) string { return "$" + strconv.Itoa(n) }, Bytewise: `COLLATE "C"`}
}

// SQLite is the dialect of SQLite, from 3.24 on.
func SQLite() Dialect {
	return Dialect{Name: "SQLite", Placeholder: func(int) string { return "?" }, Bytewise: "COLLATE BINARY"}
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
