// Command guardbench compares guarded writes with the same unguarded ones, side by side on one database.
//
//	scripts/postgres with go -C fence/sqltest run ./guardbench            # PostgreSQL, and SQLite in a temporary file
//
// Each form of guard is compared with the same write without one in the same form: one statement that is its own transaction,
// or BEGIN, the statement and COMMIT. Single statements are prepared once on both sides: guards take any sqlguard.Querier,
// here one that prepares. Unguarded and guarded writes take turns, one by one, on the same connection, and each commit is on
// disk before it returns (PostgreSQL's default, SQLite's synchronous=FULL). It prints, for each form, the median time of a
// write on both sides, and of the ratios of the medians of each slice of time the median, the quartiles, the least and the
// greatest.
package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite"

	"natsfabric/fence"
	"natsfabric/fence/sqlguard"
)

// result is what is printed of one form, as JSON with -json.
type result struct {
	Database  string  `json:"database"`
	Form      string  `json:"form"`
	Slices    int     `json:"slices"`
	Unguarded float64 `json:"unguarded_us"`
	Guarded   float64 `json:"guarded_us"`
	Ratio     float64 `json:"ratio"`
	Least     float64 `json:"ratio_min"`
	Greatest  float64 `json:"ratio_max"`
	Low       float64 `json:"ratio_p25"`
	High      float64 `json:"ratio_p75"`
}

func main() {
	count := flag.Int("slices", 15, "slices of time for each form")
	span := flag.Duration("time", 300*time.Millisecond, "length of a slice")
	asJSON := flag.Bool("json", false, "one JSON object a line")
	flag.Parse()
	if err := run(*count, *span, *asJSON); err != nil {
		fmt.Fprintln(os.Stderr, "guardbench:", err)
		os.Exit(1)
	}
}

func run(count int, span time.Duration, asJSON bool) error {
	if count < 1 || span <= 0 {
		return fmt.Errorf("-slices %d and -time %v must be above 0", count, span)
	}
	url := os.Getenv("FABRIC_POSTGRES_URL")
	if url == "" {
		return fmt.Errorf("FABRIC_POSTGRES_URL is not set: run scripts/postgres with go -C fence/sqltest run ./guardbench")
	}
	dir, err := os.MkdirTemp("", "guardbench")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	for _, d := range []struct {
		name, driver, dsn string
		dialect           sqlguard.Dialect
	}{
		{"PostgreSQL", "pgx", url, sqlguard.PostgreSQL()},
		{"SQLite", "sqlite", "file:" + filepath.Join(dir, "db") + "?_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)", sqlguard.SQLite()},
	} {
		db, err := sql.Open(d.driver, d.dsn)
		if err != nil {
			return err
		}
		db.SetMaxOpenConns(1)
		results, err := compare(db, d.name, d.dialect, count, span)
		if closed := db.Close(); err == nil {
			err = closed
		}
		if err != nil {
			return fmt.Errorf("%s: %w", d.name, err)
		}
		for _, r := range results {
			print(r, asJSON)
		}
	}
	return nil
}

func print(r result, asJSON bool) {
	if asJSON {
		line, _ := json.Marshal(r) // of numbers and names
		fmt.Printf("%s\n", line)
		return
	}
	fmt.Printf("%-10s  %-20s  %d slices: unguarded %7.1f us, guarded %7.1f us, ratio %.3f (quartiles %.3f..%.3f, all %.3f..%.3f)\n",
		r.Database, r.Form, r.Slices, r.Unguarded, r.Guarded, r.Ratio, r.Low, r.High, r.Least, r.Greatest)
}

// compare measures both forms of guards.
func compare(db *sql.DB, name string, d sqlguard.Dialect, count int, span time.Duration) ([]result, error) {
	rows, err := sqlguard.NewRows(sqlguard.RowsConfig{Dialect: d, Table: "guardbench_row", Key: []string{"id"}})
	if err != nil {
		return nil, err
	}
	guard, err := sqlguard.New(sqlguard.Config{Dialect: d, Table: "guardbench_guard", Resource: "row"})
	if err != nil {
		return nil, err
	}
	schema, err := sqlguard.Schema("guardbench_guard")
	if err != nil {
		return nil, err
	}
	// One table for both sides, so that a row is as wide on one as on the other.
	ctx := fence.WithToken(context.Background(), fence.Token{Source: "bench/leader/db", Epoch: 1, Generation: 33})
	setup := append([]string{"DROP TABLE IF EXISTS guardbench_row", "DROP TABLE IF EXISTS guardbench_guard", schema,
		"CREATE TABLE guardbench_row (id INTEGER PRIMARY KEY, status TEXT NOT NULL)"}, rows.Schema()...)
	for _, s := range append(setup, "INSERT INTO guardbench_row (id, status) VALUES (7, 'NEW')", "INSERT INTO guardbench_row (id, status) VALUES (8, 'NEW')") {
		if _, err := db.ExecContext(ctx, s); err != nil {
			return nil, err
		}
	}
	plain := "UPDATE guardbench_row SET status = " + d.Placeholder(1) + " WHERE id = " + d.Placeholder(2)
	once := &prepared{db: db, statements: map[string]*sql.Stmt{}}
	defer once.close()
	n := 0
	status := func() string { n++; return strconv.Itoa(n) } // SQLite leaves out a write that changes nothing
	write := func(tx *sql.Tx) error { _, err := tx.ExecContext(ctx, plain, status(), 8); return err }
	bare := func() error { _, err := once.ExecContext(ctx, plain, status(), 8); return err }
	guarded := strings.Replace(plain, " WHERE ", " WHERE "+sqlguard.Entered+" AND ", 1)
	forms := []struct {
		form               string
		unguarded, guarded func() error
	}{
		{"row, one statement", bare,
			func() error {
				return rows.Update(ctx, once, []any{7}, sqlguard.Column{Name: "status", Value: status()})
			}},
		{"guard, one statement", bare, func() error { _, err := guard.Exec(ctx, once, guarded, status(), 8); return err }},
		{"guard, transaction", func() error {
			tx, err := db.BeginTx(ctx, nil)
			if err != nil {
				return err
			}
			defer tx.Rollback() //nolint:errcheck // after a commit there is nothing to roll back
			if err := write(tx); err != nil {
				return err
			}
			return tx.Commit()
		}, func() error { return guard.Do(ctx, db, nil, write) }},
	}
	var out []result
	for _, f := range forms {
		r, err := measure(f.unguarded, f.guarded, count, span)
		if err != nil {
			return nil, err
		}
		r.Database, r.Form = name, f.form
		out = append(out, r)
	}
	return out, nil
}

// prepared is a Querier that prepares each statement once. It is used by one goroutine.
type prepared struct {
	db         *sql.DB
	statements map[string]*sql.Stmt
}

func (p *prepared) statement(ctx context.Context, text string) (*sql.Stmt, error) {
	if s := p.statements[text]; s != nil {
		return s, nil
	}
	s, err := p.db.PrepareContext(ctx, text)
	if err == nil {
		p.statements[text] = s
	}
	return s, err
}

func (p *prepared) ExecContext(ctx context.Context, text string, args ...any) (sql.Result, error) {
	s, err := p.statement(ctx, text)
	if err != nil {
		return nil, err
	}
	return s.ExecContext(ctx, args...)
}

func (p *prepared) QueryRowContext(ctx context.Context, text string, args ...any) *sql.Row {
	return p.db.QueryRowContext(ctx, text, args...)
}

func (p *prepared) close() {
	for _, s := range p.statements {
		s.Close()
	}
}

// measure runs the slices. In each, the writes of both sides take turns, the guarded one first in every other pair: a disk
// whose speed drifts, and what every so many writes cost, is met by both alike.
func measure(unguarded, guarded func() error, count int, span time.Duration) (result, error) {
	sides := [2]func() error{unguarded, guarded}
	var us, gs, ratios []float64
	for i := range count + 1 {
		var took [2][]float64
		begin := time.Now()
		for pair := i; time.Since(begin) < span; pair++ {
			for j := range sides {
				k := (pair + j) % 2
				at := time.Now()
				if err := sides[k](); err != nil {
					return result{}, err
				}
				took[k] = append(took[k], float64(time.Since(at).Nanoseconds())/1e3)
			}
		}
		if i == 0 {
			continue // to warm up
		}
		u, g := median(took[0]), median(took[1])
		us, gs, ratios = append(us, u), append(gs, g), append(ratios, g/u)
	}
	slices.Sort(ratios)
	return result{
		Low: ratios[len(ratios)/4], High: ratios[len(ratios)-1-len(ratios)/4],
		Slices: count, Unguarded: median(us), Guarded: median(gs), Ratio: median(ratios), Least: slices.Min(ratios), Greatest: slices.Max(ratios),
	}, nil
}

func median(v []float64) float64 {
	s := slices.Sorted(slices.Values(v))
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}
