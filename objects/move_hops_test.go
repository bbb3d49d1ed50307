package objects

import (
	"strconv"
	"testing"

	"github.com/nats-io/nats.go"

	"natsfabric/internal/wire"
	"natsfabric/outcome"
)

// TestHeldMessagesKeepTheirHops: a message that was sent on and is held at a node goes on as the next hop, up to MaxHops, and is refused beyond.
func TestHeldMessagesKeepTheirHops(t *testing.T) {
	w := newMoveBed(t)
	for _, c := range []struct {
		hops  int
		taken bool
	}{{MaxHops - 1, true}, {MaxHops, false}} {
		key := w.actor("hops" + strconv.Itoa(c.hops))
		m := w.move(w.a, w.b, key)
		m.prepare().load().accept()
		done := make(chan error, 1)
		go func() {
			_, err := w.at(w.c, w.a, key, "held", nats.Header{wire.HeaderHops: {strconv.Itoa(c.hops)}}, false)
			done <- err
		}()
		w.waits(w.a, key, 1)
		m.commit().finish() // with nothing published
		err := <-done
		if c.taken && err != nil {
			t.Errorf("after %d hops: %v", c.hops, err)
		}
		if !c.taken {
			wantError(t, err, outcome.Unavailable, outcome.NotAccepted)
		}
	}
}
