package objects

import (
	"fmt"
	"strconv"
	"strings"

	"natsfabric/internal/wire"
	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// ActorRef names one incarnation of an Actor: its logical ID and its ObjectGeneration. It says nothing about where the
// Actor lives. It is comparable; its text form is actor/<escaped id>@<generation>.
type ActorRef struct {
	ID         string
	Generation uint64
}

// SpotRef names one incarnation of a Spot. The Entry Spot of a node has the ID "entry:<rid>" and the node's lifecycle
// as its generation. It is comparable; its text form is spot/<escaped id>@<generation>.
type SpotRef struct {
	ID         string
	Generation uint64
}

// IsZero reports whether r names nothing.
func (r ActorRef) IsZero() bool { return r == ActorRef{} }

// IsZero reports whether r names nothing.
func (r SpotRef) IsZero() bool { return r == SpotRef{} }

// String returns the text form. An ID that is not allowed is shown quoted and cannot be parsed back.
func (r ActorRef) String() string { return refText(kvlocation.KindActor, r.ID, r.Generation) }

// String returns the text form. An ID that is not allowed is shown quoted and cannot be parsed back.
func (r SpotRef) String() string { return refText(kvlocation.KindSpot, r.ID, r.Generation) }

// MarshalText returns the text form; its error says what is wrong with the ID.
func (r ActorRef) MarshalText() ([]byte, error) {
	return marshalRef(kvlocation.KindActor, r.ID, r.Generation)
}

// MarshalText returns the text form; its error says what is wrong with the ID.
func (r SpotRef) MarshalText() ([]byte, error) {
	return marshalRef(kvlocation.KindSpot, r.ID, r.Generation)
}

// UnmarshalText is ParseActorRef.
func (r *ActorRef) UnmarshalText(text []byte) (err error) {
	*r, err = ParseActorRef(string(text))
	return err
}

// UnmarshalText is ParseSpotRef.
func (r *SpotRef) UnmarshalText(text []byte) (err error) {
	*r, err = ParseSpotRef(string(text))
	return err
}

// ParseActorRef reads the text form of an ActorRef. The error is an *outcome.Error, InvalidOperation and NotAccepted.
func ParseActorRef(text string) (ActorRef, error) {
	id, generation, err := parseRef(kvlocation.KindActor, text)
	return ActorRef{ID: id, Generation: generation}, err
}

// ParseSpotRef reads the text form of a SpotRef. The error is an *outcome.Error, InvalidOperation and NotAccepted.
func ParseSpotRef(text string) (SpotRef, error) {
	id, generation, err := parseRef(kvlocation.KindSpot, text)
	return SpotRef{ID: id, Generation: generation}, err
}

func refText(kind kvlocation.ObjectKind, id string, generation uint64) string {
	token, err := wire.EscapeID(id)
	if err != nil {
		token = strconv.Quote(id)
	}
	return string(kind) + "/" + token + "@" + strconv.FormatUint(generation, 10)
}

func marshalRef(kind kvlocation.ObjectKind, id string, generation uint64) ([]byte, error) {
	if _, err := wire.EscapeID(id); err != nil {
		return nil, err
	}
	return []byte(refText(kind, id, generation)), nil
}

func parseRef(kind kvlocation.ObjectKind, text string) (string, uint64, error) {
	bad := func(why string) (string, uint64, error) {
		if len(text) > 80 {
			text = text[:80] + "..."
		}
		return "", 0, outcome.New("parse", outcome.InvalidOperation, outcome.NotAccepted, "reference "+strconv.Quote(text),
			fmt.Sprintf("it must be %s/<escaped id>@<generation>: %s", kind, why))
	}
	token, ok := strings.CutPrefix(text, string(kind)+"/")
	if !ok {
		return bad("it begins otherwise")
	}
	token, number, ok := strings.Cut(token, "@")
	if !ok {
		return bad("the generation is missing")
	}
	id, err := wire.UnescapeID(token)
	if err != nil {
		return bad(err.Error())
	}
	generation, err := strconv.ParseUint(number, 10, 64)
	if err != nil || strconv.FormatUint(generation, 10) != number {
		return bad("the generation is no number")
	}
	return id, generation, nil
}
