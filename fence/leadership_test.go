package fence

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// world is a leadership, the processes that want it, and the truth about them that no record knows.
type world struct {
	rec      Leadership
	revision uint64
	views    map[string]view // what each process has read
	runs     map[string]string
	dead     map[string]bool // runs that can do no more harm: stopped, or cut off
	count    int
}

func (w *world) process(node string) Candidate { return Candidate{Node: node, Run: w.runs[node]} }

// write is a compare-and-set of what the process has read.
func (w *world) write(t *rapid.T, node string, ev event) bool {
	v := w.views[node]
	next, err := v.rec.apply(v.at.Revision, ev)
	if err != nil || v.at.Revision != w.revision {
		return false
	}
	before := view{rec: w.rec}
	before.at.Revision = w.revision
	w.revision++
	// I8: nobody is promoted over a holder that may still do harm.
	if next.Phase == PhaseLed && before.rec.Holder != nil && next.Holder.Run != before.rec.Holder.Run && !w.dead[before.rec.Holder.Run] {
		t.Fatalf("I8: %s was promoted over %s, which is alive: %s after %s", next.Holder.Run, before.rec.Holder.Run, asJSON(next), asJSON(before.rec))
	}
	// I6: terms never go backwards.
	after := view{rec: next}
	after.at.Revision = w.revision
	if next.Holder != nil && before.rec.Holder != nil && after.term() < before.term() {
		t.Fatalf("I6: term %d after %d", after.term(), before.term())
	}
	if next.Holder != nil && before.rec.Holder != nil && next.Holder.Run != before.rec.Holder.Run && after.term() <= before.term() {
		t.Fatalf("I6: %s and %s have one term, %d", before.rec.Holder.Run, next.Holder.Run, after.term())
	}
	// FE-9: the holder is never the one who fences.
	if next.Phase == PhaseFencing && next.Claim.By.Node == next.Holder.Node {
		t.Fatalf("FE-9: %s has the right to fence itself", next.Holder.Node)
	}
	w.rec = next
	w.views[node] = after
	return true
}

func asJSON(v any) string { b, _ := json.Marshal(v); return string(b) }

// The transition function under everything that processes may do to it: act on what they have read long ago, lose their
// memory at any step, be taken for silent while they are not, answer for devices that did nothing, and confirm what was
// not answered. Only devices' checks and persons tell the truth.
func TestModel(t *testing.T) {
	nodes := []string{"a", "b", "c"}
	rapid.Check(t, func(t *rapid.T) {
		w := &world{views: map[string]view{}, runs: map[string]string{}, dead: map[string]bool{}}
		for _, n := range nodes {
			w.runs[n] = n + "0"
		}
		for range rapid.IntRange(20, 120).Draw(t, "steps") {
			node := rapid.SampledFrom(nodes).Draw(t, "node")
			self := w.process(node)
			if w.dead[self.Run] {
				// Only a new run of the node can act; the old one is gone for good.
				w.count++
				w.runs[node] = fmt.Sprint(node, w.count)
				delete(w.views, node)
				continue
			}
			v := w.views[node]
			holder := Candidate{}
			if v.rec.Holder != nil {
				holder = *v.rec.Holder
			}
			attempt := 0
			if v.rec.Claim != nil {
				attempt = v.rec.Claim.Attempt
			}
			idle := rapid.Bool().Draw(t, "idle")
			switch rapid.IntRange(0, 11).Draw(t, "action") {
			case 0, 1, 2: // read
				n := view{rec: w.rec}
				n.at.Revision = w.revision
				w.views[node] = n
			case 3:
				w.write(t, node, grant{to: self, ttl: time.Second, mustFence: true, idle: idle})
			case 4:
				w.write(t, node, renew{run: self.Run, term: v.term(), ttl: time.Second})
			case 5:
				if holder.Run == self.Run {
					w.dead[self.Run] = true // it stops before it resigns
					w.write(t, node, resign{run: self.Run, term: v.term()})
				}
			case 6:
				w.write(t, node, suspect{by: self, ttl: time.Second, idle: idle})
			case 7: // a device cuts the holder off, whether it may or not, and perhaps says nothing
				w.write(t, node, intend{run: self.Run, level: 0, device: "power"})
				if v.rec.Phase == PhaseFencing && v.rec.Claim.By.Run == self.Run && rapid.Bool().Draw(t, "works") {
					w.dead[holder.Run] = true
				}
			case 8, 9: // the check of the device looks, and tells the truth or nothing
				a := NotFenced
				if w.dead[holder.Run] {
					a = Fenced
				}
				if rapid.IntRange(0, 3).Draw(t, "mute") == 0 {
					a = Unknown
				}
				w.write(t, node, answered{run: self.Run, try: Try{Attempt: attempt, Device: "power", Answer: a}})
			case 10:
				w.write(t, node, confirm{run: self.Run, devices: []string{"power"}})
			case 11:
				if w.dead[holder.Run] && rapid.IntRange(0, 4).Draw(t, "person") == 0 {
					w.write(t, node, vouch{node: holder.Node, by: "me", reason: "looked", idle: idle})
				}
			}
		}
	})
}

func led() (Leadership, uint64) {
	return Leadership{Phase: PhaseLed, Holder: &Candidate{Node: "a", Run: "a0"}, MustFence: true, TTLMillis: 1000}, 7
}

// Every event in every phase: what is not named is refused.
func TestTransitions(t *testing.T) {
	a, b, c := Candidate{Node: "a", Run: "a0"}, Candidate{Node: "b", Run: "b0"}, Candidate{Node: "c", Run: "c0"}
	ledRec, rev := led()
	noFence := ledRec
	noFence.MustFence = false
	fencing := ledRec
	fencing.Phase, fencing.Term, fencing.Claim = PhaseFencing, rev, &Claim{By: b, Attempt: 2}
	said := fencing
	said.Tries = []Try{{Attempt: 2, Device: "power", Answer: Fenced}}
	earlier := fencing
	earlier.Tries = []Try{{Attempt: 1, Device: "power", Answer: Fenced}}
	fenced := ledRec
	fenced.Phase, fenced.Term, fenced.Confirmed = PhaseFenced, rev, &Confirmation{How: ByDevice}
	vacant := fenced
	vacant.Phase = PhaseVacant
	unconfirmed := fenced
	unconfirmed.Confirmed = nil
	for _, x := range []struct {
		name string
		from Leadership
		ev   event
		want Phase // "" is a refusal
	}{
		{"first grant", Leadership{}, grant{to: a}, PhaseLed},
		{"grant of what is vacant", vacant, grant{to: b, mustFence: true}, PhaseLed},
		{"grant of what is fenced", fenced, grant{to: b, mustFence: true}, PhaseLed},
		{"grant of what is not confirmed", unconfirmed, grant{to: b, idle: true}, ""},
		{"grant of what is led", noFence, grant{to: b}, ""},
		{"grant over silence, no fencing", noFence, grant{to: b, idle: true}, PhaseLed},
		{"grant over silence, the holder must be fenced", ledRec, grant{to: b, idle: true}, ""},
		{"grant over silence, the candidate fences", noFence, grant{to: b, idle: true, mustFence: true}, ""},
		{"grant of what is being fenced", fencing, grant{to: b, idle: true}, ""},
		{"renewal", ledRec, renew{run: "a0", term: rev}, PhaseLed},
		{"renewal by another", ledRec, renew{run: "b0", term: rev}, ""},
		{"renewal of another term", ledRec, renew{run: "a0", term: rev + 1}, ""},
		{"renewal of what is being fenced", fencing, renew{run: "a0", term: rev}, ""},
		{"resignation", ledRec, resign{run: "a0", term: rev}, PhaseVacant},
		{"resignation of a suspect", fencing, resign{run: "a0", term: rev}, PhaseVacant},
		{"resignation by another", ledRec, resign{run: "b0", term: rev}, ""},
		{"resignation of another term", ledRec, resign{run: "a0", term: rev + 1}, ""},
		{"resignation of what is fenced", fenced, resign{run: "a0", term: rev}, ""},
		{"suspicion of a silent one", ledRec, suspect{by: b, idle: true}, PhaseFencing},
		{"suspicion of one that is not silent", ledRec, suspect{by: b}, ""},
		{"suspicion of itself", ledRec, suspect{by: a, idle: true}, ""},
		{"taking over the right", fencing, suspect{by: c, idle: true}, PhaseFencing},
		{"taking the right from one that is not silent", fencing, suspect{by: c}, ""},
		{"the next attempt", fencing, suspect{by: b}, PhaseFencing},
		{"the suspect takes the right", fencing, suspect{by: a, idle: true}, ""},
		{"suspicion of what is fenced", fenced, suspect{by: b, idle: true}, ""},
		{"intent", fencing, intend{run: "b0", device: "power"}, PhaseFencing},
		{"intent without the right", fencing, intend{run: "c0", device: "power"}, ""},
		{"intent in peace", ledRec, intend{run: "b0", device: "power"}, ""},
		{"answer", fencing, answered{run: "b0", try: Try{Attempt: 2}}, PhaseFencing},
		{"answer of an earlier attempt", fencing, answered{run: "b0", try: Try{Attempt: 1}}, ""},
		{"confirmation", said, confirm{run: "b0", devices: []string{"power"}}, PhaseFenced},
		{"confirmation without an answer", fencing, confirm{run: "b0", devices: []string{"power"}}, ""},
		{"confirmation of half a level", said, confirm{run: "b0", devices: []string{"power", "disk"}}, ""},
		{"confirmation of another level", said, confirm{run: "b0", level: 1, devices: []string{"power"}}, ""},
		{"confirmation by an answer of an earlier attempt", earlier, confirm{run: "b0", devices: []string{"power"}}, ""},
		{"confirmation of nothing", said, confirm{run: "b0"}, ""},
		{"confirmation without the right", said, confirm{run: "c0", devices: []string{"power"}}, ""},
		{"a person's word", fencing, vouch{node: "a", by: "me", reason: "saw it"}, PhaseFenced},
		{"a person's word about another node", fencing, vouch{node: "b", by: "me", reason: "saw it"}, ""},
		{"a person's word in peace", ledRec, vouch{node: "a", by: "me", reason: "saw it"}, ""},
		{"a person's word about a silent one", ledRec, vouch{node: "a", by: "me", reason: "saw it", idle: true}, PhaseFenced},
		{"a person's word about what is vacant", vacant, vouch{node: "a", by: "me", reason: "saw it", idle: true}, ""},
	} {
		before := asJSON(x.from)
		next, err := x.from.apply(rev, x.ev)
		switch {
		case x.want == "" && err == nil:
			t.Errorf("%s: became %s", x.name, asJSON(next))
		case x.want != "" && (err != nil || next.Phase != x.want):
			t.Errorf("%s: %q, %v; want %q", x.name, next.Phase, err, x.want)
		}
		if asJSON(x.from) != before {
			t.Errorf("%s: the record given was changed", x.name)
		}
	}
	if _, err := ledRec.apply(rev, grant{to: b, idle: true}); !errors.Is(err, errMustFence) {
		t.Errorf("a grant over one who must be fenced: %v", err)
	}
	// What a term leaves behind says nothing about the next holder.
	said.Phase, said.Confirmed = PhaseFenced, &Confirmation{How: ByDevice}
	if next, err := said.apply(rev, grant{to: b, mustFence: true}); err != nil || next.Tries != nil || next.Claim != nil || next.Confirmed != nil || next.Term != 0 {
		t.Errorf("a new term begins with %s, %v", asJSON(next), err)
	}
	// What a record keeps is bounded, and the newest stays.
	long := fencing
	for i := range maxTries + 5 {
		var err error
		if long, err = long.apply(rev, answered{run: "b0", try: Try{Attempt: 2, Level: i}}); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(long.Tries); n != maxTries || long.Tries[n-1].Level != maxTries+4 {
		t.Errorf("%d tries are kept, the last of level %d", n, long.Tries[n-1].Level)
	}
}

func TestPlanCheck(t *testing.T) {
	dev := func(name string) Device { return mute(name) }
	for name, x := range map[string]struct {
		plan Plan
		ok   bool
	}{
		"node":              {Plan{Resources: []string{"db", "nats"}, Levels: []Level{{{Device: dev("power")}}}}, true},
		"both resources":    {Plan{Resources: []string{"db", "nats"}, Levels: []Level{{{Device: dev("sql"), Resources: []string{"db"}}, {Device: dev("kick"), Resources: []string{"nats"}}}}}, true},
		"one is left open":  {Plan{Resources: []string{"db", "nats"}, Levels: []Level{{{Device: dev("sql"), Resources: []string{"db"}}}}}, false},
		"second level open": {Plan{Resources: []string{"db"}, Levels: []Level{{{Device: dev("power")}}, {{Device: dev("x"), Resources: []string{"disk"}}}}}, false},
		"no level":          {Plan{}, false},
		"empty level":       {Plan{Levels: []Level{{}}}, false},
		"a name twice":      {Plan{Levels: []Level{{{Device: dev("x")}, {Device: dev("x")}}}}, false},
		"no device":         {Plan{Levels: []Level{{{}}}}, false},
		"too long":          {Plan{Levels: []Level{{{Device: dev("x"), Timeout: time.Hour}}}}, false},
	} {
		if err := x.plan.Check(); (err == nil) != x.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAnswerText(t *testing.T) {
	for _, a := range []Answer{Unknown, Fenced, NotFenced} {
		var back Answer
		text, _ := a.MarshalText()
		if err := back.UnmarshalText(text); err != nil || back != a {
			t.Errorf("%s came back as %s, %v", text, back, err)
		}
	}
	a := Fenced
	if a.UnmarshalText([]byte("perhaps")); a != Unknown {
		t.Errorf("a text that is no answer reads as %s", a)
	}
	if !slices.Equal([]string{Unknown.String(), Answer(99).String()}, []string{"unknown", "unknown"}) {
		t.Error("what is not known has another name")
	}
}
