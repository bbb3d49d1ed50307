package objects

import (
	"context"

	"natsfabric/channels"
	"natsfabric/outcome"
)

// Codec turns values into payloads and back; channels.JSON and channels.Bytes are codecs.
type Codec[T any] = channels.Codec[T]

// Typed makes a Handler of a function of values. A message that cannot be decoded ends with ProtocolError without a
// call of f, a result that cannot be encoded with InternalFailure. f gets the Request, too, for what stands beside the
// payload.
func Typed[In, Out any](in Codec[In], out Codec[Out], f func(ctx context.Context, in In, req *Request) (Out, error)) Handler {
	return func(ctx context.Context, req *Request) (Reply, error) {
		v, err := in.Decode(req.Data())
		if err != nil {
			return Reply{}, outcome.Wrap("decode", outcome.ProtocolError, outcome.Accepted, "", "the message cannot be decoded", err)
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

// Caller is what RequestTyped and SendTyped ask: Actors and Spots.
type Caller interface {
	Request(ctx context.Context, id string, data []byte, opts ...CallOption) (Reply, error)
	Send(ctx context.Context, id string, data []byte, opts ...CallOption) error
}

// RequestTyped is Request with values. To the errors of Request it adds InvalidOperation with NotAccepted when v cannot
// be encoded, and ProtocolError with Accepted when the reply cannot be decoded.
func RequestTyped[In, Out any](ctx context.Context, to Caller, id string, in Codec[In], out Codec[Out], v In, opts ...CallOption) (result Out, err error) {
	data, err := encode(opRequest, in, v)
	if err != nil {
		return result, err
	}
	reply, err := to.Request(ctx, id, data, opts...)
	if err != nil {
		return result, err
	}
	if result, err = out.Decode(reply.Data); err != nil {
		return result, outcome.Wrap(opRequest, outcome.ProtocolError, outcome.Accepted, "", "the reply cannot be decoded", err)
	}
	return result, nil
}

// SendTyped is Send with a value. To the errors of Send it adds InvalidOperation with NotAccepted when v cannot be
// encoded.
func SendTyped[In any](ctx context.Context, to Caller, id string, in Codec[In], v In, opts ...CallOption) error {
	data, err := encode(opSend, in, v)
	if err != nil {
		return err
	}
	return to.Send(ctx, id, data, opts...)
}

func encode[In any](op string, in Codec[In], v In) ([]byte, error) {
	data, err := in.Encode(v)
	if err != nil {
		return nil, outcome.Wrap(op, outcome.InvalidOperation, outcome.NotAccepted, "", "the value cannot be encoded", err)
	}
	return data, nil
}
