// Package frame is the form of the messages between a client and the node that owns its session: a header, which is a
// JSON object on one line, a line feed, and the payload as it is; and the WebSocket that carries them ([Socket]).
// docs/sessions.md is the description for people who write a client.
//
// Guarantees: Parse takes any bytes without a panic and keeps nothing of more than [MaxHeader] bytes beside them; what
// Append writes, Parse reads back. Non-guarantees: whether a frame makes sense in a session's present state is for its
// reader to say. Failure handling: Parse's error is a sentence for the other side.
package frame
