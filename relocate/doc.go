// Package relocate moves objects between nodes.
package relocate
