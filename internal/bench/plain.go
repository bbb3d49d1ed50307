package bench

import (
	"sync/atomic"

	"natsfabric/objects"
)

// plainActor is what one would write without the fabric: a goroutine that takes messages from a Go channel as long as
// a mailbox by default. It is the counterpart of what stays in one process.
type plainActor struct {
	mail  chan plainMessage
	ended chan struct{}
	turns atomic.Int64
}

// plainMessage is a request, or without answer a send.
type plainMessage struct {
	data   []byte
	answer chan<- []byte
}

func newPlainActor() *plainActor {
	p := &plainActor{mail: make(chan plainMessage, objects.DefaultMailbox), ended: make(chan struct{})}
	go func() {
		defer close(p.ended)
		for m := range p.mail {
			p.turns.Add(1)
			if m.answer != nil {
				m.answer <- m.data
			}
		}
	}()
	return p
}

// close ends the goroutine once its mail is done, and waits for that. Nobody may send any more.
func (p *plainActor) close() {
	close(p.mail)
	<-p.ended
}
