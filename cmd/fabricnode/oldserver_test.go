package main_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// oldServer stands in for a nats-server of an earlier year, Debian's 2.9: it introduces itself with that version and
// answers the one question that shows what its JetStream can do, the way it did: without a level.
func oldServer(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var conns sync.WaitGroup
	t.Cleanup(func() {
		l.Close()
		conns.Wait()
	})
	conns.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			conns.Go(func() { speakOld(c) })
		}
	})
	return "nats://" + l.Addr().String()
}

func speakOld(c net.Conn) {
	defer c.Close()
	info, err := json.Marshal(map[string]any{
		"server_id": "OLD", "server_name": "old", "version": "2.9.25", "proto": 1, "headers": true, "jetstream": true,
		"max_payload": 1 << 20, "host": "127.0.0.1", "port": c.LocalAddr().(*net.TCPAddr).Port,
	})
	if err != nil {
		return
	}
	fmt.Fprintf(c, "INFO %s\r\n", info)
	sid := "1"
	for in := bufio.NewReader(c); ; {
		line, err := in.ReadString('\n')
		if err != nil {
			return
		}
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		switch f[0] {
		case "PING":
			fmt.Fprint(c, "PONG\r\n")
		case "SUB":
			sid = f[len(f)-1]
		case "PUB", "HPUB":
			size, err := strconv.Atoi(f[len(f)-1])
			if err != nil {
				return
			}
			if _, err := in.Discard(size + 2); err != nil {
				return
			}
			if strings.HasSuffix(f[1], ".INFO") && len(f) > 3 {
				const answer = `{"type":"io.nats.jetstream.api.v1.account_info_response","memory":0,"storage":0,"streams":0,"consumers":0,"limits":{},"api":{"total":1,"errors":0}}`
				fmt.Fprintf(c, "MSG %s %s %d\r\n%s\r\n", f[2], sid, len(answer), answer)
			}
		}
	}
}
