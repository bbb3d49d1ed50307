package kvlocation

import (
	"slices"
	"strings"
)

// Member is one node's descriptor as it stands in the store.
type Member struct {
	Descriptor
	// Revision is the store's revision of the descriptor.
	Revision uint64
}

// Members is one immutable list of the mesh's members. The slices it returns must not be changed.
//
// Concurrency: every method may be called from any goroutine; none takes a lock or allocates.
type Members struct {
	all       []Member
	byRID     map[string]int
	byChannel map[string][]Member
	byType    map[typeKey][]Member
	expired   bool
}

type typeKey struct {
	class Class
	name  string
}

// NewMembers returns the list of the given members, sorted by RID. Of several with one RID the one with the highest
// revision counts.
func NewMembers(members []Member) *Members {
	all := slices.Clone(members)
	slices.SortFunc(all, func(a, b Member) int {
		if c := strings.Compare(a.RID, b.RID); c != 0 {
			return c
		}
		switch {
		case a.Revision > b.Revision:
			return -1
		case a.Revision < b.Revision:
			return 1
		}
		return 0
	})
	all = slices.CompactFunc(all, func(a, b Member) bool { return a.RID == b.RID })
	m := &Members{all: all, byRID: make(map[string]int, len(all)), byChannel: make(map[string][]Member), byType: make(map[typeKey][]Member)}
	for i := range all {
		m.byRID[all[i].RID] = i
		for _, c := range all[i].Channels {
			m.byChannel[c.Name] = append(m.byChannel[c.Name], all[i])
		}
		for _, t := range all[i].Types {
			k := typeKey{t.Class, t.Name}
			m.byType[k] = append(m.byType[k], all[i])
		}
	}
	return m
}

// Expired reports whether the store had not answered for longer than the grace when this list was made: it is then the
// last list that was read, and nothing may be concluded from it (FO-7b).
func (m *Members) Expired() bool { return m.expired }

func (m *Members) expiredIf(expired bool) *Members {
	if m.expired == expired {
		return m
	}
	c := *m
	c.expired = expired
	return &c
}

// All returns every member, sorted by RID.
func (m *Members) All() []Member { return m.all }

// Len returns the number of members.
func (m *Members) Len() int { return len(m.all) }

// Get returns the member with the given RID.
func (m *Members) Get(rid string) (Member, bool) {
	i, ok := m.byRID[rid]
	if !ok {
		return Member{}, false
	}
	return m.all[i], true
}

// Channel returns every member whose descriptor lists the channel, in any state, sorted by RID.
func (m *Members) Channel(name string) []Member { return m.byChannel[name] }

// Type returns every member whose descriptor lists the object type, in any state, full or not, sorted by RID.
func (m *Members) Type(class Class, name string) []Member { return m.byType[typeKey{class, name}] }
