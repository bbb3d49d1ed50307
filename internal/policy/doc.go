// Package policy holds the project's rules about its own tree, as tests: `go test ./internal/policy`.
//
// # Overview
//
// A check is a function from a [tree] to findings; a finding names the file, the line and what is wrong. Each check
// runs on the repository and, so that it is known to be able to fail, on a small tree made to break it.
//
//   - code.go: package documentation, doc comments, formatting, file length, words, fixed sleeps, leak checks;
//   - imports.go: imports go down only, and which module may be used where, with the reason;
//   - markdown.go: links resolve;
//   - readme.go: the README's commands exist and its programs compile;
//   - guarantees.go: each rule names a test that exists;
//   - adr.go: the form of decision records and their index;
//   - deploy_test.go: the server configuration that operators copy;
//   - conformance_test.go: the rules of the design card that speak of the tree.
//
// # Non-guarantees
//
// The checks read source text. That a test proves its rule, or that a comment is true, is for readers to judge.
package policy
