package relocate

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/maphash"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nuid"

	"natsfabric/kvlocation"
	"natsfabric/objects"
	"natsfabric/outcome"
)

// maxAsked is how many nodes are asked to take one unit.
const maxAsked = 8

// wish is what a unit's target has to be.
type wish struct {
	// rid is the one node that the caller named: its wave and version do not matter.
	rid string
	// version is the application version that the target must have, wave the maintenance wave that it must not have.
	version, wave string
}

// target is a node that has agreed to take a unit.
type target struct {
	owner kvlocation.Owner
}

// unfit says why a node cannot take a unit; "" when it can, as far as is known here.
func (s *Service) unfit(m *kvlocation.Member, u *objects.Unit, w wish) string {
	switch {
	case m.RID == s.cfg.RID:
		return "the object is there already"
	case m.State != kvlocation.StateServing:
		return "its state is " + string(m.State)
	case w.rid == "" && m.AppVersion != w.version:
		return fmt.Sprintf("its application version is %q, not %q", m.AppVersion, w.version)
	case w.rid == "" && w.wave != "" && m.Wave == w.wave:
		return fmt.Sprintf("its maintenance wave is %q too", m.Wave)
	case !s.cfg.Router.PeerSelectable(m):
		return "it does not answer"
	}
	for _, t := range u.Types {
		switch info, ok := m.Type(t.Class, t.Type); {
		case !ok:
			return fmt.Sprintf("it does not host the %s type %q", t.Class, t.Type)
		case info.Full:
			return fmt.Sprintf("it has no free slot for the %s type %q", t.Class, t.Type)
		}
	}
	return ""
}

// candidates are the nodes that may take a unit, in the order in which they are asked. The error says why there are none.
func (s *Service) candidates(u *objects.Unit, w wish) ([]kvlocation.Member, error) {
	members := s.cfg.Directory.Members()
	var (
		fit  []kvlocation.Member
		whys []string
	)
	all := members.Type(u.Class, u.Type)
	if w.rid != "" {
		m, ok := members.Get(w.rid)
		if !ok && !members.Expired() {
			return nil, outcome.Wrap("move", outcome.NotFound, outcome.NotAccepted, u.Key.String(), fmt.Sprintf("the directory does not list node %.80q", w.rid), errNoTarget)
		}
		all = nil
		if ok {
			all = []kvlocation.Member{m}
		}
	}
	for i := range all {
		switch why := s.unfit(&all[i], u, w); {
		case why == "":
			fit = append(fit, all[i])
		case all[i].RID != s.cfg.RID || w.rid != "":
			whys = append(whys, all[i].RID+": "+why)
		}
	}
	switch {
	case len(fit) > 0:
		h := func(m *kvlocation.Member) uint64 { return maphash.String(s.seed, u.Key.ID+"\x00"+m.RID) }
		slices.SortFunc(fit, func(a, b kvlocation.Member) int { // spread over all of them
			if x, y := h(&a)/uint64(max(a.Weight, 1)), h(&b)/uint64(max(b.Weight, 1)); x != y {
				if x < y {
					return -1
				}
				return 1
			}
			return strings.Compare(a.RID, b.RID)
		})
		return fit[:min(len(fit), maxAsked)], nil
	case members.Expired():
		return nil, noTarget(u, "the directory has expired: the store did not answer for longer than its grace")
	case len(all) == 0:
		return nil, noTarget(u, fmt.Sprintf("no other node hosts the %s type %q", u.Class, u.Type))
	case len(whys) == 0:
		return nil, noTarget(u, fmt.Sprintf("this node is the only one that hosts the %s type %q", u.Class, u.Type))
	}
	if len(whys) > maxAsked {
		whys = append(whys[:maxAsked], fmt.Sprintf("and %d more", len(whys)-maxAsked))
	}
	return nil, noTarget(u, strings.Join(whys, "; "))
}

func noTarget(u *objects.Unit, why string) error {
	return outcome.Wrap("move", outcome.Unavailable, outcome.NotAccepted, u.Key.String(), why, errNoTarget)
}

// reserve finds a node that agrees to take a unit. Each one is asked under an operation ID of its own; one whose answer does not come is
// told that nothing will follow. Nothing is written yet, so the next one may be asked.
func (s *Service) reserve(ctx context.Context, u *objects.Unit, w wish) (target, string, error) {
	cs, err := s.candidates(u, w)
	if err != nil {
		return target{}, "", err
	}
	var (
		whys   []string
		reason Reason
	)
	for _, c := range cs {
		op := nuid.Next()
		to := kvlocation.Owner{RID: c.RID, Lifecycle: c.Lifecycle}
		r := reservation{
			V: version, Unit: *u, Source: s.owner(), Version: w.version, Wave: w.wave, Named: w.rid != "",
			Millis: (s.cfg.UnitTimeout + reservationSlack).Milliseconds(),
		}
		question, err := json.Marshal(r)
		if err != nil {
			return target{}, "", err
		}
		a, err := s.ask(ctx, to, verbReserve, op, u.Key, question, reserveTimeout)
		switch {
		case err == nil && a.Reason == "" && a.Lease != 0:
			to.Lease = a.Lease
			return target{to}, op, nil
		case err == nil:
			reason = a.Reason
			whys = append(whys, c.RID+": "+a.Detail)
		default:
			s.cancelAt(to, op)
			if ctx.Err() != nil {
				return target{}, "", context.Cause(ctx)
			}
			whys = append(whys, c.RID+": "+err.Error())
		}
	}
	err = noTarget(u, strings.Join(whys, "; "))
	if reason == StateIncompatible || reason == RelocationDisabled {
		err = &failure{reason, err}
	}
	return target{}, "", err
}

// reserveTimeout bounds the question for a place: nobody waits for the object meanwhile, and a node that is gone is noticed at once.
const reserveTimeout = 5 * time.Second

// reservationSlack is how much longer than its source a target waits before it aborts.
const reservationSlack = 5 * time.Second
