package objects

import (
	"github.com/nats-io/nats.go"

	"natsfabric/channels"
)

// parcel is a piece of mail on its way to another node.
type parcel struct {
	data   []byte
	header nats.Header
	chain  string
	mark   string // the value of the companion's header
	// timer is the name of a due timer, whose data is data; empty for a message.
	timer string
	// broadcast is the Spot that sent the message to all its members.
	broadcast SpotRef
	// reply is where its caller waits, empty for nobody; deadline is the caller's on the store's clock, in Unix
	// milliseconds, 0 for none.
	reply    string
	deadline int64
	oneWay   bool
	hops     int // how often it was sent on
	sender   channels.Sender
	sent     bool // sender is known
}

// bytes is about how many bytes the parcel has.
func (p *parcel) bytes() int {
	return int(sizeOf(p.data, p.header)) + len(p.chain) + len(p.mark) + len(p.timer) + len(p.reply) + 64
}
