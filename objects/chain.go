package objects

import (
	"context"
	"strings"

	"natsfabric/internal/wire"
	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// maxChain is how many turns a chain may have.
const maxChain = 16

// chain is the list of the turns that enclose a call, the innermost first. It is immutable.
type chain struct {
	parent *chain
	kind   kvlocation.ObjectKind
	id     string
	depth  int
}

// callChain returns the chain with which a call made under ctx goes out; nil outside of turns. The error is an
// *outcome.Error with NotAccepted: the turn is over or has lost its ownership, or the chain is too deep.
func callChain(ctx context.Context, op string) (*chain, error) {
	t, ok := ctx.Value(turnKey{}).(*turn)
	if !ok {
		return nil, nil
	}
	if err := t.usable(op); err != nil {
		return nil, err
	}
	c := t.ownChain()
	if c.depth > maxChain {
		return nil, outcome.New(op, outcome.InvalidOperation, outcome.NotAccepted, t.o.target(),
			"more than 16 turns wait for each other: "+c.path())
	}
	return c, nil
}

// String is the chain as it stands in the header Fabric-Chain, the outermost turn first:
// actor/<escaped id>,spot/<escaped id>.
func (c *chain) String() string {
	var parts [maxChain + 1]string
	n := len(parts)
	for ; c != nil && n > 0; c = c.parent {
		id, err := wire.EscapeID(c.id)
		if err != nil {
			continue
		}
		n--
		parts[n] = string(c.kind) + "/" + id
	}
	return strings.Join(parts[n:], ",")
}

// parseChain is the inverse of String. What cannot be understood is no chain: it is there to explain, not to decide.
func parseChain(s string) *chain {
	if s == "" {
		return nil
	}
	var c *chain
	for i, part := range strings.SplitN(s, ",", maxChain+1) {
		kind, token, _ := strings.Cut(part, "/")
		id, err := wire.UnescapeID(token)
		if err != nil || i >= maxChain || kind != string(kvlocation.KindActor) && kind != string(kvlocation.KindSpot) {
			return nil
		}
		c = &chain{parent: c, kind: kvlocation.ObjectKind(kind), id: id, depth: i + 1}
	}
	return c
}

// cycle returns the way from the object's own turn back to it when the object is in the chain, "" when it is not:
// actor "a" -> spot "b" -> actor "a".
func (c *chain) cycle(key kvlocation.ObjectKey) string {
	for at := c; at != nil; at = at.parent {
		if at.kind == key.Kind && at.id == key.ID {
			return c.pathFrom(at) + " -> " + targetName(key.Kind, key.ID)
		}
	}
	return ""
}

func (c *chain) path() string { return c.pathFrom(nil) }

// pathFrom is the way from a turn, or from the outermost, to the innermost.
func (c *chain) pathFrom(from *chain) string {
	name := targetName(c.kind, c.id)
	if c == from || c.parent == nil {
		return name
	}
	return c.parent.pathFrom(from) + " -> " + name
}
