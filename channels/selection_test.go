package channels_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"natsfabric/channels"
	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

func candidates(t *testing.T) {
	srv := server(t)
	var l ledger
	dir := newDirectory()
	caller := startClient(t, srv.URL(), dir)
	ch := caller.Channel("c")

	_, err := ch.Request(within(t, patience), []byte("x"))
	wantErr(t, err, outcome.NotFound, outcome.NotAccepted)
	wantErr(t, ch.SendUnconfirmed(within(t, patience), []byte("x")), outcome.NotFound, outcome.NotAccepted)

	// Listed, but with weight 0: no candidate.
	weight0 := member("m1", 1, "c")
	weight0.Channels[0].Weight = 0
	dir.put(weight0)
	m1 := startMember(t, srv.URL(), dir, "m1", 1)
	s1 := serve(t, m1, channels.Spec{Name: "c", Weight: channels.WeightOut, Handler: l.handler("m1")})
	began := time.Now()
	_, err = ch.Request(within(t, patience), []byte("weight 0"))
	wantErr(t, err, outcome.Unavailable, outcome.NotAccepted)
	if took := time.Since(began); took > patience/2 {
		t.Errorf("with no candidate it took %v", took)
	}

	// One with weight 3 and one with weight 1 share as 3 to 1; the third is not serving.
	if err := s1.SetWeight(within(t, patience), 3); err != nil {
		t.Fatal(err)
	}
	dir.put(member("m1", 1, "c"), member("m2", 1, "c"), member("m3", 1, "c"))
	serve(t, startMember(t, srv.URL(), dir, "m2", 1), channels.Spec{Name: "c", Handler: l.handler("m2")})
	m3 := startMember(t, srv.URL(), dir, "m3", 1)
	s3 := serve(t, m3, channels.Spec{Name: "c", Handler: l.handler("m3")})
	if err := m3.SetServing(false); err != nil {
		t.Fatal(err)
	}
	count := func(n int) map[string]int {
		got := make(map[string]int)
		for i := range n {
			reply, err := ch.Request(within(t, patience), fmt.Append(nil, "op-", i))
			if err != nil {
				t.Fatal(err)
			}
			got[string(reply.Data)]++
		}
		return got
	}
	if got := count(400); got["m3"] != 0 || got["m1"] < 240 || got["m1"] > 360 {
		t.Errorf("of 400, weights 3, 1 and none: %v", got)
	}
	if s3.Stats().Subscriptions != 0 {
		t.Error("a node that is not serving has subscriptions")
	}

	// Out by weight 0, without losing anything, and in again.
	if err := s1.SetWeight(within(t, patience), 0); err != nil {
		t.Fatal(err)
	}
	if got := count(50); got["m2"] != 50 {
		t.Errorf("m1 is out: %v", got)
	}

	// ClientServer: one share each, whatever is asked.
	cs := member("m1", 1, "s")
	cs.Channels[0].Kind = kvlocation.ClientServer
	dir.put(cs)
	scs := serve(t, m1, channels.Spec{Name: "s", Kind: kvlocation.ClientServer, Handler: l.handler("m1")})
	if err := scs.SetWeight(within(t, patience), 2); !errors.Is(err, outcome.InvalidOperation) {
		t.Errorf("weights of a ClientServer channel: %v", err)
	}
	if got := scs.Stats().Subscriptions; got != 1 {
		t.Errorf("%d subscriptions, want 1", got)
	}
	if _, err := caller.Channel("s").Request(within(t, patience), []byte("x")); err != nil {
		t.Error(err)
	}
}

func nodeDirectNeverReselects(t *testing.T) {
	srv := server(t)
	var l ledger
	draining := member("m3", 1, "c")
	draining.State = kvlocation.StateDraining
	dir := newDirectory(member("m1", 1, "c"), member("m2", 1, "c"), draining, member("m4", 1, "c"))
	caller := startClient(t, srv.URL(), dir)
	m1 := startMember(t, srv.URL(), dir, "m1", 1)
	serve(t, m1, channels.Spec{Name: "c", Handler: l.handler("m1")})
	m2 := startMember(t, srv.URL(), dir, "m2", 1)
	serve(t, m2, channels.Spec{Name: "c", Handler: l.handler("m2")})
	ch := caller.Channel("c")

	for _, c := range []struct {
		what, rid string
		kind      outcome.Kind
	}{
		{"absent", "nobody", outcome.NotFound},
		{"draining", "m3", outcome.Unavailable},
		{"in the directory, but no such process runs", "m4", outcome.Unavailable},
	} {
		for what, err := range map[string]error{
			"request":          func() error { _, err := ch.At(c.rid).Request(within(t, patience), []byte(c.what)); return err }(),
			"send":             ch.At(c.rid).Send(within(t, patience), []byte(c.what)),
			"send unconfirmed": ch.At(c.rid).SendUnconfirmed(within(t, patience), []byte(c.what)),
		} {
			if !errors.Is(err, c.kind) || !errors.Is(err, outcome.NotAccepted) {
				t.Errorf("%s, %s: %v", c.what, what, err)
			}
		}
		if ran := l.of(c.what); len(ran) > 0 {
			t.Errorf("%s: ran at %v", c.what, ran)
		}
	}
	_, err := caller.Channel("other").At("m1").Request(within(t, patience), nil)
	wantErr(t, err, outcome.NotFound, outcome.NotAccepted)

	// A message for a dead run never reaches its successor, even when the caller does not know yet.
	if _, err := ch.At("m2").Request(within(t, patience), []byte("first run")); err != nil {
		t.Fatal(err)
	}
	if err := m2.Close(within(t, patience)); err != nil {
		t.Fatal(err)
	}
	successor := startMember(t, srv.URL(), dir, "m2", 2)
	serve(t, successor, channels.Spec{Name: "c", Handler: l.handler("m2.2")})
	_, err = ch.At("m2").Request(within(t, patience), []byte("for the first run"))
	wantErr(t, err, outcome.Unavailable, outcome.NotAccepted)
	if ran := l.of("for the first run"); len(ran) > 0 {
		t.Errorf("it ran at %v", ran)
	}
	dir.put(member("m2", 2, "c"))
	if reply, err := ch.At("m2").Request(within(t, patience), []byte("x")); err != nil || string(reply.Data) != "m2.2" {
		t.Errorf("reply %q, error %v", reply.Data, err)
	}
}
