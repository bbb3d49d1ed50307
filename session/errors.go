package session

import (
	"errors"
	"fmt"
	"strconv"

	"natsfabric/channels"
	"natsfabric/objects"
	"natsfabric/outcome"
)

// maxWait is the longest time for which a client may wait for one request.
const maxWait = channels.MaxTimeout

var (
	errDraining = refusal(outcome.ShuttingDown, "the node is about to stop: connect to another one")
	errStopping = outcome.New("", outcome.ShuttingDown, outcome.NotAccepted, "", "the node stops")
	errCutOff   = outcome.New("", outcome.Unavailable, outcome.NotAccepted, "", "the session's node is not connected to NATS")
	errNewEpoch = errors.New("the node's connection to NATS was replaced")
)

// noSessions is what a node says that has no authenticator.
const noSessions = "this node takes no sessions: it has no authenticator (session.Config.Authenticate)"

func quote(s string) string {
	if len(s) > 80 {
		s = s[:80] + "..."
	}
	return strconv.Quote(s)
}

func tooLarge(n, most int) *outcome.Error {
	return outcome.New("", outcome.CapacityExceeded, outcome.NotAccepted, "", fmt.Sprintf("the message has %d bytes, %d are allowed", n, most))
}

// errNoBinding refuses what names a binding that the session does not have.
func errNoBinding() *outcome.Error {
	return outcome.New("", outcome.InvalidOperation, outcome.NotAccepted, "", "the session has no such binding, or it has ended: bind again")
}

// errGone is what a binding, or the attempt at one, ends with when its Actor is not there any more.
func errGone(ref objects.ActorRef) *outcome.Error {
	return outcome.New("", outcome.NotFound, outcome.NotAccepted, ref.String(), "the Actor "+quote(ref.ID)+" of generation "+strconv.FormatUint(ref.Generation, 10)+" does not exist any more")
}
