// Package accesslog reads lines of a web server's access log in combined format.
//
// # Overview
//
//	entry, err := accesslog.Parse(line)
//
// A combined line has nine fields: client, identity, user, time, request, status, size, referrer and user agent. The
// request, the referrer and the user agent are quoted; a quote inside them is written \".
//
// # Guarantees
//
// Parse never panics, whatever the bytes, and allocates a constant amount. A line that is not whole and well formed is
// a [*Error] that names the field at which reading stopped; half-read entries are never returned.
//
// # Non-guarantees
//
// A request line that is not "METHOD target protocol" is kept as it is, because servers log what clients send: then
// only Entry.Request is set. Escapes are not decoded.
package accesslog
