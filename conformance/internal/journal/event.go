package journal

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"sync"
)

// What is the kind of an event.
type What string

// The events. Each begin stands in the file before the first thing that the code does which it announces.
const (
	Factory     What = "factory"      // a factory runs; Run names the instance that it makes
	FactoryEnd  What = "factory end"  // it returned, How says what
	Activate    What = "activate"     // the activation callback runs
	ActivateEnd What = "activate end" // it returned
	Turn        What = "turn"         // a message or a due timer runs; Run names the turn
	TurnEnd     What = "turn end"     // its handler returned
	Closing     What = "closing"      // the last callback before the object ends
	Joining     What = "joining"      // a Spot is asked to take a member, Detail names it
	Left        What = "left"         // a Spot lost a member, Detail names it
	Guard       What = "guard"        // a guarded write was tried with Token, How says what came of it
	Capture     What = "capture"      // the state is captured for a move
	CaptureEnd  What = "capture end"  // it returned
	Restore     What = "restore"      // the state is restored at a move's target, before the move is certain
	RestoreEnd  What = "restore end"  // it returned
	Bound       What = "bound"        // a session was bound to the Actor, Detail names it
	Unbound     What = "unbound"      // the binding is over, Detail names the session and How says why
)

// Event is one line of a journal.
type Event struct {
	What What `json:"what"`
	// Object is the object's kind and ID, "actor/alice".
	Object string `json:"object"`
	Class  string `json:"class,omitempty"`
	Type   string `json:"type,omitempty"`
	// Generation and OwnerGeneration are what the object itself says.
	Generation      uint64 `json:"generation"`
	OwnerGeneration uint64 `json:"owner_generation"`
	// RID and Lifecycle are the process run.
	RID       string `json:"rid"`
	Lifecycle uint64 `json:"lifecycle"`
	// Instance names what one run of the factory made.
	Instance string `json:"instance"`
	// Run names the turn; its begin and its end share it.
	Run string `json:"run,omitempty"`
	// Op is the operation that a turn carries out, as its caller named it. Empty for a timer.
	Op string `json:"op,omitempty"`
	// Token is the fencing token of the turn, or why there is none.
	Token  string `json:"token,omitempty"`
	Detail string `json:"detail,omitempty"`
	// Moved is true in the factory of an instance that a move brings, which may come to nothing.
	Moved bool `json:"moved,omitempty"`
	// Turns is how many turns the object has had over all moves, this one included.
	Turns int `json:"turns,omitempty"`
	// How says how a run ended.
	How string `json:"how,omitempty"`
}

// Owner is the process run in words.
func (e *Event) Owner() string { return fmt.Sprintf("%s (lifecycle %d)", e.RID, e.Lifecycle) }

// Writer appends to a journal. It may be used from any goroutine, and by many processes at the same time.
type Writer struct{ file *os.File }

// Open opens the journal at path, and makes it.
func Open(path string) (*Writer, error) {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	return &Writer{f}, nil
}

// Close closes the file.
func (w *Writer) Close() error { return w.file.Close() }

// Note appends one event with one write.
func (w *Writer) Note(e Event) error {
	b, err := json.Marshal(e)
	if err != nil {
		return err
	}
	_, err = w.file.Write(append(b, '\n'))
	return err
}

// Reader reads a journal that grows. Its methods may be called from any goroutine.
type Reader struct {
	path string

	mu     sync.Mutex
	offset int64
	events []Event
}

// NewReader returns a reader of the journal at path. No file is an empty journal.
func NewReader(path string) *Reader { return &Reader{path: path} }

// Events returns all events so far, in the order of the journal. The slice must not be changed.
func (r *Reader) Events() ([]Event, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f, err := os.Open(r.path)
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.NewSectionReader(f, r.offset, math.MaxInt64-r.offset))
	if err != nil {
		return nil, err
	}
	for line := range bytes.Lines(text[:bytes.LastIndexByte(text, '\n')+1]) { // a last line without its end is being written
		var e Event
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, fmt.Errorf("%s: line %q: %w", r.path, line, err)
		}
		r.events = append(r.events, e)
		r.offset += int64(len(line))
	}
	return r.events[:len(r.events):len(r.events)], nil
}
