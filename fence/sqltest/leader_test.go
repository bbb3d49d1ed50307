package sqltest

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"natsfabric/fabrictest"
	"natsfabric/fence"
	"natsfabric/fence/sqlguard"
	"natsfabric/kvlocation"
)

// overtakenLeader is the seed's scene from the grant on: a process leads with 33, is frozen beyond its lease in the middle of
// its work, another one is granted 34 and raises the guard, and the first one wakes up and writes. With honest it asks its
// term at the write, and its own lease stops it; otherwise it goes by what it has looked up before, and the database does.
func overtakenLeader(t *testing.T) {
	for _, honest := range []bool{true, false} {
		t.Run(fmt.Sprintf("honest=%t", honest), func(t *testing.T) {
			t.Parallel()
			server := fabrictest.StartServer(t)
			if _, err := kvlocation.Init(bounded(t), server.Connect(t, nats.ReconnectBufSize(-1)), kvlocation.Setup{Mesh: "m"}); err != nil {
				t.Fatal(err)
			}
			url := newSchema(t)
			db := open(t, "pgx", url)
			rows := orders(t, databases[1], db)
			role := "leader"
			if honest {
				role = "honest leader"
			}
			old := startChild(t, role, url, server.URL())
			first := strings.TrimPrefix(old.expect("leads"), "leads ")
			tok, err := fence.ParseToken(first)
			if err != nil {
				t.Fatal(err)
			}
			if err := syscall.Kill(old.pid, syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			// It renews, however long the machine keeps it from that.
			next, closeNext := election(t, server.URL(), "b", time.Minute)
			defer closeNext()
			term, err := next.Campaign(bounded(t))
			if err != nil {
				t.Fatal(err)
			}
			if term.Token().Compare(tok) <= 0 {
				t.Fatalf("%s follows %s", term.Token(), tok)
			}
			if err := rows.Raise(term.Context(), db, []any{7}); err != nil {
				t.Fatal(err)
			}
			if err := syscall.Kill(old.pid, syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
			old.say("write")
			by := fence.ByToken
			if honest {
				by = fence.ByLease
			}
			if got := old.expect("refused"); !strings.HasPrefix(got, "refused by "+by) {
				t.Fatalf("the old leader was told %q, want a refusal by the %s", got, by)
			}
			if got := one(t, db, "SELECT status FROM orders"); got != "NEW" {
				t.Fatalf("the old leader wrote: the row says %q", got)
			}
			if err := rows.Update(term.Context(), db, []any{7}, status("34")); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// election is a candidate.
func election(t testing.TB, url, node string, ttl time.Duration) (*fence.Election, func()) {
	t.Helper()
	e, end, err := newElection(url, node, ttl)
	if err != nil {
		t.Fatal(err)
	}
	return e, end
}

func newElection(url, node string, ttl time.Duration) (*fence.Election, func(), error) {
	nc, err := nats.Connect(url, nats.ReconnectBufSize(-1), nats.Timeout(time.Minute))
	if err != nil {
		return nil, nil, err
	}
	store, err := kvlocation.Open(context.Background(), nc, kvlocation.Config{Mesh: "m", RID: node, AttemptTimeout: 400 * time.Millisecond})
	if err != nil {
		nc.Close()
		return nil, nil, err
	}
	e, err := fence.NewElection(store, fence.ElectionConfig{
		Name: "db", Node: node, TTL: ttl, Renew: 300 * time.Millisecond, Margin: 400 * time.Millisecond, Poll: 50 * time.Millisecond,
	})
	return e, func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		e.Close(ctx) //nolint:errcheck // the process or test ends
		store.Close()
		nc.Close()
	}, err
}

// leader is the process of a leader: it campaigns, says its token, and writes when it is told to.
func leader(dsn, url string, honest bool) error {
	db, err := sql.Open("pgx", dsn)
	if err != nil {
		return err
	}
	defer db.Close()
	rows, err := sqlguard.NewRows(sqlguard.RowsConfig{Dialect: sqlguard.PostgreSQL(), Table: "orders", Key: []string{"id"}})
	if err != nil {
		return err
	}
	e, end, err := newElection(url, "a", 4*time.Second)
	if err != nil {
		return err
	}
	defer end()
	term, err := e.Campaign(context.Background())
	if err != nil {
		return err
	}
	tok, err := term.FenceToken() // the look before the write
	if err != nil {
		return err
	}
	fmt.Println("leads", tok)
	in := bufio.NewScanner(os.Stdin)
	if !in.Scan() {
		return in.Err()
	}
	// Its context has ended with the term; the write is sent all the same.
	ctx := context.WithoutCancel(term.Context())
	if !honest {
		ctx = fence.WithToken(context.Background(), tok)
	}
	err = rows.Update(ctx, db, []any{7}, sqlguard.Column{Name: "status", Value: "33"})
	var s *fence.StaleError
	if errors.As(err, &s) {
		fmt.Println("refused by", s.StoppedBy)
		return nil
	}
	fmt.Println("wrote", err)
	return nil
}
