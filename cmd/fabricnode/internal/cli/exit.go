package cli

import (
	"errors"
	"fmt"

	"natsfabric/fence"
	"natsfabric/internal/embedded"
	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// The exit codes.
const (
	ExitOK          = 0
	ExitFailure     = 1
	ExitUsage       = 2
	ExitNATS        = 3
	ExitDrift       = 4
	ExitNotFound    = 5
	ExitNotAccepted = 6
	ExitAccepted    = 7
	ExitUnknown     = 8
	ExitHeld        = 9
	ExitProof       = 10
	ExitBlocked     = 11
	ExitSelfFenced  = fence.SelfFenceExit
	ExitInterrupted = 130
)

// exitTable is the part of --help that explains the codes.
const exitTable = `Exit codes:
    0  done
    1  failure of another kind
    2  wrong usage or configuration; an address or directory that cannot be used
    3  NATS cannot be reached or used (server, credentials, JetStream, the mesh's streams)
    4  check found streams that are missing or not as they should be
    5  not found: no such channel, object, incarnation, node or descriptor
    6  not accepted: no target ran the operation and none will
    7  accepted, and failed
    8  unknown whether it was accepted
    9  another process run holds the RID, or took it over
   10  the demo's proof does not hold
   11  drain ended Blocked: something could not move
   75  the node stopped itself: its lease was lost and what ran did not end (--self-fence)
  130  interrupted`

// exitError is an error that brings its exit code.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

// withCode gives err an exit code, unless it has one. A nil error stays nil.
func withCode(code int, err error) error {
	var have *exitError
	if err == nil || errors.As(err, &have) {
		return err
	}
	return &exitError{code: code, err: err}
}

// startError gives the code of a failure to connect or to open a node or client: another holder of the RID, a wrong
// configuration, or NATS.
func startError(err error) error {
	var failed *outcome.Error
	switch {
	case errors.Is(err, kvlocation.ErrRIDInUse):
		return withCode(ExitHeld, fmt.Errorf("%w: stop that process, or choose another --rid", err))
	case errors.As(err, &failed) && failed.Kind == outcome.InvalidOperation && failed.Cause != nil:
		return inFlags(failed.Cause)
	}
	return withCode(ExitNATS, err)
}

// exitCode is the code for a command's result.
func exitCode(err error) int {
	var coded *exitError
	var start *embedded.StartError
	var failed *outcome.Error
	switch {
	case err == nil:
		return ExitOK
	case errors.As(err, &coded):
		return coded.code
	case errors.As(err, &start):
		return ExitUsage
	case !errors.As(err, &failed):
		return ExitFailure
	case failed.Kind == outcome.NotFound:
		return ExitNotFound
	case failed.Acceptance == outcome.NotAccepted:
		return ExitNotAccepted
	case failed.Acceptance == outcome.Accepted:
		return ExitAccepted
	default:
		return ExitUnknown
	}
}
