package relocate_test

import (
	"encoding/binary"
	"encoding/json"
	"regexp"
	"slices"
	"testing"
	"time"

	"natsfabric/fabrictest"
	"natsfabric/kvlocation"
	"natsfabric/outcome"
	"natsfabric/relocate"
)

// patient is the time of a unit, for which the other side is waited for otherwise; sooner is well below it.
var patient = unitTimeout(relocate.MaxUnitTimeout)

const sooner = long

// A Service that closes does not wait for a unit's time until the other side of a move behind its boundary speaks again: the records say what is, and what comes after
// the Service has time left.
func TestCloseWithSilentPeer(t *testing.T) {
	t.Parallel()
	t.Run("the source is silent", func(t *testing.T) {
		t.Parallel()
		b, n1, n2, _, id := three(t, patient)
		n2.proxy.Arm(with(asked("committed"), fabrictest.Drop, -1))
		v := n1.begin(id, "n2")
		if _, err := v.wait(t); err != nil { // it reads the record
			t.Fatal(err)
		}
		if p := n2.moves.Progress(); p.Arriving != 1 {
			t.Fatalf("the target does not wait for its source: %+v", p)
		}
		begun := time.Now()
		if err := n2.moves.Close(b.ctx()); err != nil {
			t.Error(err)
		}
		if took := time.Since(begun); took > sooner {
			t.Errorf("Close has waited %v", took)
		}
		b.wantOwner(actorKey(id), "n2", false)
	})
	t.Run("the target is silent", func(t *testing.T) {
		t.Parallel()
		b, n1, n2, _, id := three(t, patient, func(o *options) { o.lease.TTL = time.Minute }) // its lease does not tell
		commit := n2.proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: locationWrites, Action: fabrictest.CutBefore})
		n2.proxy.Apply(fabrictest.RefuseReconnect)
		v := n1.begin(id, "n2")
		commit.Wait(t)
		begun := time.Now()
		if err := n1.moves.Close(b.ctx()); err != nil {
			t.Error(err)
		}
		if took := time.Since(begun); took > sooner {
			t.Errorf("Close has waited %v", took)
		}
		_, err := v.wait(t)
		wantReason(t, err, outcome.Unknown, relocate.ShutdownRequested)
		n2.proxy.Heal() // and the target, back again, has the object
		b.wantOwner(actorKey(id), "n2", false)
	})
}

// A source behind the boundary whose target has died does not wait for the unit's time: nobody listens, and the target holds no lease.
func TestTargetDiesBehindBoundary(t *testing.T) {
	t.Parallel()
	b, n1, n2, n3, id := three(t, patient, shortLease)
	commit := n2.proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: locationWrites, Action: fabrictest.CutBefore})
	n2.proxy.Apply(fabrictest.RefuseReconnect)
	g := newGate(t)
	b.ledger.set(func(h *hooks) { h.restore = g.hook })
	begun := time.Now()
	v := n1.begin(id, "n2")
	g.wait(t)
	held := n1.proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToClient, Subject: "fab.m.node.*.*.obj.msg.>", Action: fabrictest.Signal})
	s := n3.send(id, "s", 5*time.Millisecond, long)
	held.Wait(t)
	g.release()
	commit.Wait(t)
	_, err := v.wait(t)
	wantReason(t, err, outcome.Unknown, relocate.RelocationFailed)
	if took := time.Since(begun); took > sooner {
		t.Errorf("the source has waited %v", took)
	}
	s.end()
	if e := b.entry(actorKey(id)); !e.Accepted() {
		t.Errorf("the record is %+v", e.Record)
	}
	if errs := s.failures(); !slices.ContainsFunc(errs, func(err error) bool {
		return outcome.KindOf(err) == outcome.Unavailable && outcome.AcceptanceOf(err) == outcome.Unknown
	}) {
		t.Errorf("what was published to the target ends with %v", errs)
	}
	if runs := b.ledger.of(id); len(runs) != 0 {
		t.Errorf("turns ran: %v", runs)
	}
}

// A target believes its own types, not its source, about how much a unit may bring: it neither makes room for a gigabyte nor waits for it.
func TestBoundedByOwnTypes(t *testing.T) {
	t.Parallel()
	b, n1, _, _, id := three(t)
	most := regexp.MustCompile(`"max_bytes":\d+`)
	n1.proxy.Arm(with(asked("reserve"), fabrictest.Replace(func(m fabrictest.Message) fabrictest.Message {
		m.Payload = most.ReplaceAll(m.Payload, []byte(`"max_bytes":1073741824`))
		return m
	}), 1))
	n1.proxy.Arm(with(part("cargo"), fabrictest.Replace(func(m fabrictest.Message) fabrictest.Message {
		n := 4 + binary.BigEndian.Uint32(m.Payload)
		var head map[string]any
		if json.Unmarshal(m.Payload[4:n], &head) != nil {
			return m
		}
		head["size"], head["bulk"] = kvlocation.MaxBulk, kvlocation.BulkRef{Chunks: 4096, Chunk: 256 << 10, Size: kvlocation.MaxBulk}
		said, _ := json.Marshal(head)
		m.Payload = append(binary.BigEndian.AppendUint32(nil, uint32(len(said))), said...)
		return m
	}), 1))
	_, err := n1.moves.Move(b.ctx(), actorKey(id), 0, "n2")
	wantReason(t, err, outcome.NotAccepted, relocate.RelocationFailed, "at most")
	b.wantOwner(actorKey(id), "n1", true)
}
