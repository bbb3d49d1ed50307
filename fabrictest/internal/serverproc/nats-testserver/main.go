// Command nats-testserver is one server of a fabrictest cluster in a process of
// its own. fabrictest builds and starts it.
package main

import (
	"fmt"
	"os"

	"natsfabric/fabrictest/internal/serverproc"
)

func main() {
	if err := serverproc.Serve(os.Getenv(serverproc.SpecVariable), os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
