package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"

	"natsfabric/kvlocation"
	"natsfabric/objects"
	"natsfabric/outcome"
)

// values are named values of a device.
type values map[string]string

// request changes a shadow, and asks how it stands then. Without changes it only asks.
type request struct {
	Report values `json:"report,omitempty"` // from the device
	Desire values `json:"desire,omitempty"` // from people and programs
	// If is the version from which the change is made; any other is refused. 0 means any.
	If uint64 `json:"if,omitempty"`
}

// state is what a shadow holds, and answers.
type state struct {
	Version  uint64 `json:"version"`
	Reported values `json:"reported"`
	Desired  values `json:"desired"`
}

// Delta is what is desired and not reported.
func (s state) Delta() values {
	d := values{}
	for name, v := range s.Desired {
		if s.Reported[name] != v {
			d[name] = v
		}
	}
	return d
}

// shadow is an Instance Spot. One turn at a time runs, so it needs no lock.
type shadow struct{ state }

func shadowType() objects.Type {
	return objects.Type{
		Name: "shadow", Class: kvlocation.ClassInstanceSpot, Move: objects.MoveState, CloseOnShutdown: true,
		New: func(context.Context, *objects.Self, []byte) (objects.Object, error) {
			return &shadow{state{Reported: values{}, Desired: values{}}}, nil
		},
	}
}

func (s *shadow) Handle(_ context.Context, req *objects.Request) (objects.Reply, error) {
	var r request
	if err := json.Unmarshal(req.Data(), &r); err != nil {
		return objects.Reply{}, outcome.Wrap("shadow", outcome.InvalidOperation, outcome.Accepted, req.Self().ID(), "the request is no JSON object", err)
	}
	if r.If != 0 && r.If != s.Version {
		return objects.Reply{}, outcome.New("shadow", outcome.Rejected, outcome.Accepted, req.Self().ID(), fmt.Sprintf("it has version %d, not %d", s.Version, r.If))
	}
	if len(r.Report)+len(r.Desire) > 0 {
		maps.Copy(s.Reported, r.Report)
		maps.Copy(s.Desired, r.Desire)
		s.Version++
	}
	data, err := json.Marshal(s.state)
	return objects.Reply{Data: data}, err
}

// shadowVersion grows when the form of the state changes; Restore then reads the old one, too, or refuses it.
const shadowVersion = 1

// Capture hands out the state when the shadow moves; Restore takes it in at the other node, before the move is certain.
func (s *shadow) Capture(context.Context, *objects.Self) (objects.State, error) {
	data, err := json.Marshal(s.state)
	return objects.State{Version: shadowVersion, Data: data}, err
}

func (s *shadow) Restore(_ context.Context, _ *objects.Self, from objects.State) error {
	if from.Version != shadowVersion {
		return objects.ErrStateVersion
	}
	return json.Unmarshal(from.Data, &s.state)
}
