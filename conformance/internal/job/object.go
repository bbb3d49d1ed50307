package job

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"natsfabric/conformance/internal/journal"
)

// Book is the name under which members register their object types: an Actor, a User Spot and an Instance Spot. Other is
// an Actor type beside it, whose instances are made anew when they move. Room is a SpotWide Spot.
const (
	Book  = "book"
	Other = "other"
	Room  = "room"
)

// State is what a turn answers: who ran what, as which incarnation.
type State struct {
	ID              string `json:"id"`
	RID             string `json:"rid"`
	Lifecycle       uint64 `json:"lifecycle"`
	Generation      uint64 `json:"generation"`
	OwnerGeneration uint64 `json:"owner_generation"`
	Token           string `json:"token"`
	Instance        string `json:"instance"`
	// Turns counts the turns of the instance, this one included, and those of the instances whose state it took over.
	Turns int `json:"turns"`
	// Input is the identity of the creation whose input the factory got; empty without one.
	Input string `json:"input,omitempty"`
	// Ballast is the size of what it has beside, as the Size of its creation's job asked for.
	Ballast int `json:"ballast,omitempty"`
	// Said is what a verb has to say beside.
	Said string `json:"said,omitempty"`
}

// ParseState reads the answer of a turn.
func ParseState(reply []byte) (State, error) {
	var s State
	err := json.Unmarshal(reply, &s)
	return s, err
}

// Gate is a file that keeps code of an object waiting for as long as it exists, whatever its context says: in the
// middle of a factory, an activation callback or a turn, right after the journal has named it.
type Gate string

// GateAt is the gate of one object and kind of event, in a bed's directory.
func GateAt(dir, object string, what journal.What) Gate {
	return Gate(filepath.Join(dir, "gate-"+string(what)+"-"+hex.EncodeToString([]byte(object))))
}

// MemberGate is the gate of what a member's channel was asked to Hold.
func MemberGate(dir, rid string) Gate { return GateAt(dir, Object("member", rid), journal.Turn) }

// Close makes the gate.
func (g Gate) Close() error { return os.WriteFile(string(g), nil, 0o600) }

// Open lets through what waits and what comes.
func (g Gate) Open() error {
	if err := os.Remove(string(g)); err != nil && !os.IsNotExist(err) {
		return err
	}
	return nil
}

// gatePoll is how often what waits looks.
const gatePoll = 5 * time.Millisecond

// Pass waits until the gate is open.
func (g Gate) Pass() {
	for {
		if _, err := os.Stat(string(g)); err != nil {
			return
		}
		time.Sleep(gatePoll)
	}
}

// Object is the name of an object in journals.
func Object(kind, id string) string { return kind + "/" + id }

// SplitObject takes Object apart.
func SplitObject(object string) (kind, id string, err error) {
	kind, id, ok := strings.Cut(object, "/")
	if !ok {
		return "", "", fmt.Errorf("%q names no object", object)
	}
	return kind, id, nil
}
