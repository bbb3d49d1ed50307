package bed

import (
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

// Notices sees the acceptance notices that go to clients, as an outside listener.
type Notices chan *nats.Msg

// Notices begins to listen.
func (b *Bed) Notices(t testing.TB) Notices {
	t.Helper()
	ch := make(Notices, 1024)
	nc := b.Plain(t)
	if _, err := nc.ChanSubscribe("fab."+Mesh+".client.>", ch); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	return ch
}

// Await waits for the n next notices. The server has then given them to the clients, too.
func (ch Notices) Await(t testing.TB, n int) {
	t.Helper()
	timeout := time.After(Long)
	for n > 0 {
		select {
		case m := <-ch:
			if strings.HasSuffix(m.Subject, ".a") {
				n--
			}
		case <-timeout:
			t.Fatalf("%d acceptance notices did not come", n)
		}
	}
}
