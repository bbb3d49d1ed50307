package sqltest

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"natsfabric/fence"
	"natsfabric/fence/sqlguard"
)

// pausedHolder is the seed's scene with a real process and a real database: holder 33 looks whether it may write, is
// frozen between that look and its write, 34 takes over and writes, and 33 wakes up.
func pausedHolder(t *testing.T) {
	for _, raised := range []bool{false, true} {
		t.Run(fmt.Sprintf("raised=%t", raised), func(t *testing.T) {
			t.Parallel()
			url := newSchema(t)
			db := open(t, "pgx", url)
			rows := orders(t, databases[1], db)

			old := startChild(t, "holder", url, token(33).String())
			old.expect("checked")
			if err := syscall.Kill(old.pid, syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}

			// 34 takes over while 33 does not move.
			var err error
			if raised {
				err = rows.Raise(with(t, token(34)), db, []any{7})
			} else {
				err = rows.Update(with(t, token(34)), db, []any{7}, status("34"))
			}
			if err != nil {
				t.Fatal(err)
			}
			before := one(t, db, "SELECT status FROM orders")

			if err := syscall.Kill(old.pid, syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
			old.say("write")
			if got := old.expect("refused"); !strings.Contains(got, token(34).Numbers()) {
				t.Fatalf("the old holder was told %q, which does not name the token seen", got)
			}
			if after := one(t, db, "SELECT status FROM orders"); after != before {
				t.Fatalf("33 wrote: the row says %q after %q", after, before)
			}
		})
	}
	// Frozen while its statement waits inside the database: the statement is decided when it gets there, not when it
	// was sent.
	t.Run("statement under way", func(t *testing.T) {
		t.Parallel()
		url := newSchema(t)
		db := open(t, "pgx", url)
		rows := orders(t, databases[1], db)
		next, err := db.Begin()
		if err != nil {
			t.Fatal(err)
		}
		if err := rows.Update(with(t, token(34)), next, []any{7}, status("34")); err != nil {
			t.Fatal(err)
		}
		old := startChild(t, "holder", url, token(33).String())
		old.expect("checked")
		old.say("write")
		waitBlocked(t, db) // 33's UPDATE waits for 34's transaction
		if err := syscall.Kill(old.pid, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		if err := next.Commit(); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(old.pid, syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		old.expect("refused")
		if got := one(t, db, "SELECT status FROM orders"); got != "34" {
			t.Fatalf("33 wrote: the row says %q", got)
		}
	})
}

// waitBlocked waits until a statement of the test's own waits for a lock.
func waitBlocked(t *testing.T, db *sql.DB) {
	t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for time.Now().Before(deadline) {
		if one(t, db, "SELECT count(*) FROM pg_stat_activity WHERE application_name = current_schema() AND wait_event_type = 'Lock'") != "0" {
			return
		}
		<-time.After(10 * time.Millisecond)
	}
	t.Fatal("no statement came to wait for the transaction")
}

// process is a child with a line protocol.
type process struct {
	t   *testing.T
	pid int
	in  *os.File
	out *bufio.Scanner
}

// startChild runs this test binary as a child in the given role.
func startChild(t *testing.T, role string, args ...string) *process {
	t.Helper()
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), "SQLTEST_CHILD="+role)
	cmd.Stderr = os.Stderr
	inR, inW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdin = inR
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	inR.Close()
	t.Cleanup(func() {
		cmd.Process.Kill()
		inW.Close()
		cmd.Wait()
	})
	return &process{t: t, pid: cmd.Process.Pid, in: inW, out: bufio.NewScanner(out)}
}

func (p *process) say(line string) {
	p.t.Helper()
	if _, err := fmt.Fprintln(p.in, line); err != nil {
		p.t.Fatal(err)
	}
}

// expect reads a line that begins with word.
func (p *process) expect(word string) string {
	p.t.Helper()
	line := make(chan string, 1)
	go func() {
		p.out.Scan()
		line <- p.out.Text()
	}()
	select {
	case got := <-line:
		if !strings.HasPrefix(got, word) {
			p.t.Fatalf("the child said %q, want %q", got, word)
		}
		return got
	case <-time.After(2 * time.Minute):
		p.t.Fatalf("the child does not say %q", word)
		return ""
	}
}

// child runs this process in a role of a test.
func child(role string) int {
	var err error
	switch {
	case len(os.Args) != 3:
		err = fmt.Errorf("role %q needs two arguments", role)
	case role == "holder":
		var tok fence.Token
		if tok, err = fence.ParseToken(os.Args[2]); err == nil {
			err = holder(os.Args[1], tok)
		}
	default:
		err = leader(os.Args[1], os.Args[2], role == "honest leader")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// holder looks whether it may write, says so, and writes when it is told to.
func holder(url string, tok fence.Token) error {
	db, err := sql.Open("pgx", url)
	if err != nil {
		return err
	}
	defer db.Close()
	rows, err := sqlguard.NewRows(sqlguard.RowsConfig{Dialect: sqlguard.PostgreSQL(), Table: "orders", Key: []string{"id"}})
	if err != nil {
		return err
	}
	ctx := fence.WithToken(context.Background(), tok)
	// The check that is old by the time of the write: nobody with a higher token stands in the row.
	var seen string
	if err := db.QueryRow("SELECT fence_token FROM orders WHERE id = 7").Scan(&seen); err != nil || seen > tok.Numbers() {
		return fmt.Errorf("the look before the write: %q, %w", seen, err)
	}
	fmt.Println("checked")
	in := bufio.NewScanner(os.Stdin)
	if !in.Scan() {
		return in.Err()
	}
	err = rows.Update(ctx, db, []any{7}, sqlguard.Column{Name: "status", Value: fmt.Sprint(tok.Sequence)})
	var s *fence.StaleError
	if errors.As(err, &s) {
		fmt.Println("refused", s.Seen)
		return nil
	}
	fmt.Println("wrote", err)
	return nil
}
