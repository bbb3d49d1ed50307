package main_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"natsfabric/cmd/fabricnode/internal/reference"
	"natsfabric/fabric"
	"natsfabric/fabrictest"
	"natsfabric/kvlocation"
	"natsfabric/objects"
)

// objectStage is what the messages about objects need: n1, a node in this process behind a proxy, with types that do
// badly; and n2, a node that was killed, with what it owned.
type objectStage struct {
	srv   *fabrictest.Server
	proxy *fabrictest.Proxy // between n1 and the server
	alice objects.ActorRef  // at n1
	old   objects.ActorRef  // an incarnation of alice that was destroyed
	dora  objects.ActorRef  // at n1; her record cannot be closed
	bob   objects.ActorRef  // at n2
	dead  *fabrictest.Server
	lost  []*fabrictest.Armed // writes of n1's that are lost
}

func newObjectStage(t *testing.T, bin string) *objectStage {
	t.Helper()
	s := &objectStage{srv: fabrictest.StartServer(t), dead: fabrictest.StartServer(t)}
	s.proxy = fabrictest.NewProxy(t, s.srv.URL())
	for _, srv := range []*fabrictest.Server{s.srv, s.dead} {
		if r := run(t, bin, "", "init", "--mesh", "shop", "--server", srv.URL()); r.code != 0 {
			t.Fatalf("init: %s", r.stderr)
		}
	}
	short := []string{"--lease-ttl", "4s", "--lease-renew", "500ms", "--lease-margin", "1s"} // of those that die: a proof waits for it
	n2 := startNode(t, bin, append(short, "--mesh", "shop", "--rid", "n2", "--server", s.srv.URL())...)
	last := startNode(t, bin, append(short, "--mesh", "shop", "--rid", "n3", "--server", s.dead.URL())...)
	n1 := s.startNode(t)
	fabrictest.Eventually(t, soon, "n1 knows n1 and n2", func() bool {
		_, own := n1.Members().Get("n1")
		_, other := n1.Members().Get("n2")
		return own && other
	})

	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	actors := n1.Actors()
	var err error
	create := func(typ, id string, at ...objects.CallOption) (ref objects.ActorRef) {
		if err == nil {
			ref, err = actors.Create(ctx, typ, id, nil, at...)
		}
		return ref
	}
	s.old = create(reference.Ledger, "alice", objects.AtNode("n1"))
	err = errors.Join(err, actors.Destroy(ctx, s.old))
	s.alice = create(reference.Ledger, "alice", objects.AtNode("n1"))
	s.dora = create(reference.Ledger, "dora", objects.AtNode("n1"))
	s.bob = create(reference.Ledger, "bob", objects.AtNode("n2"))
	create("single", "first")
	_, spotErr := n1.Spots().Create(ctx, reference.Ledger, "lobby", nil, objects.AtNode("n1"))
	if err = errors.Join(err, spotErr); err != nil {
		t.Fatal(err)
	}
	n2.Kill()
	last.Kill()
	s.awaitGone(t, bin, s.srv, "n2")
	s.awaitGone(t, bin, s.dead, "n3")
	return s
}

// startNode starts n1 in this process.
func (s *objectStage) startNode(t *testing.T) *fabric.Node {
	t.Helper()
	never := make(chan struct{})
	bad := func(name string, run func(context.Context) error) objects.Type {
		return objects.Type{Name: name, Class: kvlocation.ClassActor, New: func(ctx context.Context, _ *objects.Self, _ []byte) (objects.Object, error) {
			return nil, run(ctx)
		}}
	}
	single := bad("single", nil)
	single.Capacity = 1
	single.New = func(context.Context, *objects.Self, []byte) (objects.Object, error) {
		return objects.HandlerFunc(func(context.Context, *objects.Request) (objects.Reply, error) { return objects.Reply{}, nil }), nil
	}
	n, err := fabric.Start(t.Context(), fabric.Config{
		Mesh: "shop", RID: "n1", Connect: fabric.Connect{URL: s.proxy.URL()},
		Types: append(reference.Types(), single,
			bad("fails", func(context.Context) error { return errors.New("the price list is not readable") }),
			bad("panics", func(context.Context) error { panic("index out of range") }),
			bad("hangs", func(context.Context) error { <-never; return errors.New("the test is over") })),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		close(never)
		for _, a := range s.lost {
			a.Disarm()
		}
		ctx, cancel := context.WithTimeout(context.Background(), soon)
		defer cancel()
		// What hangs on purpose is cut off.
		if err := n.Shutdown(ctx); err != nil && !errors.Is(err, fabric.ErrCutOff) {
			t.Errorf("shutdown of n1: %v", err)
		}
	})
	return n
}

// awaitGone waits until a killed node's lease has expired.
func (s *objectStage) awaitGone(t *testing.T, bin string, srv *fabrictest.Server, rid string) {
	t.Helper()
	fabrictest.Eventually(t, soon, rid+" is gone", func() bool {
		r := run(t, bin, "", "nodes", "--json", "--mesh", "shop", "--server", srv.URL())
		return strings.Contains(r.stdout, `"rid":"`+rid+`","alive":false`) || strings.Contains(r.stdout, `"alive":false`)
	})
}

// drop loses n1's writes to a record, those of one phase, for the rest of the test; with no phase, those that end it.
func (s *objectStage) drop(key, phase string) {
	s.lost = append(s.lost, s.proxy.Arm(fabrictest.Trigger{
		Dir: fabrictest.ToServer, Subject: "$KV.FABRIC_shop_LOCATION." + key, Times: -1, Action: fabrictest.Drop,
		Match: func(m fabrictest.Message) bool {
			if phase == "" {
				return m.Headers().Get("KV-Operation") != ""
			}
			return bytes.Contains(m.Payload, []byte(`"phase":"`+phase+`"`))
		},
	}))
}

// mute returns the URL of a way to the server on which what matches is lost.
func (s *objectStage) mute(t *testing.T, subject string) string {
	p := fabrictest.NewProxy(t, s.srv.URL())
	p.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: subject, Times: -1, Action: fabrictest.Drop})
	return p.URL()
}

func (s *objectStage) messages(t *testing.T, small *fabrictest.Server) []message {
	there := func(url, title string, code int, says []string, args ...string) message {
		return message{
			title: title, code: code, says: says, args: append(args, "--mesh", "shop", "--server", url),
			hide: [][2]string{
				{url, "nats://127.0.0.1:4222"},
				{fmt.Sprintf("generation %d", s.old.Generation), "generation 12"}, {fmt.Sprintf("generation %d", s.alice.Generation), "generation 15"},
				{fmt.Sprintf("generation is %d", s.alice.Generation), "generation is 15"},
			},
		}
	}
	here := func(title string, code int, says []string, args ...string) message {
		return there(s.srv.URL(), title, code, says, args...)
	}
	s.drop("actor.step1", "creating")
	s.drop("actor.step2", "ready")
	s.drop("spot.step3", "creating")
	s.drop("actor.dora", "")
	s.drop("actor.bob", "") // after its owner was proven gone
	read := `{"op":"read"}`
	large := there(small.URL(), "Input above the limit", 6, []string{"CapacityExceeded (NotAccepted)", "4096"}, "create", "--actor", "alice", "--type", "ledger", "-")
	large.stdin = strings.Repeat("x", 5000)
	return []message{
		here("An unknown type", 6, []string{"NotConfigured (NotAccepted)", `"prices"`}, "create", "--actor", "carol", "--type", "prices"),
		here("An unknown type of an Instance Spot", 6, []string{"NotConfigured (NotAccepted)", `"prices"`}, "call", "--spot", "market", "--instance", "prices", read),
		here("Another type than that of the existing object", 6, []string{"TypeMismatch (NotAccepted", "ledger", "fails"}, "create", "--get", "--actor", "alice", "--type", "fails"),
		here("A User Spot in place of an Instance Spot", 6, []string{"TypeMismatch (NotAccepted", "user_spot"}, "call", "--spot", "lobby", "--instance", "ledger", read),
		here("An object that exists already", 6, []string{"AlreadyExists (NotAccepted"}, "create", "--actor", "alice", "--type", "ledger"),
		here("An Actor that is not there", 5, []string{"NotFound (NotAccepted)", `"carol"`}, "call", "--actor", "carol", read),
		here("An empty ID", 2, []string{"1 to 255 bytes"}, "call", "--actor", "", read),
		here("An ID of 256 bytes", 2, []string{"1 to 255 bytes"}, "call", "--actor", strings.Repeat("x", 256), read),
		here("An ID that is no UTF-8", 2, []string{"valid UTF-8"}, "call", "--actor", "caf\xe9", read),
		here("An ID with dots, spaces, wildcards, > and other letters than ASCII", 0, []string{"actor/a=2Eb=20=2A=2E=3E=20=C3=BC@"}, "create", "--actor", "a.b *.> ü", "--type", "ledger", "--at", "n1"),
		here("A stale reference", 5, []string{"NotFound (NotAccepted)", fmt.Sprint(s.old.Generation), fmt.Sprint(s.alice.Generation)}, "destroy", s.old.String()),
		here("Explain of a stale reference", 5, []string{"NotFound (NotAccepted)", "the present generation is"}, "explain", s.old.String()),
		here("An object in one word where a channel stands", 2, []string{"--actor alice"}, "call", "actor/alice", read),
		here("A cursor that no page said", 2, []string{"--cursor"}, "objects", "--cursor", "junk"),
		here("A reference without its generation", 2, []string{"the generation is missing", "fabricnode locate"}, "destroy", "actor/alice"),
		large,
		here("A factory that fails", 6, []string{"InternalFailure (NotAccepted", "price list"}, "create", "--actor", "f1", "--type", "fails"),
		here("A factory that panics", 6, []string{"InternalFailure (NotAccepted", "index out of range"}, "create", "--actor", "f2", "--type", "panics"),
		here("A factory that never returns", 8, []string{"DeadlineExceeded (Unknown)"}, "create", "--actor", "f3", "--type", "hangs", "--timeout", "5s"),
		there(s.dead.URL(), "No node that could take it", 6, []string{"Unavailable (NotAccepted)", "ledger"}, "create", "--actor", "alice", "--type", "ledger"),
		here("No free slot", 6, []string{"Unavailable (NotAccepted)", "no free slot"}, "create", "--actor", "second", "--type", "single"),
		here("An object whose owner is gone", 6, []string{"Unavailable (NotAccepted)", "n2"}, "call", "--actor", "bob", read),
		here("Release while the owner lives", 6, []string{"InvalidOperation (NotAccepted", "n1", "lease"}, "release", s.alice.String()),
		here("Release of a stale reference", 5, []string{"NotFound (NotAccepted", fmt.Sprint(s.alice.Generation)}, "release", s.old.String()),
		here("Release of a process run that owns nothing", 5, []string{"NotFound (NotAccepted", "fabricnode objects --owner n9 shows"}, "release", "--owner", "n9/7"),
		there(s.dead.URL(), "Release without a node", 6, []string{"no node of mesh \"shop\" serves"}, "release", "--owner", "n3/7"),
		here("An op that the ledger does not know", 7, []string{"InvalidOperation (Accepted", `"burn"`, "append"}, "call", "--spot", "lobby", `{"op":"burn"}`),
		here("A turn that panics", 7, []string{"InternalFailure (Accepted", "panic"}, "call", "--spot", "lobby", `{"op":"panic"}`),
		there(s.mute(t, "$JS.API.DIRECT.GET.KV_FABRIC_shop_LOCATION.>"), "The store does not answer: the look-up", 6, []string{"(NotAccepted)"}, "call", "--timeout", "5s", "--actor", "alice", read),
		here("The store does not answer: the first write of a creation", 8, []string{"(Unknown"}, "create", "--timeout", "5s", "--at", "n1", "--actor", "step1", "--type", "ledger"),
		here("The store does not answer: the second write of a creation", 8, []string{"(Unknown"}, "create", "--timeout", "5s", "--at", "n1", "--actor", "step2", "--type", "ledger"),
		here("The store does not answer: an activation", 8, []string{"(Unknown"}, "call", "--timeout", "5s", "--spot", "step3", "--instance", "ledger", `{"op":"append"}`),
		here("The store does not answer: destruction", 8, []string{"(Unknown"}, "destroy", "--timeout", "5s", s.dora.String()),
		here("The store does not answer: a release", 8, []string{"(Unknown)", "goes on", "the same command"}, "release", "--timeout", "8s", s.bob.String()),
	}
}
