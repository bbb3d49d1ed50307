// Package bed starts a mesh for a test: servers, buckets, members as processes of their own, each behind a proxy, and
// clients; and at the end it collects what the members ran and what the store said.
//
// A [Bed] belongs to one test. Leases are short ([Short]) unless a test says otherwise.
package bed
