// Package cli holds fabricnode's commands: flags, wiring and printing.
//
// # Overview
//
// [Main] parses the command line with kong, runs one command and returns its exit code. Values come from flags, the
// environment (FABRIC_*), a YAML file and defaults, in this order of precedence. What a person reads goes to standard
// error, except for the answer of the command itself; with --json every command writes JSON to standard output, a
// failure included, one object a line.
//
// # Failure handling
//
// A command's error ends as one line on standard error and as an exit code (see the Exit constants). The first SIGINT
// or SIGTERM ends a command in order, a second one ends the process at once.
package cli
