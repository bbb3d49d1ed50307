package job

import (
	"encoding/json"
	"fmt"
	"time"

	"natsfabric/outcome"
)

// Verb says what the handler does after it has noted the operation.
type Verb string

// What a handler may be asked to do.
const (
	Reply Verb = "reply" // answers at once
	Sleep Verb = "sleep" // waits for Millis, or until its context ends, and answers
	Dwell Verb = "dwell" // waits for Millis, whatever its context says, and answers
	Block Verb = "block" // waits until its context ends, and returns that error
	Panic Verb = "panic" // panics
	Fail  Verb = "fail"  // returns an error of Kind, or a plain one without it
	Big   Verb = "big"   // answers with Size bytes
	Hold  Verb = "hold"  // waits until the gate of the member is open, and answers
	Count Verb = "count" // answers with Counts, without a line in the ledger
)

// What an object's handler may be asked to do beside these. A turn answers with a State unless another answer is named.
const (
	Guard      Verb = "guard"       // writes through the process's guard with the context's token, and answers with what came of it
	GuardToken Verb = "guard token" // the same with the token that the turn had when it began
	Timer      Verb = "timer"       // sets a timer that is due after Millis
	Close      Verb = "close"       // asks for the object's end after this turn
	Call       Verb = "call"        // asks the object To to carry out Then, and answers with its answer
	Broadcast  Verb = "broadcast"   // a Spot sends Then to its members
	Refuse     Verb = "refuse"      // a Spot refuses joins from now on
	Spoil      Verb = "spoil"       // the object's state can be captured and not restored from now on
	Push       Verb = "push"        // an Actor pushes its State to the session that is bound to it
)

// Job is the payload of a request.
type Job struct {
	ID     string       `json:"id"`
	Do     Verb         `json:"do"`
	Millis int          `json:"ms,omitempty"`
	Size   int          `json:"size,omitempty"`
	Kind   outcome.Kind `json:"kind,omitempty"`
	// To is the object of a Call, "actor/alice", and Then its job.
	To   string `json:"to,omitempty"`
	Then *Job   `json:"then,omitempty"`
	// Mark lets a test know the message on its way.
	Mark string `json:"mark,omitempty"`
}

// Encode returns the payload.
func (j Job) Encode() []byte {
	b, err := json.Marshal(j)
	if err != nil {
		panic("job: " + err.Error()) // strings and numbers
	}
	return b
}

// Duration returns Millis as a duration.
func (j Job) Duration() time.Duration { return time.Duration(j.Millis) * time.Millisecond }

// Answer is the payload of a reply: who ran the job, and which one.
func Answer(rid, id string) []byte { return []byte(rid + " " + id) }

// Counts is what a member process counts about itself.
type Counts struct {
	Goroutines int    `json:"goroutines"`
	HeapBytes  uint64 `json:"heap_bytes"`
	Files      int    `json:"files"`
}

// The lines of a ledger: a verb, the operation's identity, and for the end how it ended.
const (
	// LineRan stands before anything else that the handler does.
	LineRan = "ran"
	// LineEnd says that the handler returned, and with what.
	LineEnd = "end"
	// LineLapsed says that requests which the member had accepted came to their end without a turn, because its lease ended,
	// LineExpired that their deadlines had passed.
	LineLapsed  = "lapsed"
	LineExpired = "expired"
)

// RanLine returns the line that says that an operation begins to run.
func RanLine(id string) string { return fmt.Sprintf("%s\t%s\n", LineRan, id) }

// TakenLine returns the line, LineLapsed or LineExpired, that says how many more accepted requests had no turn.
func TakenLine(line string, more uint64) string { return fmt.Sprintf("%s\t%d\n", line, more) }

// EndLine returns the line that says how an operation's handler ended.
func EndLine(id, how string) string { return fmt.Sprintf("%s\t%s\t%q\n", LineEnd, id, how) }
