package sqltest

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"

	"natsfabric/fence"
	"natsfabric/fence/sqlguard"
	"natsfabric/outcome"
)

// deposit adds an amount in one guarded statement.
func deposit(d database, g *sqlguard.Guard, ctx context.Context, q sqlguard.Querier, amount int) error {
	p := d.dialect.Placeholder
	_, err := g.Exec(ctx, q, "UPDATE account SET balance = balance + "+p(1)+" WHERE id = "+p(2)+" AND "+sqlguard.Entered, amount, "alice")
	return err
}

// FE-3 with one statement that checks in one table and writes to another.
func TestOneStatement(t *testing.T) {
	each(t, func(t *testing.T, d database) {
		db := d.open(t)
		g := accounts(t, d, db)
		p := d.dialect.Placeholder
		for i, c := range []struct {
			seq uint64
			ok  bool
		}{{33, true}, {33, true}, {34, true}, {33, false}, {34, true}, {36, true}, {35, false}} {
			before := one(t, db, "SELECT balance FROM account")
			err := deposit(d, g, with(t, token(c.seq)), db, 1)
			after := one(t, db, "SELECT balance FROM account")
			if c.ok != (err == nil) || c.ok == (before == after) {
				t.Fatalf("write %d with %d: %v, %s after %s", i, c.seq, err, after, before)
			}
		}
		stale(t, deposit(d, g, with(t, token(35)), db, 1), token(35), token(36))
		bob := token(99)
		bob.Source = "shop/actor/bob"
		var other *fence.SourceError
		if err := deposit(d, g, with(t, bob), db, 1); !errors.As(err, &other) {
			t.Fatalf("a token of bob's got %v", err)
		}
		if err := deposit(d, g, context.Background(), db, 1); !errors.Is(err, outcome.InvalidOperation) {
			t.Fatalf("a write without a token got %v", err)
		}

		// Its own conditions matched nothing: no refusal. The token is raised all the same.
		for range 2 {
			res, err := g.Exec(with(t, token(37)), db, "DELETE FROM account WHERE id = "+p(1)+" AND "+sqlguard.Entered, "nobody")
			if err != nil {
				t.Fatal(err)
			}
			if n, err := res.RowsAffected(); n != 0 || err != nil {
				t.Fatalf("%d rows, %v", n, err)
			}
		}
		if high, ok, err := g.Highest(context.Background(), db); err != nil || !ok || high != token(37) {
			t.Fatalf("the highest is %s, %t, %v", high, ok, err)
		}
		insert := "INSERT INTO account (id, balance) SELECT " + p(1) + ", 5 WHERE " + sqlguard.Entered
		if _, err := g.Exec(with(t, token(37)), db, insert, "carol"); err != nil {
			t.Fatal(err)
		}
		if _, err := g.Exec(with(t, token(36)), db, insert, "dave"); err == nil {
			t.Fatal("a lower token has inserted")
		}
		if got := one(t, db, "SELECT count(*) FROM account"); got != "2" {
			t.Fatalf("%s accounts", got)
		}
		if s := g.Stats(); s.Passed != 8 || s.StoppedByToken != 4 || s.OtherSource != 1 || s.WithoutToken != 1 {
			t.Fatalf("counted %+v", s)
		}
	})
}

// Inside a transaction of the caller's: what is refused ends it, and what was let in holds the guard until it ends.
func TestOneStatementInATransaction(t *testing.T) {
	each(t, func(t *testing.T, d database) {
		db := d.open(t)
		g := accounts(t, d, db)
		if err := g.Raise(with(t, token(34)), db); err != nil {
			t.Fatal(err)
		}
		begin := func() *sql.Tx {
			tx, err := db.Begin()
			if err != nil {
				t.Fatal(err)
			}
			return tx
		}
		tx := begin()
		stale(t, deposit(d, g, with(t, token(33)), tx, 1), token(33), token(34))
		if err := tx.Commit(); !errors.Is(err, sql.ErrTxDone) {
			t.Fatalf("the refused transaction commits: %v", err)
		}
		tx = begin()
		if err := errors.Join(deposit(d, g, with(t, token(34)), tx, 1), deposit(d, g, with(t, token(34)), tx, 1)); err != nil {
			t.Fatal(err)
		}
		raised := make(chan error, 1)
		go func() { raised <- g.Raise(with(t, token(35)), db) }()
		if d.name == "PostgreSQL" {
			waitBlocked(t, db)
		}
		select {
		case err := <-raised:
			t.Fatalf("Raise returned (%v) while an older holder's transaction was open", err)
		default:
		}
		if err := errors.Join(tx.Commit(), <-raised); err != nil {
			t.Fatal(err)
		}
		if got := one(t, db, "SELECT balance FROM account"); got != "2" {
			t.Fatalf("the balance is %s", got)
		}
	})
}

// A statement that waits on PostgreSQL judges by what stands there when its turn comes, for the guard's row and for its own.
func TestOneStatementThatWaits(t *testing.T) {
	t.Parallel()
	d := databases[1]
	for _, c := range []struct {
		name    string
		first   uint64 // the token of the transaction that is open; 0 is one without a guard
		commit  bool
		second  uint64
		refused bool
		balance string
	}{
		{"behind an older holder", 33, true, 34, false, "101"},
		{"behind an older holder that gives up", 33, false, 34, false, "1"},
		{"behind a newer holder", 35, true, 34, true, "100"},
		{"behind a newer holder that gives up", 35, false, 34, false, "1"},
		{"behind a write without a guard", 0, true, 34, false, "101"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			db := d.open(t)
			g := accounts(t, d, db)
			if err := g.Raise(with(t, token(1)), db); err != nil {
				t.Fatal(err)
			}
			tx, err := db.Begin()
			if err != nil {
				t.Fatal(err)
			}
			if c.first > 0 {
				if err := g.Enter(with(t, token(c.first)), tx); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := tx.Exec("UPDATE account SET balance = balance + 100"); err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			go func() { done <- deposit(d, g, with(t, token(c.second)), db, 1) }()
			waitBlocked(t, db)
			end := tx.Rollback
			if c.commit {
				end = tx.Commit
			}
			if err := end(); err != nil {
				t.Fatal(err)
			}
			switch err := <-done; {
			case c.refused:
				stale(t, err, token(c.second), token(c.first))
			case err != nil:
				t.Fatal(err)
			}
			if got := one(t, db, "SELECT balance FROM account"); got != c.balance {
				t.Fatalf("the balance is %s, want %s", got, c.balance)
			}
		})
	}
}

func TestOneStatementRefuses(t *testing.T) {
	t.Parallel()
	d := databases[0]
	db := d.open(t)
	g := accounts(t, d, db)
	for query, why := range map[string]string{
		"UPDATE account SET balance = 1":                                                "0 times",
		"UPDATE account SET balance = 1 WHERE {entered} AND {entered}":                  "2 times",
		"WITH x AS (SELECT 1) UPDATE account SET balance = 1 WHERE " + sqlguard.Entered: "must begin with",
	} {
		if _, err := g.Exec(with(t, token(1)), db, query); !errors.Is(err, outcome.InvalidOperation) || !strings.Contains(err.Error(), why) {
			t.Errorf("%q got %v", query, err)
		}
	}
	own, err := sqlguard.New(sqlguard.Config{Resource: "alice", Dialect: sqlguard.Dialect{Name: "own", Placeholder: d.dialect.Placeholder, Bytewise: d.dialect.Bytewise}})
	if err != nil {
		t.Fatal(err)
	}
	if err := deposit(d, own, with(t, token(1)), db, 1); !errors.Is(err, outcome.InvalidOperation) || !strings.Contains(err.Error(), "use Do") {
		t.Fatalf("a dialect of one's own got %v", err)
	}
	if got := one(t, db, "SELECT balance FROM account"); got != "0" {
		t.Fatalf("the balance is %s", got)
	}
}
