// Package job is what a test asks of a member's handlers, those of its channel and those of its objects, what they answer,
// and what the member notes in its ledger.
package job
