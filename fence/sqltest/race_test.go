package sqltest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"natsfabric/fence"
	"natsfabric/fence/sqlguard"
)

// raceRounds is how often a holder is followed by the next one.
const raceRounds = 400

// TestOldAndNewHolderRace lets, in each of many rounds, a holder that is about to be overtaken write through every form of
// guard while its successor raises, reads and writes, and somebody else writes without a guard. A trigger keeps the history of
// both rows in the order of their writes. In it tokens never go down, and behind what stood there when Raise had returned
// there is nothing of an older holder's (FE-1, FE-2, FE-11). PostgreSQL may end transactions of the stricter levels with a
// serialization failure, which changes nothing; a deadlock is an error.
func TestOldAndNewHolderRace(t *testing.T) {
	for _, c := range []struct {
		database
		level   string
		options string
	}{
		{databases[0], "", "&_pragma=synchronous(OFF)"},
		{databases[1], "read committed", ""}, {databases[1], "repeatable read", ""}, {databases[1], "serializable", ""},
	} {
		t.Run(strings.TrimSpace(c.name+" "+c.level), func(t *testing.T) {
			t.Parallel()
			var db *sql.DB
			if c.level == "" {
				db = open(t, "sqlite", "file:"+t.TempDir()+"/db?_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_txlock=immediate"+c.options)
			} else { // what is durable plays no part here
				db = open(t, "pgx", newSchema(t)+"&synchronous_commit=off&default_transaction_isolation="+strings.ReplaceAll(c.level, " ", "%20"))
			}
			db.SetMaxOpenConns(4)
			race(t, c.database, db)
		})
	}
}

func race(t *testing.T, d database, db *sql.DB) {
	guard, rows := accounts(t, d, db), orders(t, d, db)
	run(t, db, historyOf[d.name]...)
	p := d.dialect.Placeholder
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	forms := []func(ctx context.Context, seq uint64) error{
		func(ctx context.Context, seq uint64) error {
			_, err := guard.Exec(ctx, db, "UPDATE account SET balance = "+p(1)+" WHERE id = "+p(2)+" AND "+sqlguard.Entered, int64(seq), "alice")
			return err
		},
		func(ctx context.Context, seq uint64) error {
			return guard.Do(ctx, db, nil, func(tx *sql.Tx) error {
				_, err := tx.ExecContext(ctx, "UPDATE account SET balance = "+p(1), int64(seq))
				return err
			})
		},
		func(ctx context.Context, seq uint64) error {
			return rows.Update(ctx, db, []any{7}, status(fmt.Sprint(seq)))
		},
		func(ctx context.Context, seq uint64) error {
			return rows.Put(ctx, db, []any{7}, status(fmt.Sprint(seq)))
		},
	}
	var passed, stopped, again atomic.Int64
	// write keeps writing under a token until it is refused; a write that the database gave up is made again.
	// begun is called after its first write, or at its end.
	write := func(form int, seq uint64, begun func()) {
		defer begun()
		mine := fence.WithToken(ctx, token(seq))
		for ctx.Err() == nil {
			err := forms[form](mine, seq)
			var s *fence.StaleError
			switch {
			case errors.As(err, &s):
				stopped.Add(1)
				return
			case err == nil:
				passed.Add(1)
				begun()
			case gaveUp(err):
				again.Add(1)
			default:
				t.Errorf("form %d, token %d: %v", form, seq, err)
				return
			}
		}
	}
	var all sync.WaitGroup
	stop := make(chan struct{})
	all.Go(func() { // writes the same rows without a guard, so that statements have to look again at what they have read
		for {
			select {
			case <-stop:
				return
			default:
				_, err := db.ExecContext(ctx, "UPDATE account SET touched = touched + 1")
				if err != nil && !gaveUp(err) {
					t.Error("without a guard:", err)
					return
				}
			}
		}
	})
	raise := func(f func() error) {
		for {
			if err := f(); err == nil {
				return
			} else if !gaveUp(err) {
				t.Fatal("Raise: ", err)
			}
		}
	}
	floor := map[string][]int64{} // by table; the end of the history when Raise had returned, by token
	for seq := uint64(1); seq <= raceRounds && !t.Failed(); seq++ {
		mine := fence.WithToken(ctx, token(seq))
		raise(func() error { return guard.Raise(mine, db) })
		floor["account"] = append(floor["account"], endOf(t, db, "account"))
		raise(func() error { return rows.Raise(mine, db, []any{7}) })
		floor["orders"] = append(floor["orders"], endOf(t, db, "orders"))
		var begun sync.WaitGroup
		for form := range forms {
			if (int(seq)+form)%2 == 0 { // two forms in each round, so that the next holder need not wait for all
				begun.Add(1)
				all.Go(func() { write(form, seq, sync.OnceFunc(begun.Done)) })
			}
		}
		if seq%8 < 2 { // each form has written now and then, however slow the machine
			begun.Wait()
		}
	}
	end := fence.WithToken(ctx, token(raceRounds+1))
	raise(func() error { return guard.Raise(end, db) })
	raise(func() error { return rows.Raise(end, db, []any{7}) })
	close(stop)
	all.Wait()
	t.Logf("%d writes passed, %d holders were stopped, %d writes were made again", passed.Load(), stopped.Load(), again.Load())
	for table, floors := range floor {
		judgeHistory(t, db, table, floors)
	}
}

// gaveUp reports that a database did nothing because of what others did: PostgreSQL could not put the transactions in an order,
// SQLite's lock, which is nobody's in turn, was taken by others for the whole busy_timeout.
func gaveUp(err error) bool {
	return strings.Contains(err.Error(), "40001") || strings.Contains(err.Error(), "SQLITE_BUSY")
}

// historyOf keeps who has written the rows, in the order of the writes: a row's writes are one after the other.
var historyOf = map[string][]string{
	"SQLite": {
		"ALTER TABLE account ADD COLUMN touched INTEGER NOT NULL DEFAULT 0",
		"CREATE TABLE history (at INTEGER PRIMARY KEY AUTOINCREMENT, of TEXT, holder INTEGER)",
		"CREATE TRIGGER a AFTER UPDATE OF balance ON account BEGIN INSERT INTO history (of, holder) VALUES ('account', new.balance); END",
		"CREATE TRIGGER o AFTER UPDATE OF status ON orders BEGIN INSERT INTO history (of, holder) VALUES ('orders', new.status); END",
	},
	"PostgreSQL": {
		"ALTER TABLE account ADD COLUMN touched INTEGER NOT NULL DEFAULT 0",
		"CREATE TABLE history (at BIGINT GENERATED ALWAYS AS IDENTITY, of TEXT, holder BIGINT)",
		"CREATE FUNCTION a() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO history (of, holder) VALUES (''account'', new.balance); RETURN new; END'",
		"CREATE FUNCTION o() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO history (of, holder) VALUES (''orders'', new.status::bigint); RETURN new; END'",
		"CREATE TRIGGER a AFTER UPDATE OF balance ON account FOR EACH ROW EXECUTE FUNCTION a()",
		"CREATE TRIGGER o AFTER UPDATE OF status ON orders FOR EACH ROW EXECUTE FUNCTION o()",
	},
}

func endOf(t *testing.T, db *sql.DB, table string) (at int64) {
	t.Helper()
	if err := db.QueryRow("SELECT coalesce(max(at), 0) FROM history WHERE of = '" + table + "'").Scan(&at); err != nil {
		t.Fatal(err)
	}
	return at
}

func judgeHistory(t *testing.T, db *sql.DB, table string, floors []int64) {
	t.Helper()
	found, err := db.Query("SELECT at, holder FROM history WHERE of = '" + table + "' ORDER BY at")
	if err != nil {
		t.Fatal(err)
	}
	defer found.Close()
	n, highest := 0, int64(0)
	for ; found.Next(); n++ {
		var at, holder int64
		if err := found.Scan(&at, &holder); err != nil {
			t.Fatal(err)
		}
		if holder < highest {
			t.Fatalf("%s: write %d of holder %d stands behind one of holder %d", table, at, holder, highest)
		}
		highest = holder
		if holder < int64(len(floors)) && at > floors[holder] { // floors[holder] is the successor's
			t.Fatalf("%s: write %d of holder %d came after holder %d had raised, at %d", table, at, holder, holder+1, floors[holder])
		}
	}
	if err := found.Err(); err != nil {
		t.Fatal(err)
	}
	if n < raceRounds/4 {
		t.Errorf("%s: only %d writes: the test shows little", table, n)
	}
}
