package objects

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"natsfabric/channels"
	"natsfabric/internal/wire"
	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// facts is what this node knows of an object in memory.
func (s *Service) facts(key kvlocation.ObjectKey) (any, error) {
	o := s.rt.find(key.Kind, key.ID)
	if o == nil {
		if at, ok := s.follows.where(key); ok {
			return ObjectFacts{State: "closed", FollowedTo: at.rid, LeaseAdmits: s.admit() == nil}, nil
		}
		return nil, s.notOwner(key)
	}
	f := ObjectFacts{LeaseAdmits: s.admit() == nil}
	f.Mail, f.MailBytes = o.waiting()
	o.mu.Lock()
	switch o.state {
	case objectCreating:
		f.State = "creating"
	case objectArriving:
		f.State = "arriving"
	case objectSealed:
		f.State = "sealed"
	case objectOpen:
		f.State, f.MustAdopt = "ready", o.lease.Load() != s.leaseGeneration()
	case objectClosing:
		f.State = "closing"
	default:
		f.State = "closed"
	}
	o.mu.Unlock()
	if d, ok := o.running(); ok {
		f.RunningMillis = max(1, d.Milliseconds())
	}
	f.Timers = o.timerCount()
	if m := o.m.Load(); m != nil {
		f.Members = len(m.list())
	}
	return f, nil
}

// Explain says why a call to an object would succeed or fail now, and by which rule. It changes nothing. Its error is
// about the explanation only: InvalidOperation for an ID that is not allowed.
func (s *Service) Explain(ctx context.Context, req ExplainRequest) (Explanation, error) {
	key := kvlocation.ObjectKey{Kind: req.Kind, ID: req.ID}
	x := Explanation{Kind: req.Kind, ID: req.ID, AnsweredBy: s.cfg.RID}
	token, err := wire.EscapeID(req.ID)
	if err != nil || req.Kind != kvlocation.KindActor && req.Kind != kvlocation.KindSpot {
		if err == nil {
			err = fmt.Errorf("object kind %q is not allowed: it must be %s or %s", req.Kind, kvlocation.KindActor, kvlocation.KindSpot)
		}
		return x, outcome.Wrap("explain", outcome.InvalidOperation, outcome.NotAccepted, string(req.Kind), "", err)
	}
	ctx, cancel := s.bound(ctx)
	defer cancel()
	loc, err := s.Locate(ctx, key)
	switch {
	case err == nil:
		x.Location = &loc
		s.explainExisting(ctx, &x, token, loc)
		class := req.Class
		if class == "" && req.Kind == kvlocation.KindSpot {
			class = kvlocation.ClassInstanceSpot
		}
		if req.Type != "" && (req.Type != loc.Type || class != "" && class != loc.Class) {
			x.fail(outcome.TypeMismatch, "FO-4.4c", fmt.Sprintf("it is of the %s type %q, not of the %s type %q; of a call that names no type: %s",
				loc.Class, loc.Type, cmp.Or(class, loc.Class), req.Type, x.Why))
		}
	case errors.Is(err, outcome.NotFound):
		s.explainMissing(ctx, &x, req)
	default:
		x.fail(outcome.KindOf(err), "FO-7a", "the store does not say where it is, and nothing is concluded from that: "+err.Error())
	}
	if class, typ := x.placementOf(req); typ != "" && x.Placement == nil {
		x.Placement = s.aliveCandidates(ctx, class, typ, req.ID)
	}
	return x, nil
}

// maxLeasesRead bounds the leases that one explanation reads.
const maxLeasesRead = 32

// aliveCandidates is candidates with the leases of those that seem eligible read: a node that died without a word is
// in the directory until it is forgotten, and placement finds out by asking it.
func (s *Service) aliveCandidates(ctx context.Context, class Class, typ, id string) []Candidate {
	cs := s.candidates(class, typ, id)
	for i := range cs[:min(len(cs), maxLeasesRead)] {
		c := &cs[i]
		if !c.Eligible {
			break
		}
		if l, err := s.store.LeaseOf(ctx, c.RID); err == nil && (!l.Live || l.Lifecycle != c.Lifecycle) {
			c.Eligible, c.Why = false, "it holds no lease"
		}
	}
	slices.SortStableFunc(cs, func(a, b Candidate) int {
		switch {
		case a.Eligible == b.Eligible:
			return 0
		case a.Eligible:
			return -1
		}
		return 1
	})
	return cs
}

// placementOf is the class and type with which the object would be placed.
func (x *Explanation) placementOf(req ExplainRequest) (Class, string) {
	if x.Location != nil {
		return x.Location.Class, x.Location.Type
	}
	class := req.Class
	if class == "" {
		class = kvlocation.ClassInstanceSpot
		if req.Kind == kvlocation.KindActor {
			class = kvlocation.ClassActor
		}
	}
	return class, req.Type
}

func (x *Explanation) fail(kind outcome.Kind, rule, why string) {
	x.WouldSucceed, x.Error, x.Rule, x.Why = false, kind.String(), rule, why
}

func (x *Explanation) succeed(rule, why string) {
	x.WouldSucceed, x.Error, x.Rule, x.Why = true, "", rule, why
}

// explainMissing explains an object that the store does not have.
func (s *Service) explainMissing(ctx context.Context, x *Explanation, req ExplainRequest) {
	if req.Type == "" {
		x.fail(outcome.NotFound, "FO-4.1", "there is no object of this ID, which a write and a later read have confirmed; an ordinary message makes none")
		return
	}
	class, typ := x.placementOf(req)
	if _, err := s.choose("explain", class, typ, kvlocation.ObjectKey{Kind: req.Kind, ID: req.ID}, ""); err != nil {
		e := plainCreate(err)
		x.fail(e.Kind, "FO-2.1", e.Detail)
		return
	}
	x.Placement = s.aliveCandidates(ctx, class, typ, req.ID)
	cs := x.Placement
	if !cs[0].Eligible {
		x.fail(outcome.Unavailable, "FO-2.1", fmt.Sprintf("no node that registers the %s type %q can take it: %s", class, typ, reasons(cs)))
		return
	}
	if class != kvlocation.ClassInstanceSpot {
		x.fail(outcome.NotFound, "FO-4.1", fmt.Sprintf("there is no object of this ID, and a message makes none of the class %s; Create would make it, first at node %s", class, cs[0].RID))
		return
	}
	x.succeed("FO-4.4a", fmt.Sprintf("there is no object of this ID; a message with instance intent for the type %q would make it, first at node %s", typ, cs[0].RID))
}

// explainExisting explains an object that has a record.
func (s *Service) explainExisting(ctx context.Context, x *Explanation, token string, l Location) {
	who := fmt.Sprintf("node %s (lifecycle %d)", l.RID, l.Lifecycle)
	if l.ByReference {
		who += ", where its Spot " + l.Spot.String() + " is"
	}
	switch {
	case l.Phase == kvlocation.PhaseCreating && !l.Alive:
		x.succeed("FO-4.3", "it is Creating, and its creator, "+who+", holds no lease: the next operation makes on from the record at another node, or cancels exactly that record")
		return
	case l.Phase == kvlocation.PhaseCreating:
		x.succeed("FO-4.3", "it is being created at "+who+": a call waits there until it is Ready")
	case l.Move != nil && l.Move.Accepted:
		s.explainAccepted(ctx, x, who, l)
		return
	case !l.Alive:
		what := "it"
		if l.ByReference {
			what = "its Spot"
		}
		x.fail(outcome.Unavailable, "FO-4.2c", "its owner, "+who+", holds no lease: its authority stays until "+what+" is released, and nothing restores it elsewhere")
		return
	case l.Move != nil:
		x.succeed("FO-4.4f", "it is at "+who+", and is to move to node "+l.Move.RID+": a call is served here, or waits here for the move's end")
	default:
		x.succeed("FO-4.1", "it is Ready at "+who)
	}
	f, err := s.askFacts(ctx, x.Kind, token, l)
	if err != nil {
		x.fail(outcome.Unavailable, "FO-4.2a", who+" does not answer for it: "+err.Error())
		return
	}
	x.Object = f
	switch {
	case !f.LeaseAdmits:
		x.fail(outcome.Unavailable, "FO-7c", who+" holds its lease key, but admits nothing new at the moment")
	case f.FollowedTo != "":
		x.succeed("FO-4.2b", "it has just moved to node "+f.FollowedTo+", and what reaches its old owner, "+who+", is sent on there")
	case f.State == "closing":
		x.fail(outcome.Unavailable, "FO-4.4e", "it is being closed")
	case f.RunningMillis >= BlockedAfter.Milliseconds():
		x.Why += fmt.Sprintf("; its present turn has been running for %d ms, and %d messages wait behind it: a call is accepted, and may end by its deadline", f.RunningMillis, f.Mail)
	}
}

// explainAccepted explains an object that its owner has given up for a move that is not committed yet.
func (s *Service) explainAccepted(ctx context.Context, x *Explanation, who string, l Location) {
	to := fmt.Sprintf("node %s (lifecycle %d)", l.Move.RID, l.Move.Lifecycle)
	st, err := s.store.LeaseOf(ctx, l.Move.RID)
	switch {
	case err != nil:
		x.fail(outcome.KindOf(err), "FO-7a", "it moves to "+to+", whose lease cannot be read: "+err.Error())
	case !st.Live || st.Lifecycle != l.Move.Lifecycle:
		x.fail(outcome.Unavailable, "FO-5e", "it was given up by "+who+" for "+to+", which holds no lease: its authority stays until it is released, and nothing restores it elsewhere")
	case !l.Alive:
		x.fail(outcome.Unavailable, "FO-5b", "it was given up by "+who+", which holds no lease any more, for "+to+", which goes on with it within a second or so")
	default:
		x.succeed("FO-5b", "it was given up by "+who+" for "+to+": a call waits at its old owner, and goes on there")
	}
}

// askFacts asks the owner.
func (s *Service) askFacts(ctx context.Context, kind kvlocation.ObjectKind, token string, l Location) (*ObjectFacts, error) {
	key := kvlocation.ObjectKey{Kind: kind, ID: l.ID}
	if l.RID == s.cfg.RID && l.Lifecycle == s.cfg.Lifecycle {
		v, err := s.facts(key)
		if err != nil {
			return nil, err
		}
		f := v.(ObjectFacts)
		return &f, nil
	}
	reply, err := s.router.CallRun(ctx, &channels.RunCall{
		Op: "explain", Target: key.String(), RID: l.RID, Lifecycle: l.Lifecycle,
		Subject: s.subject(l.RID, l.Lifecycle, verbWhy, kind, token),
	})
	if err != nil {
		return nil, err
	}
	f := new(ObjectFacts)
	if err := json.Unmarshal(reply.Data, f); err != nil {
		return nil, fmt.Errorf("the answer cannot be read: %w", err)
	}
	return f, nil
}
