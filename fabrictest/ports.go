package fabrictest

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"testing"
)

// Ports are taken from below the range that operating systems give to outgoing
// connections: a server that is down for a moment must find its port free when
// it comes back, and so must a proxy. Test processes that run side by side keep
// apart by blocks: who listens on the first port of a block, as long as it
// lives, has the others.
const (
	firstPort = 10_000
	blockSize = 100
	blocks    = 220
)

var ports struct {
	sync.Mutex
	held []net.Listener // one for each block of this process, never closed
	free []int          // those released longest ago come first
}

// freePort returns a port on loopback that is nobody else's until the test ends. Programs that keep to no blocks may
// still take it before it is used: listenFree is for those who listen themselves.
func freePort(t testing.TB) int {
	t.Helper()
	port, l := listenFree(t)
	l.Close()
	return port
}

// listenFree returns a listener on such a port.
func listenFree(t testing.TB) (int, net.Listener) {
	t.Helper()
	ports.Lock()
	defer ports.Unlock()
	for range 10 * blocks {
		if len(ports.free) == 0 {
			takeBlock()
			continue
		}
		port := ports.free[0]
		ports.free = ports.free[1:]
		l, err := net.Listen("tcp", loopback(port))
		if err != nil {
			continue // some other program's
		}
		t.Cleanup(func() { releasePort(port) })
		return port, l
	}
	t.Fatalf("fabrictest: no free port between %d and %d", firstPort, firstPort+blocks*blockSize)
	return 0, nil
}

// takeBlock tries to get one more block.
func takeBlock() {
	base := firstPort + blockSize*rand.IntN(blocks)
	l, err := net.Listen("tcp", loopback(base))
	if err != nil {
		return
	}
	ports.held = append(ports.held, l)
	for port := base + 1; port < base+blockSize; port++ {
		ports.free = append(ports.free, port)
	}
}

func releasePort(port int) {
	ports.Lock()
	defer ports.Unlock()
	ports.free = append(ports.free, port)
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

func natsURL(port int) string { return fmt.Sprintf("nats://%s", loopback(port)) }
