package objects

import (
	"encoding/binary"
	"errors"
	"slices"

	"github.com/nats-io/nats.go"

	"natsfabric/channels"
	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// cargoVersion begins the binary forms of Cargo and Held.
const cargoVersion = 2

// errCut says that a binary form ends too early, or has a length that cannot be.
var errCut = errors.New("it is cut off or damaged")

// packer appends to a binary form: numbers as varints, everything else behind its length.
type packer struct{ b []byte }

func (p *packer) num(n uint64)  { p.b = binary.AppendUvarint(p.b, n) }
func (p *packer) int(n int64)   { p.b = binary.AppendVarint(p.b, n) }
func (p *packer) text(s string) { p.num(uint64(len(s))); p.b = append(p.b, s...) }
func (p *packer) data(b []byte) { p.num(uint64(len(b))); p.b = append(p.b, b...) }
func (p *packer) flag(on bool) {
	if on {
		p.b = append(p.b, 1)
	} else {
		p.b = append(p.b, 0)
	}
}

// unpacker reads what packer has made. After the first error everything is zero.
type unpacker struct {
	b   []byte
	err error
}

func (u *unpacker) num() uint64 {
	n, size := binary.Uvarint(u.b)
	if size <= 0 {
		u.fail()
		return 0
	}
	u.b = u.b[size:]
	return n
}

func (u *unpacker) int() int64 {
	n, size := binary.Varint(u.b)
	if size <= 0 {
		u.fail()
		return 0
	}
	u.b = u.b[size:]
	return n
}

func (u *unpacker) fail() { u.b, u.err = nil, errCut }

// data returns a slice of the form itself; nil when it is empty.
func (u *unpacker) data() []byte {
	n := u.num()
	if n > uint64(len(u.b)) {
		u.fail()
		return nil
	}
	if n == 0 {
		return nil
	}
	b := u.b[:n:n]
	u.b = u.b[n:]
	return b
}

func (u *unpacker) text() string { return string(u.data()) }

func (u *unpacker) flag() bool {
	if len(u.b) == 0 || u.b[0] > 1 {
		u.fail()
		return false
	}
	on := u.b[0] == 1
	u.b = u.b[1:]
	return on
}

// several reads a number of things, each with f. What is made for them grows with what is read, not with the number.
func (u *unpacker) several(f func()) {
	for n := u.num(); n > 0 && u.err == nil; n-- {
		f()
	}
}

func (u *unpacker) version() {
	if v := u.num(); u.err == nil && v != cargoVersion {
		u.b, u.err = nil, errors.New("its version is not known")
	}
}

// end returns the first error; what is left over is one.
func (u *unpacker) end(what string) error {
	if u.err == nil && len(u.b) > 0 {
		u.fail()
	}
	if u.err == nil {
		return nil
	}
	return outcome.Wrap("move", outcome.ProtocolError, outcome.NotAccepted, what, "", u.err)
}

func (p *packer) key(k kvlocation.ObjectKey) { p.text(string(k.Kind)); p.text(k.ID) }

func (u *unpacker) key() kvlocation.ObjectKey {
	return kvlocation.ObjectKey{Kind: kvlocation.ObjectKind(u.text()), ID: u.text()}
}

func (p *packer) parcel(m *parcel) {
	p.data(m.data)
	names := make([]string, 0, len(m.header))
	for name := range m.header {
		names = append(names, name)
	}
	slices.Sort(names)
	p.num(uint64(len(names)))
	for _, name := range names {
		p.text(name)
		p.num(uint64(len(m.header[name])))
		for _, v := range m.header[name] {
			p.text(v)
		}
	}
	p.text(m.chain)
	p.text(m.mark)
	p.text(m.timer)
	p.text(m.broadcast.ID)
	p.num(m.broadcast.Generation)
	p.text(m.reply)
	p.int(m.deadline)
	p.num(uint64(m.hops))
	p.flag(m.oneWay)
	p.flag(m.sent)
	p.text(m.sender.RID)
	p.num(m.sender.Lifecycle)
	p.text(m.sender.Client)
}

func (u *unpacker) parcel() (m parcel) {
	m.data = u.data()
	u.several(func() {
		name := u.text()
		if m.header == nil {
			m.header = make(nats.Header)
		}
		m.header[name] = nil
		u.several(func() { m.header[name] = append(m.header[name], u.text()) })
	})
	m.chain, m.mark, m.timer = u.text(), u.text(), u.text()
	m.broadcast = SpotRef{ID: u.text(), Generation: u.num()}
	m.reply, m.deadline = u.text(), u.int()
	m.hops = int(min(u.num(), MaxHops))
	m.oneWay, m.sent = u.flag(), u.flag()
	m.sender = channels.Sender{RID: u.text(), Lifecycle: u.num(), Client: u.text()}
	return m
}

func (c *Cargo) encode() []byte {
	state, _, _, _ := c.Counts()
	p := packer{b: make([]byte, 0, state+1024)}
	p.num(cargoVersion)
	p.num(uint64(len(c.objects)))
	for i := range c.objects {
		o := &c.objects[i]
		p.key(o.key)
		p.text(string(o.class))
		p.text(o.typ)
		p.num(o.generation)
		p.num(o.ownerGeneration)
		p.flag(o.state != nil)
		if o.state != nil {
			p.num(o.state.Version)
			p.data(o.state.Data)
		}
		p.num(uint64(len(o.timers)))
		for _, t := range o.timers {
			p.text(t.name)
			p.data(t.data)
			p.int(t.left)
		}
		p.flag(o.hasCompanion)
		p.data(o.companion)
		p.data(o.members)
		p.num(uint64(len(o.work)))
		for i := range o.work {
			p.parcel(&o.work[i])
		}
	}
	return p.b
}

func decodeCargo(data []byte) (*Cargo, error) {
	u := unpacker{b: data}
	u.version()
	c := &Cargo{}
	u.several(func() {
		var o cargoObject
		o.key = u.key()
		o.class, o.typ = Class(u.text()), u.text()
		o.generation, o.ownerGeneration = u.num(), u.num()
		if u.flag() {
			o.state = &State{Version: u.num(), Data: u.data()}
		}
		u.several(func() { o.timers = append(o.timers, cargoTimer{name: u.text(), data: u.data(), left: u.int()}) })
		o.hasCompanion, o.companion, o.members = u.flag(), u.data(), u.data()
		u.several(func() { o.work = append(o.work, u.parcel()) })
		c.objects = append(c.objects, o)
	})
	if err := u.end("cargo"); err != nil {
		return nil, err
	}
	return c, nil
}

func (h *Held) encode() []byte {
	p := packer{b: make([]byte, 0, h.Size()+64)}
	p.num(cargoVersion)
	p.num(h.number)
	p.key(h.object)
	p.parcel(&h.parcel)
	return p.b
}

func decodeHeld(data []byte) (Held, error) {
	u := unpacker{b: data}
	u.version()
	h := Held{number: u.num(), object: u.key(), parcel: u.parcel()}
	if err := u.end("held message"); err != nil {
		return Held{}, err
	}
	return h, nil
}
