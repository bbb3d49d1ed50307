package fabrictest

// Process is a child program of a test.
type Process struct{}
