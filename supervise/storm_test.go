package supervise

import (
	"encoding/json"
	"os"
	"strconv"
	"strings"
	"testing"
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
		w := newWorld(t, seed)
		w.pass(8 * time.Hour)
		w.settle()
		for k, n := range w.counts {
			total[k] += n
		}
		incidents += len(w.incidents)
		if len(w.broken) > 0 {
			t.Errorf("seed %d: %d violations, the first:\n%s", seed, len(w.broken), strings.Join(w.broken[:min(5, len(w.broken))], "\n"))
			w.dump()
		}
	}
	text, _ := json.Marshal(total)
	t.Logf("%d worlds, %d incidents, %s", worlds, incidents, text)
	if incidents < 20*int(worlds) || total["restarts"] < 5*int(worlds) || total["monitors died"] < int(worlds) {
		t.Errorf("the worlds were too quiet to show anything: %d incidents, %v", incidents, total)
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
