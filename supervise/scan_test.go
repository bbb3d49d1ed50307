package supervise

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"natsfabric/internal/monotime"
	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// counted is a store that counts the records that a look reads.
type counted struct {
	*modelStore
	reads int
}

func (c *counted) List(ctx context.Context, prefix string, f func(kvlocation.SharedEntry) bool) error {
	return c.modelStore.List(ctx, prefix, func(e kvlocation.SharedEntry) bool {
		if prefix == workerPrefix {
			c.reads++
		}
		return f(e)
	})
}

func (c *counted) Get(ctx context.Context, key string) (kvlocation.SharedEntry, error) {
	if strings.HasPrefix(key, workerPrefix) {
		c.reads++
	}
	return c.modelStore.Get(ctx, key)
}

// Between two looks that read all records a monitor reads the old ones and those about which something is open, and comes to
// the same.
func TestMostLooksReadOldRecordsOnly(t *testing.T) {
	now := epoch
	store := &counted{modelStore: newModelStore()}
	store.now = func() time.Time { return now }
	cfg := config(DefaultPolicy(), &journal{}, &alerts{})
	cfg.Expected = []string{"w0", "late"}
	m, err := newMonitor(store, "model", cfg)
	if err != nil {
		t.Fatal(err)
	}
	m.run.mono = func() monotime.Time { return monotime.Time(now.Sub(epoch)) }
	m.run.record = func(Event) {}
	m.run.told = func(string) {}
	beat := func(id string, s State) {
		t.Helper()
		key := workerPrefix + id
		r := Record{V: 1, Worker: id, State: s, StateSince: epoch, ProgressAt: now}
		if _, err := store.set(store.modelStore.read(key, now), encode(r), 24*time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	const well = 50
	quiet := map[string]bool{}
	read := 0 // by the latest look itself
	look := func(pass time.Duration) scan {
		t.Helper()
		now = now.Add(pass)
		for i := range well {
			if id := fmt.Sprint("w", i); !quiet[id] {
				beat(id, Processing)
			}
		}
		store.reads = 0
		s, err := m.scan(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		read = store.reads
		for _, v := range s.due {
			if err := m.run.work(context.Background(), s.clock, v.worker, s.fleet, v.expected); err != nil {
				t.Fatal(err)
			}
		}
		return s
	}
	check := m.cfg.Policy.CheckInterval
	if s := look(0); read != well || s.fleet.workers != well+1 || s.verdicts[Unreachable] != 1 { // "late" is missing
		t.Fatalf("the first look read %d records and found %+v", read, s.verdicts)
	}
	beat("late", Idle)
	beat("erring", Failed)
	if s := look(check); read > 3 || s.verdicts[Unreachable] != 0 || s.fleet.workers != well+1 {
		t.Fatalf("the second look read %d records and found %+v of %d", read, s.verdicts, s.fleet.workers)
	}
	quiet["w7"] = true
	var hung int
	for range 7 {
		beat("late", Idle)
		hung += look(check).verdicts[Hung]
	}
	if hung == 0 {
		t.Fatal("a worker that hangs was not found between")
	}
	token := incidentPrefix + "w7.case"
	if c := factOf[Incident](store.modelStore.read(token, now)); c == nil || c.value.State != IncidentOpen {
		t.Fatalf("its incident: %+v", c)
	}
	delete(quiet, "w7")
	look(check)
	if c := factOf[Incident](store.modelStore.read(token, now)); c.value.State != IncidentRecovered {
		t.Fatalf("it has recovered: %+v", c.value)
	}
	// What only a fresh record can show is found by the next look at all of them.
	found := false
	for range 2 * m.cfg.Policy.censusEvery() {
		now = now.Add(30 * time.Minute / time.Duration(m.cfg.Policy.censusEvery()))
		beat("erring", Failed)
		found = found || look(0).verdicts[Erroneous] == 1
	}
	if !found {
		t.Fatal("a worker in state error, whose heartbeat is fresh, was never found")
	}
}

// A look that would read many records one by one reads all of them.
func TestManyOpenReadAll(t *testing.T) {
	now := epoch
	store := &counted{modelStore: newModelStore()}
	store.now = func() time.Time { return now }
	m, err := newMonitor(store, "model", config(DefaultPolicy(), &journal{}, &alerts{}))
	if err != nil {
		t.Fatal(err)
	}
	m.run.mono = func() monotime.Time { return monotime.Time(now.Sub(epoch)) }
	set := func(key string, value any) {
		t.Helper()
		if _, err := store.set(store.modelStore.read(key, now), encode(value), time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	const well = maxSingle + 100
	look := func(seen int) int {
		t.Helper()
		for i := range well {
			set(fmt.Sprint(workerPrefix, "w", i), Record{V: 1, Worker: fmt.Sprint("w", i), State: Processing, ProgressAt: now})
		}
		for i := range seen {
			set(fmt.Sprint(incidentPrefix, "w", i, ".sight"), sighting{V: 1, Worker: fmt.Sprint("w", i), Verdict: Hung})
		}
		store.reads = 0
		s, err := m.scan(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if s.fleet.workers != well || len(s.due) != seen {
			t.Fatalf("%d workers, %d of them to be looked after, want %d and %d", s.fleet.workers, len(s.due), well, seen)
		}
		return store.reads
	}
	for _, c := range []struct{ seen, reads int }{{0, well}, {0, 1}, {maxSingle, maxSingle + 1}, {maxSingle + 1, well}} {
		if got := look(c.seen); got != c.reads {
			t.Errorf("with %d workers about whom something is open, %d records were read, want %d", c.seen, got, c.reads)
		}
	}
}

// Whom somebody means to look broken is not counted among the broken, nor is one that only stands still; each look counts those that are
// missing, and looks at those about whom something is open.
func TestWhoCounts(t *testing.T) {
	now := epoch
	store := newModelStore()
	store.now = func() time.Time { return now }
	cfg := config(DefaultPolicy(), &journal{}, &alerts{})
	cfg.Expected = []string{"off"}
	m, err := newMonitor(store, "model", cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer m.cancel()
	m.run.mono = func() monotime.Time { return monotime.Time(now.Sub(epoch)) }
	m.run.record = func(Event) {}
	set := func(key string, value any) {
		t.Helper()
		if _, err := store.set(store.read(key, now), encode(value), 24*time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	for _, w := range []string{"hung", "upgraded"} {
		set(workerPrefix+w, Record{V: 1, Worker: w, State: Processing})
	}
	now = now.Add(time.Hour)
	for _, w := range []string{"off", "upgraded"} {
		set(markerPrefix+w, Marker{V: 1, Worker: w, Action: ActionUpgrade, By: "test", Until: now.Add(time.Hour)})
	}
	for _, w := range []string{"well", "slow"} {
		set(workerPrefix+w, Record{V: 1, Worker: w, State: Processing, ProgressAt: map[string]time.Time{"well": now, "slow": epoch}[w]})
	}
	for i := range 3 {
		s, err := m.scan(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if s.fleet != (fleet{workers: 5, broken: 1}) || s.planned != 2 || s.verdicts[Hung] != 2 || s.verdicts[Unreachable] != 1 {
			t.Errorf("look %d: %+v, %d planned, %v", i, s.fleet, s.planned, s.verdicts)
		}
		if open := slices.ContainsFunc(s.due, func(v *view) bool { return v.worker == "well" }); open != (i == 2) {
			t.Errorf("look %d: its incident is open, and something is to be done: %t", i, open)
		}
		if i == 1 { // in the cooldown nothing but the incident is there
			set(incidentPrefix+"well.case", Incident{V: 1, Worker: "well", ID: "i", State: IncidentOpen, Verdict: Hung})
		}
		now = now.Add(time.Second)
	}
}

// A record that cannot be read is its worker's all the same.
func TestUnreadableRecord(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	if _, err := b.sh.Create(testContext(t), workerPrefix+"w", []byte(`{"v":"x"}`), time.Hour); err != nil {
		t.Fatal(err)
	}
	all, err := Workers(testContext(t), b.sh, fast(), nil)
	if err != nil || len(all) != 1 || all[0].Worker != "w" {
		t.Errorf("%+v, %v", all, err)
	}
}

// An incident that a newer version has written keeps what this one does not know; nobody acts on one of a newer schema, or on
// such a budget.
func TestNewerIncidents(t *testing.T) {
	t.Parallel()
	in := factOf[Incident](kvlocation.SharedEntry{Revision: 1, Value: []byte(`{"v":1,"worker":"w","state":"open","later":{"x":[1]}}`)})
	next := in.value.clone(time.Time{})
	next.Numbered++
	if got := string(next.encode()); !strings.Contains(got, `"later":{"x":[1]}`) || !strings.Contains(got, `"numbered":1`) {
		t.Errorf("written again it is %s", got)
	}
	for _, key := range []string{incidentPrefix + "w.case", budgetKey} {
		b := newBed(t)
		read := func() error {
			c, err := readClock(testContext(t), b.sh, monotime.Now)
			if err != nil {
				t.Fatal(err)
			}
			_, err = readView(testContext(t), b.sh, c, "w", "m", false, kvlocation.SharedEntry{})
			return err
		}
		if err := read(); err != nil {
			t.Fatal(err)
		}
		if _, err := b.sh.Create(testContext(t), key, []byte(`{"v":2}`), time.Hour); err != nil {
			t.Fatal(err)
		}
		if err := read(); outcome.KindOf(err) != outcome.ProtocolError || !strings.Contains(err.Error(), key) {
			t.Errorf("a newer %s: %v", key, err)
		}
	}
}
