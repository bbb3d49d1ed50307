package main

import (
	"context"
	"encoding/json"
	"fmt"

	"natsfabric/kvlocation"
	"natsfabric/objects"
)

// message is what rooms and players are asked, and what a room tells its players.
type message struct {
	Op string `json:"op"` // score or board of a room, score or seen of a player
	By string `json:"by,omitempty"`
	// Number counts the scores in the room.
	Number int `json:"number,omitempty"`
}

// stateVersion grows when the form of a state changes; Restore then reads the old one, too, or refuses it.
const stateVersion = 1

// capture and restore are the state of a room or a player as JSON.
func capture(state any) (objects.State, error) {
	data, err := json.Marshal(state)
	return objects.State{Version: stateVersion, Data: data}, err
}

func restore(from objects.State, state any) error {
	if from.Version != stateVersion {
		return objects.ErrStateVersion
	}
	return json.Unmarshal(from.Data, state)
}

// board is the state of a room.
type board struct {
	Scores int            `json:"scores"`
	By     map[string]int `json:"by"`
}

// room is a User Spot. One turn at a time runs, so it needs no lock.
type room struct {
	self *objects.Self
	board
}

func roomType() objects.Type {
	return objects.Type{
		Name: "room", Class: kvlocation.ClassUserSpot, Members: objects.SpotWide, Move: objects.MoveState, CloseOnShutdown: true,
		New: func(_ context.Context, self *objects.Self, _ []byte) (objects.Object, error) {
			return &room{self: self, board: board{By: map[string]int{}}}, nil
		},
	}
}

func (r *room) Handle(ctx context.Context, req *objects.Request) (objects.Reply, error) {
	var m message
	if err := json.Unmarshal(req.Data(), &m); err != nil {
		return objects.Reply{}, err
	}
	if m.Op == "score" {
		r.Scores++
		r.By[m.By]++
		told, err := json.Marshal(message{Op: "scored", By: m.By, Number: r.Scores})
		if err != nil {
			return objects.Reply{}, err
		}
		if res, err := r.self.Broadcast(ctx, told); err != nil || res.Accepted < res.Members {
			return objects.Reply{}, fmt.Errorf("not every player was told: %+v (%w)", res, err)
		}
	}
	data, err := json.Marshal(r.board)
	return objects.Reply{Data: data}, err
}

func (r *room) Capture(context.Context, *objects.Self) (objects.State, error) {
	return capture(r.board)
}

func (r *room) Restore(_ context.Context, _ *objects.Self, s objects.State) error {
	return restore(s, &r.board)
}

// seen is the state of a player: the number of the last score that it was told of, and how many did not follow the one before.
type seen struct {
	Last int `json:"last"`
	Gaps int `json:"gaps"`
}

// player is an Actor.
type player struct {
	self *objects.Self
	seen
}

func playerType() objects.Type {
	return objects.Type{
		Name: "player", Class: kvlocation.ClassActor, Move: objects.MoveState, CloseOnShutdown: true,
		New: func(_ context.Context, self *objects.Self, _ []byte) (objects.Object, error) {
			return &player{self: self}, nil
		},
	}
}

func (p *player) Handle(ctx context.Context, req *objects.Request) (objects.Reply, error) {
	var m message
	if err := json.Unmarshal(req.Data(), &m); err != nil {
		return objects.Reply{}, err
	}
	if _, told := req.Broadcast(); told {
		if m.Number != p.Last+1 {
			p.Gaps++
		}
		p.Last = m.Number
		return objects.Reply{}, nil
	}
	if m.Op == "score" {
		spot, ok := p.self.Spot()
		if !ok {
			return objects.Reply{}, fmt.Errorf("%s is in no room", p.self.ID())
		}
		ask, err := json.Marshal(message{Op: "score", By: p.self.ID()})
		if err != nil {
			return objects.Reply{}, err
		}
		return p.self.Spots().Request(ctx, spot.ID, ask)
	}
	data, err := json.Marshal(p.seen)
	return objects.Reply{Data: data}, err
}

func (p *player) Capture(context.Context, *objects.Self) (objects.State, error) {
	return capture(p.seen)
}

func (p *player) Restore(_ context.Context, _ *objects.Self, s objects.State) error {
	return restore(s, &p.seen)
}
