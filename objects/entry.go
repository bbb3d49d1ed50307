package objects

import (
	"context"
	"encoding/json"
	"fmt"

	"natsfabric/internal/wire"
	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// openEntry makes the node's Entry Spot object, if a type for it is registered. It has no record: the node's lease is its
// authority, and its ID and generation are the node's.
func (s *Service) openEntry() error {
	for _, reg := range s.rt.order {
		if reg.Class != kvlocation.ClassEntrySpot {
			continue
		}
		if err := s.rt.reserve(reg); err != nil {
			return err
		}
		o := s.rt.newObject(reg, entryPrefix+s.cfg.RID)
		o.identify(s.cfg.Lifecycle, 1)
		s.rt.insert(o)
		ctx, cancel := context.WithTimeoutCause(s.ctx, reg.CreateTimeout, fmt.Errorf("it did not end within %v", reg.CreateTimeout))
		defer cancel()
		inst, err := s.runFactory(ctx, o, nil)
		if err != nil {
			o.abort(err)
			return fmt.Errorf("the Entry Spot of type %q cannot be made: %w", reg.Name, err)
		}
		o.open(inst, s.cfg.Lifecycle, 1, s.leaseGeneration(), nil)
	}
	return nil
}

// entryOwner is exact for an Entry Spot: its ID names the node, its generation the node's process run.
func (s *Service) entryOwner(op string, key kvlocation.ObjectKey, token string, generation uint64) (*object, *route, error) {
	rid := key.ID[len(entryPrefix):]
	if rid == s.cfg.RID {
		if generation != s.cfg.Lifecycle {
			return nil, nil, otherGeneration(op, key, s.cfg.Lifecycle, generation)
		}
		return s.rt.find(key.Kind, key.ID), s.entryRoute(key, token, rid, generation), nil
	}
	if err := wire.CheckName("RID", rid); err != nil {
		return nil, nil, outcome.Wrap(op, outcome.InvalidOperation, outcome.NotAccepted, key.String(), "", err)
	}
	m, err := s.listed(op, key.String(), rid)
	switch {
	case err != nil:
		return nil, nil, err
	case generation != 0 && m.Lifecycle != generation:
		return nil, nil, otherGeneration(op, key, m.Lifecycle, generation)
	}
	return nil, s.entryRoute(key, token, rid, m.Lifecycle), nil
}

// entryRequest reads a request about this node's Entry Spot, which need not be an object.
func (s *Service) entryRequest(key kvlocation.ObjectKey, data []byte, req any, generation *uint64) error {
	if err := json.Unmarshal(data, req); err != nil {
		return outcome.Wrap("", outcome.ProtocolError, outcome.NotAccepted, key.String(), "the request cannot be read", err)
	}
	if key.ID != entryPrefix+s.cfg.RID || *generation != s.cfg.Lifecycle {
		return otherGeneration("", key, s.cfg.Lifecycle, *generation)
	}
	return nil
}

func (s *Service) entryRoute(key kvlocation.ObjectKey, token, rid string, lifecycle uint64) *route {
	return s.newRoute(key, token, kvlocation.ClassEntrySpot, "", place{
		rid: rid, lifecycle: lifecycle, generation: lifecycle, ownerGeneration: 1, phase: kvlocation.PhaseReady,
	})
}

// callEntry runs a message to an Entry Spot: found by the directory.
func (s *Service) callEntry(ctx context.Context, c *Call, token string) (Reply, error) {
	key := c.key()
	if c.Type != "" {
		return Reply{}, outcome.New(c.Op, outcome.InvalidOperation, outcome.NotAccepted, key.String(), "an Entry Spot is made by no message")
	}
	if o := s.rt.find(c.Kind, c.ID); o != nil {
		c.asked(s.cfg.RID)
		return s.rt.request(ctx, o, c.Op, c.Data, c.Header, c.OneWay)
	}
	generation := uint64(0)
	if key.ID == entryPrefix+s.cfg.RID {
		return Reply{}, renamed(s.notOwner(key), c.Op, key)
	}
	_, r, err := s.entryOwner(c.Op, key, token, generation)
	if err != nil {
		return Reply{}, err
	}
	return s.deliverCall(ctx, c, r)
}

// entryLocation is where an Entry Spot is, as the directory says.
func (s *Service) entryLocation(ctx context.Context, op string, key kvlocation.ObjectKey) (Location, error) {
	rid := key.ID[len(entryPrefix):]
	m, err := s.listed(op, key.String(), rid)
	if err != nil {
		return Location{}, err
	}
	loc := Location{
		Kind: key.Kind, ID: key.ID, Class: kvlocation.ClassEntrySpot, Phase: kvlocation.PhaseReady, RID: rid, Lifecycle: m.Lifecycle,
		Generation: m.Lifecycle, OwnerGeneration: 1, Created: m.Started, Updated: m.Updated,
	}
	for _, t := range m.Types {
		if t.Class == kvlocation.ClassEntrySpot {
			loc.Type = t.Name
		}
	}
	st, err := s.store.LeaseOf(ctx, rid)
	if err != nil {
		return Location{}, renamed(err, op, key)
	}
	loc.live(st)
	return loc, nil
}
