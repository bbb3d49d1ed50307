package sqltest

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"testing"
	"time"

	"natsfabric/fence"
	"natsfabric/fence/device"
)

// fencedRole is FE-7 for a database: the role may not log in, its sessions are ended, and what it had begun is not committed. Checked
// apart from the device: by the sessions' own fate, by logging in, and by what stands in the table.
func fencedRole(t *testing.T) {
	url := newSchema(t)
	admin := open(t, "pgx", url)
	suffix := time.Now().UnixNano()
	bad, good := fmt.Sprintf("Node %d", suffix), fmt.Sprintf("other_%d", suffix)
	run(t, admin, fmt.Sprintf(`CREATE ROLE "%s" LOGIN`, bad), fmt.Sprintf(`CREATE ROLE %s LOGIN`, good),
		"CREATE TABLE entry (who TEXT)", fmt.Sprintf(`GRANT ALL ON entry TO "%s", %s`, bad, good))
	t.Cleanup(func() {
		for _, r := range []string{bad, good} {
			admin.Exec(fmt.Sprintf(`DROP OWNED BY "%s"`, r)) //nolint:errcheck // the server ends with the test run
			admin.Exec(fmt.Sprintf(`DROP ROLE "%s"`, r))     //nolint:errcheck // as above
		}
	})
	schema := one(t, admin, "SELECT current_schema()")
	run(t, admin, fmt.Sprintf(`GRANT USAGE ON SCHEMA %s TO "%s", %s`, schema, bad, good))
	as := func(role string) *sql.DB {
		return open(t, "pgx", strings.Replace(url, "postgres@", strings.ReplaceAll(role, " ", "%20")+"@", 1))
	}
	node, other := as(bad), as(good)
	run(t, node, "INSERT INTO entry VALUES ('committed')")
	run(t, other, "INSERT INTO entry VALUES ('other')")
	tx, err := node.Begin()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec("INSERT INTO entry VALUES ('under way')"); err != nil {
		t.Fatal(err)
	}

	d := device.NewPostgreSQL("revoke", admin, nil, 200*time.Millisecond)
	target := fence.Target{Node: "n1", Labels: map[string]string{device.LabelRole: bad}}
	ctx := bounded(t)
	if r := d.Check(ctx, target); r.Answer != fence.NotFenced {
		t.Fatalf("before: %+v", r)
	}
	if r := d.Fence(ctx, target); r.Answer != fence.Fenced {
		t.Fatalf("%+v", r)
	}
	if r := d.Check(ctx, target); r.Answer != fence.Fenced {
		t.Fatalf("after: %+v", r)
	}
	if err := tx.Commit(); err == nil {
		t.Error("the fenced role's transaction was committed")
	}
	if _, err := node.Exec("INSERT INTO entry VALUES ('late')"); err == nil {
		t.Error("the fenced role has written")
	}
	if err := as(bad).Ping(); err == nil {
		t.Error("the fenced role has logged in")
	}
	if err := other.Ping(); err != nil {
		t.Errorf("another role was cut off: %v", err)
	}
	if got := one(t, admin, "SELECT string_agg(who, ' ' ORDER BY who) FROM entry"); got != "committed other" {
		t.Errorf("the table holds %q", got)
	}

	// The right to log in given back, and a session, are seen.
	run(t, admin, fmt.Sprintf(`ALTER ROLE "%s" LOGIN`, bad))
	if r := d.Check(ctx, target); r.Answer != fence.NotFenced {
		t.Errorf("may log in again: %+v", r)
	}
	run(t, as(bad), "SELECT 1")
	run(t, admin, fmt.Sprintf(`ALTER ROLE "%s" NOLOGIN`, bad))
	if r := d.Check(ctx, target); r.Answer != fence.NotFenced || !strings.Contains(r.Detail, "1 sessions") {
		t.Errorf("with a session: %+v", r)
	}

	// What cannot be told.
	for name, role := range map[string]string{"no such role": "nobody_there", "no name": ""} {
		target := fence.Target{Labels: map[string]string{device.LabelRole: role}}
		for _, r := range []fence.Report{d.Fence(ctx, target), d.Check(ctx, target)} {
			if r.Answer != fence.Unknown {
				t.Errorf("%s: %+v", name, r)
			}
		}
	}
	if r := d.Fence(ctx, fence.Target{Labels: map[string]string{device.LabelRole: "postgres"}}); r.Answer != fence.Unknown {
		t.Errorf("the device's own role: %+v", r)
	}
	if err := admin.Ping(); err != nil {
		t.Errorf("the device has cut itself off: %v", err)
	}
	gone := open(t, "pgx", "postgres://postgres@127.0.0.1:1/postgres?sslmode=disable&connect_timeout=1")
	if r := device.NewPostgreSQL("revoke", gone, nil, 0).Check(ctx, target); r.Answer != fence.Unknown {
		t.Errorf("a database that is gone: %+v", r)
	}
}

func bounded(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	t.Cleanup(cancel)
	return ctx
}
