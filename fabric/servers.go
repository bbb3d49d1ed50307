package fabric

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	"natsfabric/channels"
	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// servers are the channels that a node serves, by name.
type servers struct {
	mu sync.Mutex
	m  map[string]*channels.Server
}

func (s *servers) put(name string, srv *channels.Server) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.m == nil {
		s.m = map[string]*channels.Server{}
	}
	s.m[name] = srv
}

func (s *servers) get(op, name string) (*channels.Server, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if srv := s.m[name]; srv != nil {
		return srv, nil
	}
	return nil, outcome.New(op, outcome.NotFound, outcome.NotAccepted, fmt.Sprintf("channel %q", name), "this node does not serve it")
}

func (s *servers) remove(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.m, name)
}

// infos lists the channels as the descriptor says them, sorted by name.
func (s *servers) infos() []kvlocation.ChannelInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []kvlocation.ChannelInfo
	for _, name := range slices.Sorted(maps.Keys(s.m)) {
		out = append(out, s.m[name].Info())
	}
	return out
}
