package relocate

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// violation says which promise a world breaks; "" for none.
func (m *machine) violation(w *world) string {
	switch {
	case m.broken != "":
		return m.broken
	case w.servesS() && w.servesT():
		return "two owners: both sides run turns (I1)"
	case w.servesS() && w.passed:
		return "S runs turns although the record has said accepted (FO-5b)"
	case w.passed && w.s.unit.state == srcKept:
		return "S keeps the object although the record has said accepted (FO-5b)"
	case w.open && (w.rec().kind < recTarget):
		return "T is open although the record does not name it (FO-7e)"
	case w.s.alive && w.s.unit.state == srcKept && w.rec().kind == recPreparing:
		return "S keeps the object although the record says that it moves"
	case w.rec().kind >= recTarget && w.rec().kind <= recCleared && !w.passed:
		return "T committed what S never accepted (FO-5b)"
	case w.passed && !w.ready:
		return "S accepted what T never said"
	case w.t.alive && w.t.unit.state == dstDropped && w.rec().kind == recAccepted:
		return "T dropped its instance although the record says accepted: the object is lost"
	}
	pos := [modelMessages]int{}
	for i := range w.order.len() {
		pos[w.order[i]-1] = i + 1
	}
	settled := (!w.s.alive || w.s.unit.state.terminal()) && (!w.t.alive || w.t.unit.state == 0 || w.t.unit.state.terminal())
	for i, mail := range w.mails {
		switch {
		case mail.ran > 1:
			return fmt.Sprintf("message %d ran twice (I2)", i)
		case mail.ran > 0 && mail.told == toldNot:
			return fmt.Sprintf("message %d ran although its sender was told NotAccepted (I3)", i)
		}
		if i < len(m.sc.senders) && m.sc.senders[i] >= 0 {
			if before := m.sc.senders[i]; pos[i] > 0 && (pos[before] == 0 || pos[before] > pos[i]) && !w.mails[before].ended {
				return fmt.Sprintf("message %d ran before message %d, which its sender had seen accepted (I4)", i, before)
			}
		}
		if settled && mail.told == toldAccepted && mail.ran == 0 && !mail.ended && !w.keeps(i) {
			return fmt.Sprintf("message %d was accepted and is nowhere (I3)", i)
		}
		if settled && mail.sent && mail.told == untold && w.t.alive && w.s.alive {
			return fmt.Sprintf("message %d never ends for its sender (I5)", i)
		}
	}
	return ""
}

// keeps reports whether a message is in a mailbox that still runs.
func (w *world) keeps(i int) bool {
	has := func(q queue) bool {
		for j := range q.len() {
			if int(q[j]) == i+1 {
				return true
			}
		}
		return false
	}
	return w.s.alive && w.inst && has(w.box) || w.t.alive && w.open && has(w.work)
}

// result is what an exploration found.
type result struct {
	states int
	bug    string
	trace  []world
}

// limit bounds an exploration: a scenario that grows beyond it has to be cut down.
const modelLimit = 1_500_000

// explore visits every world of a scenario, breadth first, until one breaks a promise; then it looks for worlds in which a side
// that lives can never end.
func explore(sc scenario, mut mutant) result {
	m := &machine{sc: sc, mut: mut}
	start := world{inst: true, net: msgReserve}
	start.s = process{unit: newSource(), alive: true}
	start.t.alive = true
	var (
		worlds = []world{start}
		index  = map[world]int32{start: 0}
		parent = []int32{-1}
		edges  [][2]int32 // without faults: from, to
	)
	trace := func(i int32) (ws []world) {
		for ; i >= 0; i = parent[i] {
			ws = append([]world{worlds[i]}, ws...)
		}
		return ws
	}
	for at := int32(0); int(at) < len(worlds); at++ {
		var bug result
		m.successors(worlds[at], func(next world, fault bool) {
			if bug.bug != "" || next == worlds[at] {
				return
			}
			to, known := index[next]
			if !known {
				to = int32(len(worlds))
				index[next] = to
				worlds = append(worlds, next)
				parent = append(parent, at)
				if v := m.violation(&next); v != "" {
					bug = result{bug: v, trace: trace(to)}
				}
			}
			if !fault {
				edges = append(edges, [2]int32{to, at})
			}
		})
		if m.broken != "" && bug.bug == "" {
			bug = result{bug: m.broken, trace: trace(at)}
		}
		if bug.bug != "" {
			bug.states = len(worlds)
			return bug
		}
		if len(worlds) > modelLimit {
			return result{states: len(worlds), bug: "too many states"}
		}
	}
	for _, side := range []struct {
		name string
		end  func(w *world) bool
	}{
		{"S", func(w *world) bool { return !w.s.alive || w.s.unit.state.terminal() }},
		{"T", func(w *world) bool { return !w.t.alive || w.t.unit.state == 0 || w.t.unit.state.terminal() }},
	} {
		if i := stuck(worlds, edges, side.end); i >= 0 {
			return result{len(worlds), side.name + " is stuck: it lives and can never end", trace(i)}
		}
	}
	return result{states: len(worlds)}
}

// stuck returns a world from which no path without faults leads to an end, or -1.
func stuck(worlds []world, back [][2]int32, end func(*world) bool) int32 {
	first := make([]int32, len(worlds)+1)
	for _, e := range back {
		first[e[0]+1]++
	}
	for i := range worlds {
		first[i+1] += first[i]
	}
	from := make([]int32, len(back))
	fill := append([]int32(nil), first...)
	for _, e := range back {
		from[fill[e[0]]] = e[1]
		fill[e[0]]++
	}
	ends := make([]bool, len(worlds))
	var todo []int32
	for i := range worlds {
		if end(&worlds[i]) {
			ends[i] = true
			todo = append(todo, int32(i))
		}
	}
	for len(todo) > 0 {
		i := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		for _, p := range from[first[i]:first[i+1]] {
			if !ends[p] {
				ends[p] = true
				todo = append(todo, p)
			}
		}
	}
	for i, ok := range ends {
		if !ok {
			return int32(i)
		}
	}
	return -1
}

// String shows what of a world a person needs to follow a trace.
func (w *world) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "S %s", w.s.unit.state)
	if !w.s.alive {
		b.WriteString(" (dead)")
	}
	if w.s.write.stage != noWrite {
		fmt.Fprintf(&b, " writing %s (%d)", verbNames[w.s.write.verb], w.s.write.stage)
	}
	fmt.Fprintf(&b, ", T %s", w.t.unit.state)
	if !w.t.alive {
		b.WriteString(" (dead)")
	}
	if w.t.write.stage != noWrite {
		fmt.Fprintf(&b, " writing %s (%d)", verbNames[w.t.write.verb], w.t.write.stage)
	}
	fmt.Fprintf(&b, ", record %d %s h=%d, hold %v pub %d got %b, box %v cargo %v work %v temp %v ran %v, mails", w.last, w.rec().view(), w.rec().h, w.hold, w.pub, w.got, w.box, w.cargo, w.work, w.temp, w.order)
	for _, x := range w.mails {
		fmt.Fprintf(&b, " %d", x.told)
	}
	return b.String()
}

func (r result) report() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, after %d states:\n", r.bug, r.states)
	for i := range r.trace {
		fmt.Fprintf(&b, "  %s\n", r.trace[i].String())
	}
	return b.String()
}

var scenarios = []scenario{
	{name: "three messages", senders: []int{-1, 0, 1}},
	{name: "a death, a release", senders: []int{-1}, deaths: 1, release: true, late: 1},
	{name: "lost answers, late writes", senders: []int{-1}, late: 2, refusals: 1, opens: 1},
	{name: "leases", senders: []int{-1}, lapses: 1, late: 1, release: true},
	{name: "two deaths", deaths: 2, late: 1, release: true},
}

// TestModel explores every interleaving of each scenario.
func TestModel(t *testing.T) {
	t.Parallel()
	for _, sc := range scenarios {
		t.Run(strings.ReplaceAll(sc.name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			begin := time.Now()
			r := explore(sc, mutant{})
			if r.bug != "" {
				t.Fatal(r.report())
			}
			t.Logf("%d states in %v", r.states, time.Since(begin))
		})
	}
}
