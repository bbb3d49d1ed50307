package sqltest

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite"

	"natsfabric/fabrictest"
	"natsfabric/fence"
	"natsfabric/fence/sqlguard"
)

func TestMain(m *testing.M) {
	if role := os.Getenv("SQLTEST_CHILD"); role != "" {
		os.Exit(child(role))
	}
	fabrictest.VerifyTestMain(m)
}

// postgresURL is the URL of the server that scripts/postgres started.
func postgresURL(t testing.TB) string {
	t.Helper()
	url := os.Getenv("FABRIC_POSTGRES_URL")
	if url == "" {
		t.Fatal("FABRIC_POSTGRES_URL is not set: run the tests as scripts/postgres with go -C fence/sqltest test ./...")
	}
	return url
}

// database is one kind of database under test.
type database struct {
	name    string
	dialect sqlguard.Dialect
	open    func(t testing.TB) *sql.DB
}

var databases = []database{
	{"SQLite", sqlguard.SQLite(), openSQLite},
	{"PostgreSQL", sqlguard.PostgreSQL(), openPostgreSQL},
}

func openSQLite(t testing.TB) *sql.DB {
	t.Helper()
	return open(t, "sqlite", "file:"+filepath.Join(t.TempDir(), "db")+"?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_txlock=immediate")
}

// openPostgreSQL makes a schema of the test's own.
func openPostgreSQL(t testing.TB) *sql.DB {
	t.Helper()
	return open(t, "pgx", newSchema(t))
}

// newSchema returns the URL under which the test's own schema is the one that names without schema mean.
func newSchema(t testing.TB) string {
	t.Helper()
	url := postgresURL(t)
	schema := fmt.Sprintf("t%d", time.Now().UnixNano())
	run(t, open(t, "pgx", url), "CREATE SCHEMA "+schema)
	return url + "&search_path=" + schema + "&application_name=" + schema
}

func open(t testing.TB, driver, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open(driver, dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

func run(t testing.TB, db *sql.DB, statements ...string) {
	t.Helper()
	for _, s := range statements {
		if _, err := db.Exec(s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
}

// one returns the single value that a query selects.
func one(t testing.TB, db *sql.DB, query string) string {
	t.Helper()
	var v string
	if err := db.QueryRow(query).Scan(&v); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return strings.TrimSpace(v)
}

func token(sequence uint64) fence.Token {
	return fence.Token{Source: "shop/actor/alice", Epoch: 1, Generation: 7, Sequence: sequence}
}

// with returns a context with the token, bounded.
func with(t testing.TB, tok fence.Token) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	t.Cleanup(cancel)
	return fence.WithToken(ctx, tok)
}

// orders makes a table of guarded rows with one row, 7, and returns its guard.
func orders(t testing.TB, d database, db *sql.DB) *sqlguard.Rows {
	t.Helper()
	rows, err := sqlguard.NewRows(sqlguard.RowsConfig{Dialect: d.dialect, Table: "orders", Key: []string{"id"}})
	if err != nil {
		t.Fatal(err)
	}
	run(t, db, "CREATE TABLE orders (id INTEGER PRIMARY KEY, status TEXT NOT NULL)")
	run(t, db, rows.Schema()...)
	run(t, db, "INSERT INTO orders (id, status) VALUES (7, 'NEW')")
	return rows
}

func status(v string) sqlguard.Column { return sqlguard.Column{Name: "status", Value: v} }

// accounts makes a table without token columns and a guard table, and returns the guard of resource "alice".
func accounts(t testing.TB, d database, db *sql.DB) *sqlguard.Guard {
	t.Helper()
	g, err := sqlguard.New(sqlguard.Config{Dialect: d.dialect, Resource: "alice"})
	if err != nil {
		t.Fatal(err)
	}
	schema, err := sqlguard.Schema("")
	if err != nil {
		t.Fatal(err)
	}
	run(t, db, schema, schema, "CREATE TABLE account (id TEXT PRIMARY KEY, balance INTEGER NOT NULL)", "INSERT INTO account VALUES ('alice', 0)")
	return g
}
