package main_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"natsfabric/fabric"
	"natsfabric/fabrictest"
	"natsfabric/kvlocation"
	"natsfabric/objects"
	"natsfabric/relocate"
)

// moveStage is what the messages about moves need: nodes whose one object each cannot move, in another way each.
type moveStage struct{ srv *fabrictest.Server }

// mulish is an object that does not move well.
type mulish struct {
	capture, restore error
	in               chan struct{} // told when a request hangs, if it does
	hang             chan struct{}
}

func (m *mulish) Handle(context.Context, *objects.Request) (objects.Reply, error) {
	if m.hang != nil {
		m.in <- struct{}{}
		<-m.hang
	}
	return objects.Reply{}, nil
}

func (m *mulish) Capture(context.Context, *objects.Self) (objects.State, error) {
	return objects.State{Version: 2, Data: []byte("x")}, m.capture
}

func (m *mulish) Restore(context.Context, *objects.Self, objects.State) error { return m.restore }

func newMoveStage(t *testing.T, bin string) *moveStage {
	t.Helper()
	s := &moveStage{srv: fabrictest.StartServer(t)}
	if r := run(t, bin, "", "init", "--mesh", "shop", "--server", s.srv.URL()); r.code != 0 {
		t.Fatalf("init: %s", r.stderr)
	}
	hang, in := make(chan struct{}), make(chan struct{}, 2)
	kind := func(name string, policy objects.MovePolicy, m mulish) objects.Type {
		return objects.Type{Name: name, Class: kvlocation.ClassActor, Move: policy, New: func(context.Context, *objects.Self, []byte) (objects.Object, error) {
			instance := m
			return &instance, nil
		}}
	}
	fixed, alone := kind("fixed", objects.MoveDisabled, mulish{}), kind("alone", objects.MoveState, mulish{})
	fresh := kind("fresh", objects.MoveState, mulish{restore: fmt.Errorf("basket of version 2: %w", objects.ErrStateVersion)})
	torn := kind("torn", objects.MoveState, mulish{capture: errors.New("the basket is in use")})
	// Two types, so that neither of the nodes that host them is where the other's object goes: its drain would wait for it.
	busy := kind("busy", objects.MoveState, mulish{in: in, hang: hang})
	stuck := kind("stuck", objects.MoveState, mulish{in: in, hang: hang})
	plain := kind("plain", objects.MoveState, mulish{})
	proxy := fabrictest.NewProxy(t, s.srv.URL())

	ctx, cancel := context.WithTimeout(t.Context(), 4*soon)
	defer cancel()
	start := func(rid, url string, unit time.Duration, types ...objects.Type) *fabric.Node {
		n, err := fabric.Start(ctx, fabric.Config{
			Mesh: "shop", RID: rid, Connect: fabric.Connect{URL: url}, Types: types,
			RouteTTL: 100 * time.Millisecond, Relocation: fabric.Relocation{UnitTimeout: unit, NoFollow: true},
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), soon)
			defer cancel()
			// What does not move on purpose is cut off.
			if err := n.Shutdown(ctx); err != nil && !errors.Is(err, fabric.ErrCutOff) {
				t.Errorf("shutdown of %s: %v", rid, err)
			}
		})
		return n
	}
	// What ends by itself has all the time that it needs; what ends only by its deadline, or not at all, comes by it.
	const unit, short, forever = time.Minute, 6 * time.Second, relocate.MaxUnitTimeout
	start("t1", s.srv.URL(), unit, fresh, torn, busy, stuck, plain)
	for _, from := range []struct {
		rid, url, id string
		unit         time.Duration
		typ          objects.Type
	}{
		{"n1", s.srv.URL(), "alice", unit, fixed}, {"n2", s.srv.URL(), "bob", unit, alone}, {"n3", s.srv.URL(), "carol", unit, fresh},
		{"n4", s.srv.URL(), "dave", unit, torn}, {"n5", s.srv.URL(), "erin", short, busy}, {"n6", s.srv.URL(), "frank", forever, stuck},
		{"n7", proxy.URL(), "grace", short, plain},
	} {
		n := start(from.rid, from.url, from.unit, from.typ)
		if _, err := n.Actors().Create(ctx, from.typ.Name, from.id, nil, objects.AtNode(from.rid)); err != nil {
			t.Fatal(err)
		}
		if from.typ.Name == busy.Name || from.typ.Name == stuck.Name {
			if err := n.Actors().Send(ctx, from.id, nil); err != nil {
				t.Fatal(err)
			}
			<-in
		}
	}
	t.Cleanup(func() { close(hang) }) // before the nodes are stopped
	if r := run(t, bin, "", "drain", "n6", "--mesh", "shop", "--server", s.srv.URL()); r.code != 0 || !strings.Contains(r.stdout, "n6 is Relocating") {
		t.Fatalf("drain of n6: exit code %d: %s%s", r.code, r.stdout, r.stderr)
	}
	lost := proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: "$KV.FABRIC_shop_LOCATION.actor.>", Times: -1, Action: fabrictest.Drop})
	t.Cleanup(lost.Disarm)
	return s
}

func (s *moveStage) messages(t *testing.T) []message {
	here := func(title string, code int, says []string, args ...string) message {
		return message{title: title, code: code, says: says, args: append(args, "--mesh", "shop", "--server", s.srv.URL()),
			hide: [][2]string{{s.srv.URL(), "nats://127.0.0.1:4222"}}}
	}
	blocked := func(title, rid string, reason relocate.Reason, more ...string) message {
		return here(title, 11, []string{"Blocked by " + string(reason), reason.Text()}, append([]string{"drain", rid, "--watch"}, more...)...)
	}
	tokens := tokenFile(t, "correct-horse\n")
	noName := here("A file of session tokens without a name", 2, []string{"line 1", "TOKEN NAME"}, "run", "--sessions", "127.0.0.1:0", "--session-tokens", tokens)
	noName.hide = append(noName.hide, [2]string{tokens, "tokens"})
	return []message{
		blocked("A drain of objects that do not move", "n1", relocate.RelocationDisabled),
		blocked("A drain to nowhere", "n2", relocate.TargetUnavailable),
		blocked("A drain to nodes that cannot read the state", "n3", relocate.StateIncompatible),
		blocked("A drain of an object that cannot be captured", "n4", relocate.RelocationFailed),
		blocked("A drain of an object whose turn does not end", "n5", relocate.DeadlineExceeded),
		blocked("A second drain of a node", "n6", relocate.OperationInProgress, "--mode", "rolling_update", "--version", "9.0.0"),
		blocked("A drain of a node whose writes are lost", "n7", relocate.StoreUnavailable),
		here("A drain of a node that is not there", 5, []string{"NotFound (NotAccepted", `"n9"`}, "drain", "n9"),
		here("A rolling update without its version", 2, []string{"--version is missing"}, "drain", "n1", "--mode", "rolling_update"),
		here("A move of an object that does not move", 6, []string{"(NotAccepted", "RelocationDisabled"}, "relocate", "actor/alice", "--to", "t1"),
		here("A move to a node that is not there", 5, []string{"(NotAccepted", "TargetUnavailable", `"n9"`}, "relocate", "actor/carol", "--to", "n9"),
		here("A move to a node that does not host the type", 6, []string{"(NotAccepted", "TargetUnavailable"}, "relocate", "actor/carol", "--to", "n2"),
		here("A move of an Actor that is not there", 5, []string{"NotFound (NotAccepted", "actor/nobody"}, "relocate", "actor/nobody"),
		here("A move of a bare ID", 2, []string{"neither Actor nor Spot"}, "relocate", "alice"),
		here("Sessions of a node that is not there", 5, []string{"NotFound (NotAccepted", `"n9"`}, "sessions", "n9"),
		noName,
		here("An address for sessions that is none", 2, []string{"--sessions"}, "run", "--sessions", "everywhere"),
	}
}

// reasonTable is the part of the document that says what each reason means.
func reasonTable() string {
	var b strings.Builder
	b.WriteString("\n## Why a drain is Blocked, or a move fails\n\nThe result of a drain gives a reason for the whole and one for each object that stayed; the text of a failed move begins with it.\n" +
		"[operations.md](operations.md#what-blocked-means) says what to do. What clients of sessions may hear stands in [sessions.md](sessions.md#every-text).\n\n| Reason | Text |\n|---|---|\n")
	for _, r := range []relocate.Reason{
		relocate.TargetUnavailable, relocate.StoreUnavailable, relocate.RelocationDisabled, relocate.StateIncompatible, relocate.DeadlineExceeded,
		relocate.RelocationFailed, relocate.RuntimeNotReady, relocate.ShutdownRequested, relocate.OperationInProgress,
	} {
		fmt.Fprintf(&b, "| %s | %s |\n", r, r.Text())
	}
	b.WriteString(`
## On the wire, in passing

Headers of messages between nodes that an operator may see with ` + "`nats sub 'fab.<mesh>.>'`" + `: ` + "`Fabric-Hops`" + ` is how often a message by an old route was
sent on, at most 8; ` + "`Fabric-Route`" + ` in a reply or a notice says where the object is now, so that its sender goes there at once.
`)
	return b.String()
}
