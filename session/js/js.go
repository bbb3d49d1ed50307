// Package js is the JavaScript client of sessions: natsfabric.js, a module without dependencies for browsers, embedded so
// that a node can serve it beside its sessions. It is used from Go by [Handler] or [Source]; what it does for a page, and
// how it fails, is said at the top of the module and in docs/sessions.md.
package js

import (
	_ "embed" // the module
	"net/http"
)

//go:embed natsfabric.js
var source []byte

// Source returns the text of the module.
func Source() string { return string(source) }

// Handler serves the module, at whatever path it is mounted.
func Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Method != http.MethodGet && req.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "the module can only be read", http.StatusMethodNotAllowed)
			return
		}
		w.Header().Set("Content-Type", "text/javascript; charset=utf-8")
		w.Header().Set("Cache-Control", "no-cache")
		_, _ = w.Write(source) // a client that has gone
	})
}
