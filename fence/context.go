package fence

import (
	"context"

	"natsfabric/outcome"
)

// Holder is the present right to write of whatever runs under a context: a turn of an object, a term of leadership.
type Holder interface {
	// FenceToken returns the token while it is held. An error of kind InvalidOperation says that there is none yet
	// (code that runs before the commit of a change of ownership is known); any other error says that ownership was
	// lost, and the token beside it is the one that was held. It is asked at every guarded write, by any number of
	// goroutines.
	FenceToken() (Token, error)
}

type contextKey uint8

// ContextKey is the key under which a context answers with its Holder. NewContext uses it; a context type of its own
// answers Value(ContextKey) with a Holder instead of wrapping.
const ContextKey contextKey = 1

// NewContext returns ctx with the holder.
func NewContext(ctx context.Context, h Holder) context.Context {
	return context.WithValue(ctx, ContextKey, h)
}

// FromContext returns the token under which the code runs, now. The error is of kind InvalidOperation when the context
// carries no holder or the holder has no token yet, and the holder's own when ownership was lost; the token beside
// that one is what was held. That a token was returned proves nothing about the moment after: only a resource that
// checks it does.
func FromContext(ctx context.Context) (Token, error) {
	h, ok := ctx.Value(ContextKey).(Holder)
	if !ok {
		return Token{}, outcome.New("fence", outcome.InvalidOperation, outcome.NotAccepted, "",
			"the context carries no token: it is not that of a turn, nor made by fence.NewContext")
	}
	return h.FenceToken()
}

// WithToken returns ctx with a token that its caller vouches for, for code that runs under no turn and no term: a tool
// of an operator's, a test.
func WithToken(ctx context.Context, t Token) context.Context { return NewContext(ctx, vouched(t)) }

type vouched Token

// FenceToken returns the token, always.
func (v vouched) FenceToken() (Token, error) { return Token(v), nil }
