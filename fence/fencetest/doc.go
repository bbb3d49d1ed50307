// Package fencetest has a fence device for tests: it cuts off what exists only in the test, and fails, lies or hangs as it
// is told.
package fencetest
