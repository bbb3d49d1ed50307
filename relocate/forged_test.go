package relocate_test

import (
	"strings"
	"testing"

	"natsfabric/channels"
	"natsfabric/fabrictest"
	"natsfabric/outcome"
)

// What only the other side of a move may say is refused from anybody else: a commit's notice, with an h of its own, a cargo, a marker, and a
// reservation in another node's name.
func TestForged(t *testing.T) {
	t.Parallel()
	b, n1, n2, n3, id := three(t)
	say := func(to *node, verb, op, body string) (string, error) {
		r, err := n3.router.CallRun(b.ctx(), &channels.RunCall{
			Op: "forge", Target: verb, RID: to.rid, Lifecycle: to.lease.Lifecycle(),
			Subject: n3.router.RunSubject(to.rid, to.lease.Lifecycle(), "mv", verb+"."+op), Data: []byte(body),
		})
		return string(r.Data), err
	}
	commit := n2.proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: locationWrites, Times: -1, Action: fabrictest.HoldAlone})
	v := n1.begin(id, "n2")
	commit.Wait(t)
	m, _ := b.entry(actorKey(id)).Move()
	if a, err := say(n1, "committed", m.Op, `{"v":2,"h":7,"owner_generation":2}`); outcome.KindOf(err) != outcome.InvalidOperation {
		t.Errorf("a forged notice is answered with %s, %v", a, err)
	}
	if a, err := say(n2, "ready", m.Op, ""); outcome.KindOf(err) != outcome.InvalidOperation {
		t.Errorf("a forged question is answered with %s, %v", a, err)
	}
	select {
	case <-v.done:
		t.Error("the source believes a forged notice")
	default:
	}
	commit.Release()
	if _, err := v.wait(t); err != nil {
		t.Error(err)
	}
	body := `{"v":2,"unit":{},"source":{"rid":"n1","lifecycle":2},"named":true,"ms":1000}`
	if a, err := say(n2, "reserve", "someop", body); err != nil || !strings.Contains(a, "the source is") {
		t.Errorf("a forged reservation is answered with %s, %v", a, err)
	}
	for _, what := range []string{`{`, `{"v":1}`} {
		if a, err := say(n2, "reserve", "otherop", what); err != nil || !strings.Contains(a, "reservation") {
			t.Errorf("%s is answered with %s, %v", what, a, err)
		}
	}
}
