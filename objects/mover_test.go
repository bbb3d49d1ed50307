package objects

import (
	"context"
	"errors"
	"strings"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// TestNoMoverIsSaidEarly: a type that is to move with its state and cannot is warned about when its first object is made, once.
func TestNoMoverIsSaidEarly(t *testing.T) {
	core, logs := observer.New(zap.WarnLevel)
	w := newMoveBed(t, func(c *Config, _ *kvlocation.LeaseConfig) { c.Logger = zap.New(core) },
		types(Type{Name: "wrong", Class: kvlocation.ClassActor, Move: MoveState, New: func(context.Context, *Self, []byte) (Object, error) {
			return HandlerFunc(func(context.Context, *Request) (Reply, error) { return Reply{}, nil }), nil
		}}))
	w.actor("moves")
	for _, id := range []string{"one", "two"} {
		must[ActorRef](t)(w.c.Actors().Create(w.ctx(), "wrong", id, nil, AtNode("a")))
	}
	said := logs.Filter(func(e observer.LoggedEntry) bool { return strings.Contains(e.Message, "has no Capture and Restore") }).All()
	if len(said) != 1 || said[0].ContextMap()["type"] != "wrong" {
		t.Fatal(said)
	}
}

// TestMoveOfNoKind: a key without a kind is refused as what it is, not as an object of another node.
func TestMoveOfNoKind(t *testing.T) {
	w := newMoveBed(t)
	w.actor("one")
	_, err := w.a.Depart(w.ctx(), kvlocation.ObjectKey{ID: "one"}, 0)
	if !errors.Is(err, outcome.InvalidOperation) || !errors.Is(err, outcome.NotAccepted) || !strings.Contains(err.Error(), `Kind "" is not allowed: it must be actor or spot`) {
		t.Fatal(err)
	}
}
