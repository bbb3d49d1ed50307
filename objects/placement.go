package objects

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// Placement is by weighted rendezvous hashing of (class, type, id) over the nodes that may take the object: all callers
// whose directories agree choose the same node, so a stampede for one ID meets in one process; a node that comes or
// goes moves only its own share.

// score is how well a node fits an object: -weight / ln(h), with h in (0,1) from the hash of both.
func score(class Class, typ, id, rid string, weight int) float64 {
	const (
		offset = 14695981039346656037
		prime  = 1099511628211
	)
	h := uint64(offset)
	for _, part := range [...]string{string(class), typ, id, rid} {
		for i := range len(part) {
			h = (h ^ uint64(part[i])) * prime
		}
		h = (h ^ 0xff) * prime // no byte of UTF-8
	}
	// FNV leaves the high bits of short inputs alike, so they are mixed once more (splitmix64).
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	h ^= h >> 31
	u := (float64(h>>11) + 0.5) / (1 << 53)
	return float64(weight) / -math.Log(u)
}

// candidates judges every node whose descriptor lists the type, the best eligible one first, the others behind.
func (s *Service) candidates(class Class, typ, id string) []Candidate {
	members := s.cfg.Directory.Members().Type(class, typ)
	cs := make([]Candidate, 0, len(members))
	for i := range members {
		m := &members[i]
		c := Candidate{RID: m.RID, Lifecycle: m.Lifecycle, Weight: m.Weight, Why: s.unfit(m, class, typ)}
		c.Eligible = c.Why == ""
		c.Score = score(class, typ, id, m.RID, max(m.Weight, 0))
		cs = append(cs, c)
	}
	slices.SortFunc(cs, func(a, b Candidate) int {
		switch {
		case a.Eligible != b.Eligible && a.Eligible:
			return -1
		case a.Eligible != b.Eligible:
			return 1
		case a.Score > b.Score:
			return -1
		case a.Score < b.Score:
			return 1
		}
		return strings.Compare(a.RID, b.RID)
	})
	return cs
}

// expiredList is why nothing is concluded from what the directory does not list (FO-7b).
const expiredList = "the directory has expired: the store did not answer for longer than its grace"

// unfit says why a node is not eligible for a new object of a type it lists; "" when it is.
func (s *Service) unfit(m *kvlocation.Member, class Class, typ string) string {
	t, ok := m.Type(class, typ)
	switch {
	case !ok:
		return fmt.Sprintf("it does not list the %s type %q", class, typ)
	case m.State != kvlocation.StateServing:
		return "its state is " + string(m.State)
	case m.Weight <= 0:
		return "its weight is 0"
	case t.Full:
		return "no free slot"
	case m.RID == s.cfg.RID && m.Lifecycle == s.cfg.Lifecycle:
		return ""
	case !s.router.PeerSelectable(m):
		return "it does not answer"
	}
	return ""
}

// listed returns the member that an operation names. What an expired list does not have may be there all the same.
func (s *Service) listed(op, target, rid string) (kvlocation.Member, error) {
	members := s.cfg.Directory.Members()
	m, ok := members.Get(rid)
	switch {
	case ok:
		return m, nil
	case members.Expired():
		return m, outcome.New(op, outcome.Unavailable, outcome.NotAccepted, target, expiredList)
	}
	return m, outcome.New(op, outcome.NotFound, outcome.NotAccepted, target, fmt.Sprintf("the directory does not list node %.80q", rid))
}

// choose returns the nodes on which an object may be made, in the order in which they are tried. at, unless empty, is
// the one node that the caller named (FO-2.2). The error is NotAccepted: nothing was sent.
func (s *Service) choose(op string, class Class, typ string, key kvlocation.ObjectKey, at string) ([]Candidate, error) {
	members := s.cfg.Directory.Members()
	refuse := func(kind outcome.Kind, format string, args ...any) ([]Candidate, error) {
		return nil, outcome.New(op, kind, outcome.NotAccepted, key.String(), fmt.Sprintf(format, args...))
	}
	if at != "" {
		m, err := s.listed(op, key.String(), at)
		if err != nil {
			return nil, err
		}
		if _, ok := m.Type(class, typ); !ok {
			return refuse(outcome.NotConfigured, "node %q does not register the %s type %q", at, class, typ)
		}
		if why := s.unfit(&m, class, typ); why != "" {
			return refuse(outcome.Unavailable, "node %q cannot take it: %s", at, why)
		}
		return []Candidate{{RID: m.RID, Lifecycle: m.Lifecycle, Weight: m.Weight, Eligible: true}}, nil
	}
	cs := s.candidates(class, typ, key.ID)
	n := 0
	for n < len(cs) && cs[n].Eligible {
		n++
	}
	switch {
	case n > 0:
		return cs[:n], nil
	case len(cs) == 0 && members.Expired():
		return refuse(outcome.Unavailable, expiredList)
	case len(cs) == 0:
		return refuse(outcome.NotConfigured, "no node of the mesh registers the %s type %q", class, typ)
	}
	return refuse(outcome.Unavailable, "no node that registers the %s type %q can take it: %s", class, typ, reasons(cs))
}

// nobodyTook is the end of an operation that every node it asked has refused, the last one with err.
func nobodyTook(op string, key kvlocation.ObjectKey, class Class, typ string, asked []Candidate, err error) error {
	names := make([]string, 0, len(asked))
	for _, c := range asked {
		names = append(names, c.RID)
	}
	e := plainCreate(plain(err))
	return &outcome.Error{
		Op: op, Kind: e.Kind, Acceptance: e.Acceptance, Target: key.String(), Remote: e.Remote, Cause: e.Cause,
		Detail: fmt.Sprintf("no node with the %s type %q took it (asked: %s): %s", class, typ, strings.Join(names, ", "), e.Detail),
	}
}

// reasons says why each node is not eligible, in one line.
func reasons(cs []Candidate) string {
	var b strings.Builder
	for i, c := range cs {
		if i > 0 {
			b.WriteString("; ")
		}
		if i == 8 {
			fmt.Fprintf(&b, "and %d more", len(cs)-i)
			break
		}
		fmt.Fprintf(&b, "%s: %s", c.RID, c.Why)
	}
	return b.String()
}
