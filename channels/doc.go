// Package channels calls and serves channels.
package channels
