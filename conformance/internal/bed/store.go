package bed

import (
	"fmt"
	"sync"
	"testing"

	"natsfabric/fabrictest"
)

// StoreCut is a store that one program cannot reach, although it is connected.
type StoreCut struct{ writes, api []*fabrictest.Armed }

// CutStore loses everything that goes to the store through ps until Restore.
func CutStore(ps Proxies) *StoreCut {
	c := &StoreCut{}
	for _, p := range ps {
		lose := func(subject string) *fabrictest.Armed {
			return p.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: subject, Times: -1, Action: fabrictest.Drop})
		}
		c.writes, c.api = append(c.writes, lose("$KV.>")), append(c.api, lose("$JS.API.>"))
	}
	return c
}

// Restore makes the store reachable again.
func (c *StoreCut) Restore() {
	for _, a := range append(c.writes, c.api...) {
		a.Disarm()
	}
}

// AwaitWrites waits until n more writes were lost.
func (c *StoreCut) AwaitWrites(t testing.TB, n int) {
	t.Helper()
	lost := func() (sum int) {
		for _, a := range c.writes {
			sum += a.Count()
		}
		return sum
	}
	from := lost()
	fabrictest.Eventually(t, Long, fmt.Sprintf("%d writes to the store are lost", n), func() bool { return lost() >= from+n })
}

// LeaseSubject is the subject on which a node writes its lease, and DescSubject its descriptor.
func LeaseSubject(rid string) string { return fmt.Sprintf("$KV.FABRIC_%s_NODES.lease.%s", Mesh, rid) }

// DescSubject is the subject on which a node writes its descriptor.
func DescSubject(rid string) string { return fmt.Sprintf("$KV.FABRIC_%s_NODES.desc.%s", Mesh, rid) }

// Log notes messages on their way and lets them pass.
type Log struct {
	mu   sync.Mutex
	msgs []fabrictest.Message
}

// Watch notes what a client sends on a subject through ps. It must be armed before what is to act on the same messages.
func Watch(ps Proxies, subject string) *Log {
	l := &Log{}
	for _, p := range ps {
		p.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: subject, Times: -1, Action: fabrictest.Signal,
			Match: func(m fabrictest.Message) bool {
				l.mu.Lock()
				defer l.mu.Unlock()
				l.msgs = append(l.msgs, m)
				return false
			}})
	}
	return l
}

// Messages returns what was noted so far.
func (l *Log) Messages() []fabrictest.Message {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]fabrictest.Message(nil), l.msgs...)
}
