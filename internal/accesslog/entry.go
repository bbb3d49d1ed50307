package accesslog

import "time"

// Entry is one line of the log. Strings are parts of the line that was read.
type Entry struct {
	// Client is the address or host name of the client.
	Client string
	// Identity and User are what the client or the server said of the user; empty for "-".
	Identity, User string
	// Time is when the request came, with the log's own offset.
	Time time.Time
	// Request is the request line as the client sent it.
	Request string
	// Method, Target and Protocol are the parts of the request line; empty when it has not exactly three.
	Method, Target, Protocol string
	// Status is the HTTP status code, 100 to 599.
	Status int
	// Size is the number of bytes of the answer's body; 0 for "-".
	Size int64
	// Referrer and Agent are request headers; empty for "-".
	Referrer, Agent string
}

// Class is what an answer's status means to somebody who watches a site.
type Class string

// The classes, by status code.
const (
	Information Class = "information"  // 1xx
	Success     Class = "success"      // 2xx
	Redirection Class = "redirection"  // 3xx
	ClientError Class = "client error" // 4xx
	ServerError Class = "server error" // 5xx
)

// Class returns the class of the entry's status.
func (e Entry) Class() Class {
	switch e.Status / 100 {
	case 1:
		return Information
	case 2:
		return Success
	case 3:
		return Redirection
	case 4:
		return ClientError
	default:
		return ServerError
	}
}
