// Package supervise restarts workers that hang, without restart storms, and never ends in silence.
package supervise
