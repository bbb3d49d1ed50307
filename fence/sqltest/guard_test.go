package sqltest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"natsfabric/fence"
	"natsfabric/fence/sqlguard"
	"natsfabric/outcome"
)

// each runs a test against every kind of database.
func each(t *testing.T, f func(t *testing.T, d database)) {
	for _, d := range databases {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			f(t, d)
		})
	}
}

// stale checks that err is the refusal of a lower token, and that it says which token was seen.
func stale(t *testing.T, err error, presented, seen fence.Token) {
	t.Helper()
	var s *fence.StaleError
	switch {
	case !errors.As(err, &s):
		t.Fatalf("the write of %s ended with %v, want a *fence.StaleError", presented, err)
	case s.Presented != presented, s.Seen != seen, s.StoppedBy != fence.ByToken:
		t.Fatalf("the refusal says %+v", s)
	case !errors.Is(err, outcome.NotAccepted), !errors.Is(err, outcome.Rejected):
		t.Fatalf("the refusal %v is no outcome of kind Rejected, NotAccepted", err)
	}
}

func TestConformance(t *testing.T) {
	// FE-3: one conditional UPDATE per write; equal tokens pass, a lower one changes nothing.
	t.Run("FE-3", func(t *testing.T) {
		each(t, func(t *testing.T, d database) {
			db := d.open(t)
			rows := orders(t, d, db)
			for i, c := range []struct {
				tok fence.Token
				ok  bool
			}{
				{token(33), true}, {token(33), true}, {token(34), true}, {token(33), false}, {token(34), true},
				{fence.Token{Source: "shop/actor/alice", Epoch: 1, Generation: 6, Sequence: 99}, false},
				{fence.Token{Source: "shop/actor/alice", Epoch: 1, Generation: 10, Sequence: 1}, true},
				{token(34), false},
				{fence.Token{Source: "shop/actor/alice", Epoch: 2, Generation: 1, Sequence: 1}, true},
				{fence.Token{Source: "shop/actor/alice", Epoch: 1 << 63, Generation: 1, Sequence: 1}, true},
				{fence.Token{Source: "shop/actor/alice", Epoch: 3, Generation: 1, Sequence: 1}, false},
			} {
				before := one(t, db, "SELECT status FROM orders WHERE id = 7")
				err := rows.Update(with(t, c.tok), db, []any{7}, status(fmt.Sprint("PAID", i)))
				after := one(t, db, "SELECT status FROM orders WHERE id = 7")
				switch {
				case c.ok && (err != nil || after != fmt.Sprint("PAID", i)):
					t.Fatalf("write %d with %s: %v, the row says %q", i, c.tok, err, after)
				case !c.ok && (err == nil || after != before):
					t.Fatalf("write %d with %s: %v, the row says %q after %q", i, c.tok, err, after, before)
				}
			}
			if s := rows.Stats(); s.Passed != 7 || s.StoppedByToken != 4 {
				t.Fatalf("counted %+v", s)
			}
		})
	})

	// FE-10: the refusal names the token seen, the resource and the barrier.
	t.Run("FE-10", func(t *testing.T) {
		each(t, func(t *testing.T, d database) {
			db := d.open(t)
			rows, g := orders(t, d, db), accounts(t, d, db)
			if err := errors.Join(rows.Raise(with(t, token(34)), db, []any{7}), g.Raise(with(t, token(34)), db)); err != nil {
				t.Fatal(err)
			}
			for resource, err := range map[string]error{
				"orders": rows.Update(with(t, token(33)), db, []any{7}, status("PAID")),
				"alice":  g.Raise(with(t, token(33)), db),
			} {
				stale(t, err, token(33), token(34))
				var s *fence.StaleError
				if errors.As(err, &s); s.Resource != resource {
					t.Fatalf("the refusal names resource %q, want %q", s.Resource, resource)
				}
			}
			lost := errors.New("ownership lost")
			err := rows.Update(fence.NewContext(with(t, token(34)), lostHolder{token(34), lost}), db, []any{7}, status("PAID"))
			var s *fence.StaleError
			if !errors.As(err, &s) || s.StoppedBy != fence.ByLease || !errors.Is(err, lost) {
				t.Fatalf("a holder that has lost its ownership got %v", err)
			}
			if got := one(t, db, "SELECT status FROM orders"); got != "NEW" {
				t.Fatalf("the row says %q", got)
			}
			if st := rows.Stats(); st.StoppedByToken != 1 || st.StoppedByLease != 1 || st.Passed != 0 {
				t.Fatalf("counted %+v", st)
			}
		})
	})

	// FE-11: raised before the new owner's first write, nothing older lands any more.
	t.Run("FE-11", func(t *testing.T) {
		each(t, func(t *testing.T, d database) {
			db := d.open(t)
			rows, g := orders(t, d, db), accounts(t, d, db)
			pay := func(tok fence.Token) error {
				return g.Do(with(t, tok), db, nil, func(tx *sql.Tx) error {
					_, err := tx.Exec("UPDATE account SET balance = balance + 1")
					return err
				})
			}
			if err := errors.Join(pay(token(33)), rows.Update(with(t, token(33)), db, []any{7}, status("PAID"))); err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(rows.Raise(with(t, token(34)), db, []any{7}), g.Raise(with(t, token(34)), db)); err != nil {
				t.Fatal(err)
			}
			stale(t, pay(token(33)), token(33), token(34))
			stale(t, rows.Update(with(t, token(33)), db, []any{7}, status("LATE")), token(33), token(34))
			if got := one(t, db, "SELECT status || ' ' || balance FROM orders, account"); got != "PAID 1" {
				t.Fatalf("the database says %q", got)
			}
			if high, ok, err := g.Highest(context.Background(), db); err != nil || !ok || high != token(34) {
				t.Fatalf("the highest is %s, %t, %v", high, ok, err)
			}
		})
	})

	t.Run("FE-2", pausedHolder)
	t.Run("FE-4", overtakenLeader)
	t.Run("FE-7", fencedRole)
}

type lostHolder struct {
	tok fence.Token
	err error
}

func (h lostHolder) FenceToken() (fence.Token, error) { return h.tok, h.err }

// A token of another source is another typed error, and nothing is written.
func TestOtherSource(t *testing.T) {
	each(t, func(t *testing.T, d database) {
		db := d.open(t)
		rows, g := orders(t, d, db), accounts(t, d, db)
		bob := token(99)
		bob.Source = "shop/actor/bob"
		if err := errors.Join(rows.Raise(with(t, token(1)), db, []any{7}), g.Raise(with(t, token(1)), db)); err != nil {
			t.Fatal(err)
		}
		for _, err := range []error{
			rows.Update(with(t, bob), db, []any{7}, status("PAID")), rows.Put(with(t, bob), db, []any{7}, status("PAID")), g.Raise(with(t, bob), db),
		} {
			var s *fence.SourceError
			if !errors.As(err, &s) || s.Bound != "shop/actor/alice" || s.Presented != bob {
				t.Fatalf("a token of bob's got %v", err)
			}
		}
		if got := one(t, db, "SELECT status FROM orders"); got != "NEW" {
			t.Fatalf("the row says %q", got)
		}
	})
}

// A refusal rolls the transaction back: code that overlooks the error can commit nothing.
func TestRefusalEndsTheTransaction(t *testing.T) {
	each(t, func(t *testing.T, d database) {
		db := d.open(t)
		rows, g := orders(t, d, db), accounts(t, d, db)
		if err := errors.Join(rows.Raise(with(t, token(34)), db, []any{7}), g.Raise(with(t, token(34)), db)); err != nil {
			t.Fatal(err)
		}
		for name, guarded := range map[string]func(ctx context.Context, tx *sql.Tx) error{
			"Enter":  func(ctx context.Context, tx *sql.Tx) error { return g.Enter(ctx, tx) },
			"Raise":  func(ctx context.Context, tx *sql.Tx) error { return g.Raise(ctx, tx) },
			"Update": func(ctx context.Context, tx *sql.Tx) error { return rows.Update(ctx, tx, []any{7}, status("LATE")) },
			"Put":    func(ctx context.Context, tx *sql.Tx) error { return rows.Put(ctx, tx, []any{7}, status("LATE")) },
		} {
			tx, err := db.Begin()
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tx.Exec("UPDATE account SET balance = 1000"); err != nil {
				t.Fatal(err)
			}
			stale(t, guarded(with(t, token(33)), tx), token(33), token(34))
			if _, err := tx.Exec("UPDATE account SET balance = 2000"); !errors.Is(err, sql.ErrTxDone) {
				t.Errorf("%s: the refused transaction takes another statement: %v", name, err)
			}
			if err := tx.Commit(); !errors.Is(err, sql.ErrTxDone) {
				t.Errorf("%s: the refused transaction commits: %v", name, err)
			}
			if got := one(t, db, "SELECT balance FROM account"); got != "0" {
				t.Errorf("%s: a refused transaction left balance %s", name, got)
			}
		}
	})
}

// The guards work inside the caller's transaction: several writes are committed together, or none.
func TestInsideTheCallersTransaction(t *testing.T) {
	each(t, func(t *testing.T, d database) {
		db := d.open(t)
		rows, g := orders(t, d, db), accounts(t, d, db)
		for _, commit := range []bool{false, true} {
			tx, err := db.Begin()
			if err != nil {
				t.Fatal(err)
			}
			ctx := with(t, token(33))
			if err := errors.Join(g.Enter(ctx, tx), rows.Update(ctx, tx, []any{7}, status("PAID")), rows.Put(ctx, tx, []any{8}, status("NEW"))); err != nil {
				t.Fatal(err)
			}
			if _, err := tx.Exec("UPDATE account SET balance = balance - 5"); err != nil {
				t.Fatal(err)
			}
			end, want := tx.Rollback, "NEW,0"
			if commit {
				end, want = tx.Commit, "PAID,-5"
			}
			if err := end(); err != nil {
				t.Fatal(err)
			}
			if got := one(t, db, "SELECT status || ',' || balance FROM orders, account WHERE orders.id = 7"); got != want {
				t.Fatalf("after commit=%t the database says %q, want %q", commit, got, want)
			}
		}
	})
}

// Writers with different tokens race for a row that is not there yet: afterwards the highest stands there, and whoever
// was told that its write was let in was at that time the highest.
func TestFirstWritersRace(t *testing.T) {
	each(t, func(t *testing.T, d database) {
		db := d.open(t)
		rows, g := orders(t, d, db), accounts(t, d, db)
		const writers = 8
		var wg sync.WaitGroup
		errs := make([]error, writers)
		for i := range writers {
			wg.Go(func() {
				ctx := with(t, token(uint64(i+1)))
				errs[i] = errors.Join(
					rows.Put(ctx, db, []any{100}, status(fmt.Sprint(i+1))),
					g.Do(ctx, db, nil, func(tx *sql.Tx) error {
						_, err := tx.Exec(fmt.Sprintf("UPDATE account SET balance = %d", i+1))
						return err
					}))
			})
		}
		wg.Wait()
		for i, err := range errs {
			var s *fence.StaleError
			if err != nil && (!errors.As(err, &s) || i == writers-1) {
				t.Errorf("writer %d: %v", i+1, err)
			}
		}
		if got := one(t, db, "SELECT status || ',' || balance FROM orders, account WHERE orders.id = 100"); got != "8,8" {
			t.Fatalf("the database says %q, want the highest writer's", got)
		}
	})
}

// A collation that sorts text otherwise than bytewise decides nothing.
func TestCollationOfTheColumn(t *testing.T) {
	t.Parallel()
	db := openPostgreSQL(t)
	// Digits as numbers: under it ..0a00 sorts below ..00a1, since 0, a, 0 is less than 0, a, 1.
	run(t, db, `CREATE COLLATION backwards (provider = icu, locale = 'en-u-kn-true')`,
		`CREATE TABLE orders (id INTEGER PRIMARY KEY, status TEXT NOT NULL, fence_source TEXT COLLATE backwards NOT NULL DEFAULT '', fence_token TEXT COLLATE backwards NOT NULL DEFAULT '')`,
		`INSERT INTO orders (id, status) VALUES (7, 'NEW')`)
	if got := one(t, db, `SELECT '0a00' COLLATE backwards < '00a1' COLLATE backwards`); got != "true" {
		t.Fatalf("the collation sorts 0a00 below 00a1: %s; the test shows nothing", got)
	}
	rows, err := sqlguard.NewRows(sqlguard.RowsConfig{Dialect: sqlguard.PostgreSQL(), Table: "orders", Key: []string{"id"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, write := range []func(context.Context, sqlguard.Querier, []any, ...sqlguard.Column) error{rows.Update, rows.Put} {
		run(t, db, "UPDATE orders SET fence_source = '', fence_token = ''")
		if err := write(with(t, token(0xa00)), db, []any{7}, status("HIGH")); err != nil {
			t.Fatal(err)
		}
		stale(t, write(with(t, token(0xa1)), db, []any{7}, status("LOW")), token(0xa1), token(0xa00))
	}
}

// A transaction that has entered keeps the next holder out until it ends, and its writes are there by then.
func TestRaiseWaitsForWhoHasEntered(t *testing.T) {
	t.Parallel()
	db := openPostgreSQL(t)
	g := accounts(t, databases[1], db)
	tx, err := db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Enter(with(t, token(33)), tx); err != nil {
		t.Fatal(err)
	}
	raised := make(chan error, 1)
	go func() { raised <- g.Raise(with(t, token(34)), db) }()
	waitBlocked(t, db)
	select {
	case err := <-raised:
		t.Fatalf("Raise returned (%v) while an older holder's transaction was open", err)
	default:
	}
	if _, err := tx.Exec("UPDATE account SET balance = 33"); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	if err := <-raised; err != nil {
		t.Fatal(err)
	}
	if got := one(t, db, "SELECT balance FROM account"); got != "33" {
		t.Fatalf("after Raise the balance is %s", got)
	}
}

func TestRowThatIsMissing(t *testing.T) {
	each(t, func(t *testing.T, d database) {
		db := d.open(t)
		rows := orders(t, d, db)
		for _, err := range []error{rows.Update(with(t, token(1)), db, []any{8}, status("PAID")), rows.Raise(with(t, token(1)), db, []any{8})} {
			if !errors.Is(err, outcome.NotFound) || !errors.Is(err, outcome.NotAccepted) {
				t.Fatalf("a missing row got %v", err)
			}
		}
		if err := rows.Update(context.Background(), db, []any{7}, status("PAID")); !errors.Is(err, outcome.InvalidOperation) {
			t.Fatalf("a write without a token got %v", err)
		}
		for _, c := range []sqlguard.Column{{Name: `status" = 'x' --`, Value: 1}, {Name: "fence_token", Value: "z"}, {Name: "fence_source", Value: "z"}, {Name: "id", Value: 9}} {
			if err := rows.Update(with(t, token(1)), db, []any{7}, c); !errors.Is(err, outcome.InvalidOperation) {
				t.Fatalf("column %q got %v", c.Name, err)
			}
		}
	})
}

func TestConfigurations(t *testing.T) {
	good := sqlguard.RowsConfig{Dialect: sqlguard.SQLite(), Table: "main.orders", Key: []string{"id"}}
	if _, err := sqlguard.NewRows(good); err != nil {
		t.Fatal(err)
	}
	for field, change := range map[string]func(*sqlguard.RowsConfig){
		"Table":        func(c *sqlguard.RowsConfig) { c.Table = "orders; DROP TABLE orders" },
		"Key":          func(c *sqlguard.RowsConfig) { c.Key = nil },
		"SourceColumn": func(c *sqlguard.RowsConfig) { c.SourceColumn = "a.b" },
		"TokenColumn":  func(c *sqlguard.RowsConfig) { c.TokenColumn = strings.Repeat("t", 64) },
		"Dialect":      func(c *sqlguard.RowsConfig) { c.Dialect = sqlguard.Dialect{} },
	} {
		c := good
		change(&c)
		if _, err := sqlguard.NewRows(c); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("a wrong %s got %v", field, err)
		}
	}
	if _, err := sqlguard.New(sqlguard.Config{Dialect: sqlguard.SQLite()}); err == nil || !strings.Contains(err.Error(), "Resource") {
		t.Errorf("no Resource got %v", err)
	}
}
