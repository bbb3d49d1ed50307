package objects

import (
	"time"

	"natsfabric/kvlocation"
)

// Location is where an object is, as the store says. Its JSON form is the answer to the operator request locate.
type Location struct {
	Kind  kvlocation.ObjectKind `json:"kind"`
	ID    string                `json:"id"`
	Class Class                 `json:"class"`
	Type  string                `json:"type"`
	// Phase is that of the record: creating, ready or moving.
	Phase kvlocation.Phase `json:"phase"`
	// RID, Lifecycle and Lease name the owner's process run and the lease under which it holds the object.
	RID       string `json:"rid"`
	Lifecycle uint64 `json:"lifecycle"`
	Lease     uint64 `json:"lease"`
	// Alive is true while the owner's process run holds its lease key, under any lease generation.
	Alive bool `json:"alive"`
	// LeaseUntil is when the owner's lease ends at the latest if it is not renewed, on the store's clock; zero when
	// it holds none.
	LeaseUntil time.Time `json:"lease_until,omitzero"`
	// Generation is the ObjectGeneration, OwnerGeneration counts the owner changes of that incarnation.
	Generation      uint64 `json:"generation"`
	OwnerGeneration uint64 `json:"owner_generation"`
	// Revision is that of the record.
	Revision uint64 `json:"revision"`
	// Spot is the Spot that an Actor has joined; zero for none.
	Spot SpotRef `json:"spot,omitzero"`
	// ByReference is true for a member of a SpotWide Spot: its record names the Spot, and owner, lease and owner
	// generation are those of the Spot's record.
	ByReference bool `json:"by_reference,omitempty"`
	// Move says where the object goes, while its phase is moving; RID and the rest are those of the node it leaves.
	Move *Moving `json:"move,omitempty"`
	// Activation is true while creation input or a first message stands in the record.
	Activation bool      `json:"activation,omitempty"`
	Created    time.Time `json:"created,omitzero"`
	Updated    time.Time `json:"updated,omitzero"`
}

// Moving is a move under way, as the object's record tells it.
type Moving struct {
	// Op is the move's operation ID.
	Op string `json:"op"`
	// RID and Lifecycle name the process run to which the object goes.
	RID       string `json:"rid"`
	Lifecycle uint64 `json:"lifecycle"`
	// Accepted is true once the object goes there or nowhere; before, it is its owner's, and the move may be aborted.
	Accepted bool `json:"accepted,omitempty"`
}

// Key is the object's key.
func (l Location) Key() kvlocation.ObjectKey {
	return kvlocation.ObjectKey{Kind: l.Kind, ID: l.ID}
}

// ListRequest asks for object records. Every field that is not zero narrows the answer.
type ListRequest struct {
	Kind  kvlocation.ObjectKind `json:"kind,omitempty"`
	Class Class                 `json:"class,omitempty"`
	Type  string                `json:"type,omitempty"`
	// RID and Lifecycle name the owner; a lifecycle of 0 means every run of the RID.
	RID       string `json:"rid,omitempty"`
	Lifecycle uint64 `json:"lifecycle,omitempty"`
	// Prefix begins the IDs.
	Prefix string `json:"prefix,omitempty"`
	// Limit is how many to return at most: 100 by default, at most 1,000.
	Limit int `json:"limit,omitempty"`
	// Cursor is the Next of the page before.
	Cursor string `json:"cursor,omitempty"`
}

// ListPage is one page of object records. Each was true at some moment of the call.
type ListPage struct {
	Objects []Location `json:"objects"`
	// Next goes on behind this page; empty at the end.
	Next string `json:"next,omitempty"`
}

// ExplainRequest asks why a call to an object would succeed or fail now.
type ExplainRequest struct {
	Kind kvlocation.ObjectKind `json:"kind"`
	ID   string                `json:"id"`
	// Class and Type are those with which a missing object would be made; optional. Without them a missing object
	// is just that.
	Class Class  `json:"class,omitempty"`
	Type  string `json:"type,omitempty"`
}

// Explanation says why a call would succeed or fail now, by which rule.
type Explanation struct {
	Kind kvlocation.ObjectKind `json:"kind"`
	ID   string                `json:"id"`
	// WouldSucceed is true when an ordinary call would reach the object's mailbox; with the type
	// of an Instance Spot, when a call with instance intent would.
	WouldSucceed bool `json:"would_succeed"`
	// Error is the kind with which it would fail, empty when it would not.
	Error string `json:"error,omitempty"`
	// Rule is the ID of the rule that decides, FO-4.2c for example.
	Rule string `json:"rule"`
	// Why says it in a sentence.
	Why string `json:"why"`
	// Location is what the store holds; nil when there is no object.
	Location *Location `json:"location,omitempty"`
	// Object is what the owner says of the object in its memory; nil when it was not asked or did not answer.
	Object *ObjectFacts `json:"object,omitempty"`
	// Placement is how the nodes would be chosen for a creation, best first; only when a type is known.
	Placement []Candidate `json:"placement,omitempty"`
	// AnsweredBy is the RID of the node that explains.
	AnsweredBy string `json:"answered_by,omitempty"`
}

// ObjectFacts is what an object's owner knows of it in memory.
type ObjectFacts struct {
	// State is creating, arriving (from another node), ready, sealed (for a move or its Spot's close: what arrives is
	// held), closing, or closed when it has just ended.
	State string `json:"state"`
	// Mail and MailBytes are what waits in the mailbox.
	Mail      int `json:"mail"`
	MailBytes int `json:"mail_bytes"`
	// RunningMillis is for how long the present turn has been running; 0 for none.
	RunningMillis int64 `json:"running_ms,omitempty"`
	// Timers is how many are set.
	Timers int `json:"timers,omitempty"`
	// Members is how many Actors have joined a Spot.
	Members int `json:"members,omitempty"`
	// MustAdopt is true after a lapse of the lease, until the object's next turn has adopted it.
	MustAdopt bool `json:"must_adopt,omitempty"`
	// FollowedTo is the RID of the node to which it has moved, while what reaches this node is sent on there.
	FollowedTo string `json:"followed_to,omitempty"`
	// LeaseAdmits is true while the owner's lease admits new work.
	LeaseAdmits bool `json:"lease_admits"`
}

// Candidate is one node in a placement decision.
type Candidate struct {
	RID       string `json:"rid"`
	Lifecycle uint64 `json:"lifecycle"`
	Weight    int    `json:"weight"`
	// Score orders the eligible nodes: weighted rendezvous hashing of (class, type, id) and RID.
	Score    float64 `json:"score"`
	Eligible bool    `json:"eligible"`
	// Why says why a node is not eligible.
	Why string `json:"why,omitempty"`
}

// ReleaseRequest names what to release: one object by exact generation, or all that one process run owns.
type ReleaseRequest struct {
	Kind       kvlocation.ObjectKind `json:"kind,omitempty"`
	ID         string                `json:"id,omitempty"`
	Generation uint64                `json:"generation,omitempty"`
	// RID and Lifecycle name an owner whose objects are all to be released; Kind, Class and Type narrow that.
	RID       string `json:"rid,omitempty"`
	Lifecycle uint64 `json:"lifecycle,omitempty"`
	Class     Class  `json:"class,omitempty"`
	Type      string `json:"type,omitempty"`
	// DryRun changes nothing and needs no proof: it says what would be released.
	DryRun bool `json:"dry_run,omitempty"`
	// Rate bounds the releases in one second: 500 by default, at most 10,000.
	Rate int `json:"rate,omitempty"`
	// Reason and By go into the audit entries.
	Reason string `json:"reason,omitempty"`
	By     string `json:"by,omitempty"`
	// Cursor goes on with a release that was not Done.
	Cursor string `json:"cursor,omitempty"`
}

// ReleaseReport says how far a release has come.
type ReleaseReport struct {
	// Done is true when nothing is left to do; else the release goes on with Cursor.
	Done   bool   `json:"done"`
	Cursor string `json:"cursor,omitempty"`
	DryRun bool   `json:"dry_run,omitempty"`
	// Waiting is true while the owner is being proven gone, which ends at Until at the earliest.
	Waiting bool      `json:"waiting,omitempty"`
	Until   time.Time `json:"until,omitzero"`
	// Released, Skipped and Failed count the objects of this call; in a dry run Released is what would be.
	Released int `json:"released"`
	Skipped  int `json:"skipped"`
	Failed   int `json:"failed"`
	// Objects names them, at most 1,000.
	Objects []ReleasedObject `json:"objects,omitempty"`
}

// ReleasedObject is one object of a release.
type ReleasedObject struct {
	Kind       kvlocation.ObjectKind `json:"kind"`
	ID         string                `json:"id"`
	Class      Class                 `json:"class"`
	Type       string                `json:"type"`
	Generation uint64                `json:"generation"`
	// Outcome is released, would release, skipped or failed.
	Outcome string `json:"outcome"`
	// Why says why it was skipped or failed.
	Why string `json:"why,omitempty"`
}
