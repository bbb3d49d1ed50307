package channels

import (
	"context"
	"encoding/json"

	"natsfabric/outcome"
)

// Codec turns values into payloads and back. Its methods may be called from any goroutine.
type Codec[T any] interface {
	Encode(T) ([]byte, error)
	Decode([]byte) (T, error)
}

// JSON is the codec of encoding/json.
type JSON[T any] struct{}

// Encode is json.Marshal.
func (JSON[T]) Encode(v T) ([]byte, error) { return json.Marshal(v) }

// Decode is json.Unmarshal.
func (JSON[T]) Decode(data []byte) (v T, err error) { err = json.Unmarshal(data, &v); return v, err }

// Bytes is the codec that leaves a payload as it is.
type Bytes struct{}

// Encode returns data.
func (Bytes) Encode(data []byte) ([]byte, error) { return data, nil }

// Decode returns data.
func (Bytes) Decode(data []byte) ([]byte, error) { return data, nil }

// Typed makes a Handler of a function of values. A request that cannot be decoded ends with ProtocolError without a
// call of f, a result that cannot be encoded with InternalFailure. f gets the Request, too, for what stands beside the
// payload.
func Typed[In, Out any](in Codec[In], out Codec[Out], f func(ctx context.Context, in In, req *Request) (Out, error)) Handler {
	return func(ctx context.Context, req *Request) (Reply, error) {
		v, err := in.Decode(req.Data())
		if err != nil {
			return Reply{}, outcome.Wrap("decode", outcome.ProtocolError, outcome.Accepted, "", "the request cannot be decoded", err)
		}
		result, err := f(ctx, v, req)
		if err != nil {
			return Reply{}, err
		}
		data, err := out.Encode(result)
		if err != nil {
			return Reply{}, outcome.Wrap("encode", outcome.InternalFailure, outcome.Accepted, "", "the result cannot be encoded", err)
		}
		return Reply{Data: data}, nil
	}
}

// Requester is what RequestTyped asks: a *Channel, or a *Peer.
type Requester interface {
	Request(ctx context.Context, data []byte, opts ...CallOption) (Reply, error)
}

// RequestTyped is Request with values. To the errors of Request it adds InvalidOperation with NotAccepted when v cannot
// be encoded, and ProtocolError with Accepted when the reply cannot be decoded.
func RequestTyped[In, Out any](ctx context.Context, to Requester, in Codec[In], out Codec[Out], v In, opts ...CallOption) (result Out, err error) {
	data, err := in.Encode(v)
	if err != nil {
		return result, outcome.Wrap(opRequest, outcome.InvalidOperation, outcome.NotAccepted, "", "the value cannot be encoded", err)
	}
	reply, err := to.Request(ctx, data, opts...)
	if err != nil {
		return result, err
	}
	if result, err = out.Decode(reply.Data); err != nil {
		return result, outcome.Wrap(opRequest, outcome.ProtocolError, outcome.Accepted, "", "the reply cannot be decoded", err)
	}
	return result, nil
}
