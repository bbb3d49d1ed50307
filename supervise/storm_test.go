package supervise

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestNoStorm runs incidents in virtual time against the rules that no restart may break (SV-15, validator I7): with any
// number of monitors that freeze and die at every step, answers of the store that are lost or late, replicas that are
// behind, outages, log collection, commands and notifiers that fail, workers that boot longer than anything lasts, or come
// back at the last moment.
//
// SUPERVISE_SEED runs one seed, SUPERVISE_WORLDS so many.
func TestNoStorm(t *testing.T) {
	t.Parallel()
	worlds, first := uint64(8), uint64(1)
	if testing.Short() {
		worlds = 3
	}
	if s := os.Getenv("SUPERVISE_WORLDS"); s != "" {
		worlds, _ = strconv.ParseUint(s, 10, 64)
	}
	if s := os.Getenv("SUPERVISE_SEED"); s != "" {
		first, _ = strconv.ParseUint(s, 10, 64)
		worlds = 1
	}
	total, incidents := map[string]int{}, 0
	for seed := first; seed < first+worlds; seed++ { // not side by side: they only compute, and others wait by the clock
		inWorld(t, seed, func(w *world) {
			w.pass(8 * time.Hour)
			w.settle()
			for k, n := range w.counts {
				total[k] += n
			}
			incidents += len(w.incidents)
			if len(w.broken) > 0 {
				w.t.Errorf("seed %d: %d violations, the first:\n%s", seed, len(w.broken), strings.Join(w.broken[:min(5, len(w.broken))], "\n"))
				w.dump()
			}
		})
	}
	text, _ := json.Marshal(total)
	t.Logf("%d worlds, %d incidents, %s", worlds, incidents, text)
	if incidents < 20*int(worlds) || total["restarts"] < 5*int(worlds) || total["monitors died"] < int(worlds) {
		t.Errorf("the worlds were too quiet to show anything: %d incidents, %v", incidents, total)
	}
}

// inWorld runs f with the world of a seed. In its bubble the machine's time stands still as long as anything runs: no limit of the
// runner's own is over because the machine is slow.
func inWorld(t *testing.T, seed uint64, f func(w *world)) {
	synctest.Test(t, func(t *testing.T) { f(newWorld(t, seed)) })
}

// A seed is one world, or what TestNoStorm finds could not be looked at again.
func TestSeedIsOneWorld(t *testing.T) {
	t.Parallel()
	var ends []string
	for range 2 {
		inWorld(t, 3, func(w *world) {
			w.pass(3 * time.Hour)
			counts, _ := json.Marshal(w.counts)
			ends = append(ends, fmt.Sprint(w.clock, w.rnd.Uint64(), w.store.seq, len(w.incidents), string(counts)))
		})
	}
	if ends[0] != ends[1] {
		t.Errorf("the same seed led to\n%s\nand to\n%s", ends[0], ends[1])
	}
}

func (w *world) dump() {
	for _, m := range w.workers {
		token, _ := escape(m.id)
		w.t.Logf("%s: %s", m.id, w.store.read(incidentPrefix+token+".case", w.clock).Value)
		for _, r := range w.restarts[m.id] {
			w.t.Logf("  restarted %s by %s (%s)", r.at.Format(time.TimeOnly), r.by, r.attempt)
		}
	}
}
