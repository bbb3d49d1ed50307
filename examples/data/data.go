// Package data holds the real input that the demo works through; README.md says where it comes from.
package data

import _ "embed" // the log is part of the binary, so that the demo needs no file beside it

// AccessLog is a real web server's access log: 10,000 lines in combined format, one of them cut off.
//
//go:embed access.log
var AccessLog []byte
