// Package act carries out what a test asks of a caller of objects: in the test's own process, or in a member's, which may
// die meanwhile.
package act
