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

// servers are the channels that a node serves, or has ceased to list and is still draining, by name.
type servers struct {
	mu      sync.Mutex
	m       map[string]*channels.Server
	leaving map[string]bool
}

func (s *servers) put(name string, srv *channels.Server) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.m == nil {
		s.m, s.leaving = map[string]*channels.Server{}, map[string]bool{}
	}
	s.m[name] = srv
	delete(s.leaving, name)
}

// get returns the server of a channel that this node serves or still drains.
func (s *servers) get(op, name string) (*channels.Server, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if srv := s.m[name]; srv != nil {
		select {
		case <-srv.Gone():
			delete(s.m, name)
		default:
			return srv, nil
		}
	}
	return nil, outcome.New(op, outcome.NotFound, outcome.NotAccepted, fmt.Sprintf("channel %q", name), "this node does not serve it")
}

// leave lets the descriptor cease to list a channel.
func (s *servers) leave(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leaving[name] = true
}

// infos lists the channels as the descriptor says them, sorted by name.
func (s *servers) infos() []kvlocation.ChannelInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []kvlocation.ChannelInfo
	for _, name := range slices.Sorted(maps.Keys(s.m)) {
		if !s.leaving[name] {
			out = append(out, s.m[name].Info())
		}
	}
	return out
}
