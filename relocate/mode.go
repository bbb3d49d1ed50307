package relocate

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"natsfabric/kvlocation"
)

// ModeKind is why a whole host is moved.
type ModeKind string

// The kinds.
const (
	// Maintenance: the node will be away for a while. Targets have the same application version.
	Maintenance ModeKind = "maintenance"
	// RollingUpdate: the node will be replaced by a higher application version, the one that Mode.Version names. Only
	// nodes of exactly that version are targets.
	RollingUpdate ModeKind = "rolling_update"
)

// Mode says why a whole host is moved, and so to which nodes its objects may go.
type Mode struct {
	Kind ModeKind `json:"mode"`
	// Version is the application version of the targets of a RollingUpdate; empty for Maintenance.
	Version string `json:"version,omitempty"`
}

// String is the mode as people write it.
func (m Mode) String() string {
	if m.Kind == RollingUpdate {
		return "rolling update to " + m.Version
	}
	return string(m.Kind)
}

// Validate reports what is wrong with the mode for a node of the given application version. Its error names the field, the value and
// what is allowed.
func (m Mode) Validate(appVersion string) error {
	switch m.Kind {
	case Maintenance:
		if m.Version != "" {
			return fmt.Errorf("Version %q is not allowed with maintenance: the targets have this node's own version", m.Version)
		}
	case RollingUpdate:
		switch {
		case m.Version == "":
			return errors.New("Version is required for a rolling update: the exact application version of the targets")
		case !higher(m.Version, appVersion):
			return fmt.Errorf("Version %q is not allowed for a rolling update: it must be higher than this node's own, %q", m.Version, appVersion)
		}
	default:
		return fmt.Errorf("mode %q is not allowed: it must be %s or %s", m.Kind, Maintenance, RollingUpdate)
	}
	return nil
}

// wants is the application version of the targets.
func (m Mode) wants(appVersion string) string {
	if m.Kind == RollingUpdate {
		return m.Version
	}
	return appVersion
}

// higher compares application versions: numbers between dots, an optional v before them; what follows a hyphen makes a version
// lower than the same one without it; what follows a plus sign does not count.
func higher(a, b string) bool {
	a, _, _ = strings.Cut(strings.TrimPrefix(a, "v"), "+")
	b, _, _ = strings.Cut(strings.TrimPrefix(b, "v"), "+")
	a, preA, isA := strings.Cut(a, "-")
	b, preB, isB := strings.Cut(b, "-")
	if c := compareDotted(a, b); c != 0 {
		return c > 0
	}
	if isA && isB {
		return compareDotted(preA, preB) > 0
	}
	return isB && !isA
}

func compareDotted(a, b string) int {
	as, bs := strings.Split(a, "."), strings.Split(b, ".")
	for i := range max(len(as), len(bs)) {
		var x, y string
		if i < len(as) {
			x = as[i]
		}
		if i < len(bs) {
			y = bs[i]
		}
		n, errN := strconv.ParseUint(x, 10, 64)
		m, errM := strconv.ParseUint(y, 10, 64)
		switch {
		case x == y:
		case errN == nil && errM == nil && n != m:
			if n < m {
				return -1
			}
			return 1
		case errN == nil && errM == nil: // 1 and 01
		case x == "", errN == nil && y != "": // shorter, and numbers before words
			return -1
		case y == "", errM == nil:
			return 1
		default:
			return strings.Compare(x, y)
		}
	}
	return 0
}

// Outcome is the end of the move of a whole host.
type Outcome string

// The outcomes.
const (
	// Relocated: no object is left on the node but its Entry Spot.
	Relocated Outcome = "Relocated"
	// Blocked: something could not move; Result.Reason and Result.Kept say why.
	Blocked Outcome = "Blocked"
)

// Reason is why something could not move. Its Text is for people.
type Reason string

// The reasons.
const (
	// TargetUnavailable: no other node can take it.
	TargetUnavailable Reason = "TargetUnavailable"
	// StoreUnavailable: the Location Store does not say what became of a write, or does not answer.
	StoreUnavailable Reason = "StoreUnavailable"
	// RelocationDisabled: the type's objects do not move, or it is a member that moves with its Spot.
	RelocationDisabled Reason = "RelocationDisabled"
	// StateIncompatible: the target's Restore does not know the version of the state, or an instance is no Mover.
	StateIncompatible Reason = "StateIncompatible"
	// DeadlineExceeded: the time of the unit, or of the whole operation, was over.
	DeadlineExceeded Reason = "DeadlineExceeded"
	// RelocationFailed: anything else; the detail says it.
	RelocationFailed Reason = "RelocationFailed"
	// RuntimeNotReady: the node has no valid lease, or does not serve.
	RuntimeNotReady Reason = "RuntimeNotReady"
	// ShutdownRequested: the node was asked to stop.
	ShutdownRequested Reason = "ShutdownRequested"
	// OperationInProgress: a move of this whole host is under way.
	OperationInProgress Reason = "OperationInProgress"
)

var reasonTexts = map[Reason]string{
	TargetUnavailable:   "no other node can take it: a target is serving, answers, hosts the type with a free slot, has the wanted application version and another maintenance wave; start or free such a node and try again",
	StoreUnavailable:    "the Location Store does not answer: look at the NATS servers (fabricnode check); nothing was given away that is not written down, and the objects go on where their records say",
	RelocationDisabled:  "the type of the object does not move (Type.Move is MoveDisabled): close such objects, or let them end with the node",
	StateIncompatible:   "the target does not understand the captured state: its Restore does not know the version, or its type has another Move policy; update the application there first",
	DeadlineExceeded:    "it was not done in time: a handler, Capture or Restore did not return, or the time of the whole operation was over; the detail says which",
	RelocationFailed:    "the move of an object failed, and it goes on where its record says; the detail says why",
	RuntimeNotReady:     "the node is not serving: it has no valid lease, is starting, or is stopping; wait until it serves",
	ShutdownRequested:   "the node was asked to shut down while its objects were moving: those that had not begun stayed",
	OperationInProgress: "the objects of this node are being moved already: watch that operation, or wait for its end",
}

// Text says to a person what the reason means and what can be done.
func (r Reason) Text() string { return reasonTexts[r] }

// Kept is one unit that stayed.
type Kept struct {
	Key        kvlocation.ObjectKey `json:"key"`
	Type       string               `json:"type"`
	Generation uint64               `json:"generation"`
	Reason     Reason               `json:"reason"`
	// Detail is what the error of the last attempt says beside key and reason, cut to 500 bytes.
	Detail string `json:"detail"`
}

// MaxKept is how many units a Result lists; Result.KeptCount says how many there are.
const MaxKept = 1000

// Result is how the move of a whole host ended.
type Result struct {
	Outcome Outcome `json:"outcome"`
	// Reason is the most frequent one of what was kept, or why the whole operation ended; empty with Relocated.
	Reason Reason `json:"reason,omitempty"`
	// Detail says more, for people.
	Detail string `json:"detail,omitempty"`
	// Moved is how many units have moved, and Objects how many objects those were.
	Moved   int `json:"moved"`
	Objects int `json:"objects"`
	// KeptCount is how many units stayed, Kept the first 1,000 of them.
	KeptCount int    `json:"kept_count"`
	Kept      []Kept `json:"kept,omitempty"`
}
