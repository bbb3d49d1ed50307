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
// it comes back, and so must a proxy.
const (
	firstPort = 15_000
	lastPort  = 31_999
)

var handedOut struct {
	sync.Mutex
	ports map[int]bool
}

// freePort returns a port on loopback that is free now and given to no other
// caller in this process.
func freePort(t testing.TB) int {
	t.Helper()
	handedOut.Lock()
	defer handedOut.Unlock()
	for range 1000 {
		port := firstPort + rand.IntN(lastPort-firstPort+1)
		if handedOut.ports[port] {
			continue
		}
		l, err := net.Listen("tcp", loopback(port))
		if err != nil {
			continue
		}
		l.Close()
		if handedOut.ports == nil {
			handedOut.ports = make(map[int]bool)
		}
		handedOut.ports[port] = true
		t.Cleanup(func() { releasePort(port) })
		return port
	}
	t.Fatalf("no free port between %d and %d", firstPort, lastPort)
	return 0
}

func releasePort(port int) {
	handedOut.Lock()
	defer handedOut.Unlock()
	delete(handedOut.ports, port)
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

func natsURL(port int) string { return fmt.Sprintf("nats://%s", loopback(port)) }
