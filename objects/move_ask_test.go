package objects

import (
	"errors"
	"testing"
	"time"

	"natsfabric/fabrictest"
	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// TestMoveClosedWhilePreparing: the end of an object that is asked for between the write of *preparing* and the seal waits for
// the move's end: the record may not be closed then, and that it can't be does not mean that the object is lost.
func TestMoveClosedWhilePreparing(t *testing.T) {
	for _, aborted := range []bool{false, true} {
		t.Run(map[bool]string{false: "committed", true: "aborted"}[aborted], func(t *testing.T) {
			t.Parallel()
			w := newMoveBed(t)
			key := w.actor("one")
			w.request(w.c, key, "first")
			m := w.move(w.a, w.b, key).prepare()
			ref := ActorRef{ID: key.ID, Generation: m.at.Generation()}
			ended := make(chan error, 1)
			go func() { ended <- w.c.Actors().Destroy(w.ctx(), ref) }()
			select {
			case err := <-ended:
				t.Errorf("it ended within the move: %v", err)
			case <-time.After(300 * time.Millisecond):
			}
			if got := w.request(w.c, key, "meanwhile"); got != "2 a" {
				t.Fatalf("the object answers %q", got)
			}
			if aborted {
				m.abort()
			} else {
				m.load().accept().held().commit().finish()
			}
			if err := <-ended; err != nil {
				t.Fatal(err)
			}
			if _, err := w.c.Actors().Request(w.ctx(), key.ID, nil); !errors.Is(err, outcome.NotFound) {
				t.Fatalf("after the end: %v", err)
			}
		})
	}
}

// TestMoveEndsItself: an object that asks for its own end between the write of *preparing* and the seal ends the move, and then itself.
func TestMoveEndsItself(t *testing.T) {
	w := newMoveBed(t)
	key := w.actor("one")
	m := w.move(w.a, w.b, key).prepare()
	o := w.a.rt.find(key.Kind, key.ID)
	o.askClose(CloseAsked)
	fabrictest.Eventually(t, long, "the object was asked", func() bool { _, running := o.running(); return !running && o.closing.Load() != nil })
	w.request(w.c, key, "behind it")
	if o.isClosed() || o.rt.clock.closes(o) {
		t.Fatal("it ended within the move, or tried to")
	}
	if err := m.d.Seal(w.ctx()); !errors.Is(err, ErrMoving) {
		t.Fatalf("it was sealed: %v", err)
	}
	m.abort()
	fabrictest.Eventually(t, long, "the object ends", func() bool {
		return o.isClosed() && w.entry(w.a, key.Kind, key.ID).Phase() == kvlocation.PhaseMissing
	})
}

// TestMoveEndToCome: an object whose end has failed and is tried again does not leave before.
func TestMoveEndToCome(t *testing.T) {
	w := newMoveBed(t)
	key := w.actor("one")
	m := w.move(w.a, w.b, key).prepare()
	o := w.a.rt.find(key.Kind, key.ID)
	o.rt.clock.closeAgain(o, CloseAsked)
	err := m.d.Seal(w.ctx())
	if err == nil { // else a slow machine has tried it already
		_, err = m.d.Capture(w.ctx())
	}
	if !errors.Is(err, ErrMoving) {
		t.Fatalf("it leaves: %v", err)
	}
	m.abort()
	fabrictest.Eventually(t, long, "the object ends", func() bool {
		return o.isClosed() && w.entry(w.a, key.Kind, key.ID).Phase() == kvlocation.PhaseMissing
	})
}
