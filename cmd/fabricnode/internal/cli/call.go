package cli

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"time"
	"unicode/utf8"

	"natsfabric/channels"
	"natsfabric/fabric"
	"natsfabric/internal/wire"
	"natsfabric/kvlocation"
	"natsfabric/objects"
	"natsfabric/outcome"
)

// maxStdin bounds a payload read from standard input: the largest that nats-server can be set to take.
const maxStdin = 64 << 20

type callCmd struct {
	meshFlags
	idFlags
	Instance string        `group:"Object" placeholder:"TYPE" help:"Let the call make the Spot, if there is none, as an Instance Spot of this type."`
	To       string        `placeholder:"RID" help:"Call this node's side of the channel, and no other."`
	Timeout  time.Duration `default:"5s" help:"Bound of the call, connecting included."`
	Send     bool          `help:"Wait for the acceptance only, not for a reply."`

	Channel string `arg:"" optional:"" help:"Name of the channel; not with --actor or --spot."`
	Payload string `arg:"" optional:"" help:"Payload; - reads standard input. Empty without it."`
}

// callReply is what call answers with --json.
type callReply struct {
	OK         bool                `json:"ok"`
	Channel    string              `json:"channel,omitempty"`
	Actor      *string             `json:"actor,omitempty"`
	Spot       *string             `json:"spot,omitempty"`
	Acceptance string              `json:"acceptance"`
	Data       *string             `json:"data,omitempty"`
	DataBase64 string              `json:"data_base64,omitempty"` // in place of data that is not UTF-8
	Header     map[string][]string `json:"header,omitempty"`
	Reselected int                 `json:"reselected,omitempty"`
	TookMS     float64             `json:"took_ms"`
}

// caller sends one request, and returns how often another member was tried for it.
type caller func(ctx context.Context, client *fabric.Client, data []byte) (channels.Reply, int, error)

// target checks what is to be called, and moves the payload to its place: an object's call has no channel.
func (c *callCmd) target() (caller, error) {
	key, object, err := c.key()
	if err != nil {
		return nil, err
	}
	if !object && c.Channel == "" {
		return nil, withCode(ExitUsage, errors.New("nothing is named to call: give a channel, --actor ID or --spot ID"))
	}
	if !object {
		if hint := asFlag(c.Channel); hint != "" {
			return nil, withCode(ExitUsage, fmt.Errorf("%q is no name of a channel%s", c.Channel, hint))
		}
		return c.toChannel, errors.Join(c.check("--instance", c.Instance == "", "names the type of a Spot: it needs --spot"),
			withCode(ExitUsage, wire.CheckName("channel name", c.Channel)), checkRID("--to", c.To))
	}
	err = errors.Join(
		c.check("--to", c.To == "", "names a member of a channel: an object is called where it is"),
		c.check("--instance", c.Instance == "" || key.Kind == kvlocation.KindSpot, "names the type of a Spot: an Actor is made by fabricnode create"),
		c.check(fmt.Sprintf("%q", c.Payload), c.Payload == "", "is too much: a call to an object has no channel, only a payload"))
	if c.Instance != "" {
		err = errors.Join(err, withCode(ExitUsage, wire.CheckName("--instance", c.Instance)))
	}
	c.Channel, c.Payload = "", c.Channel
	return c.toObject(key), err
}

func (c *callCmd) check(what string, ok bool, why string) error {
	if ok {
		return nil
	}
	return withCode(ExitUsage, fmt.Errorf("%s %s", what, why))
}

func (c *callCmd) toChannel(ctx context.Context, client *fabric.Client, data []byte) (channels.Reply, int, error) {
	var to interface {
		Request(context.Context, []byte, ...channels.CallOption) (channels.Reply, error)
		Send(context.Context, []byte, ...channels.CallOption) error
	} = client.Channel(c.Channel)
	if c.To != "" {
		to = client.Channel(c.Channel).At(c.To)
	}
	var trace channels.Trace
	var reply channels.Reply
	var err error
	if c.Send {
		err = to.Send(ctx, data, channels.WithTrace(&trace))
	} else {
		reply, err = to.Request(ctx, data, channels.WithTrace(&trace))
	}
	if c.To == "" && errors.Is(err, outcome.NotFound) && errors.Is(err, outcome.NotAccepted) {
		err = fmt.Errorf("%w (fabricnode nodes lists the channels)", err)
	}
	return reply, trace.Reselected, err
}

func (c *callCmd) toObject(key kvlocation.ObjectKey) caller {
	return func(ctx context.Context, client *fabric.Client, data []byte) (reply channels.Reply, _ int, err error) {
		var opts []objects.CallOption
		if c.Instance != "" {
			opts = append(opts, objects.WithInstance(c.Instance))
		}
		switch actors, spots := client.Actors(), client.Spots(); {
		case key.Kind == kvlocation.KindActor && c.Send:
			err = actors.Send(ctx, key.ID, data, opts...)
		case key.Kind == kvlocation.KindActor:
			reply, err = actors.Request(ctx, key.ID, data, opts...)
		case c.Send:
			err = spots.Send(ctx, key.ID, data, opts...)
		default:
			reply, err = spots.Request(ctx, key.ID, data, opts...)
		}
		switch {
		case errors.Is(err, outcome.NotFound) && errors.Is(err, outcome.NotAccepted):
			err = fmt.Errorf("%w (fabricnode objects lists what there is)", err)
		case errors.Is(err, outcome.Unavailable):
			err = fmt.Errorf("%w (fabricnode explain %s says more)", err, word(key))
		}
		return reply, 0, err
	}
}

func (c *callCmd) Run(a *app) error {
	call, err := c.target()
	if err != nil {
		return err
	}
	if err := checkDuration("--timeout", c.Timeout, time.Millisecond, fabric.MaxTimeout); err != nil {
		return withCode(ExitUsage, err)
	}
	data, err := a.payload(c.Payload)
	if err != nil {
		return err
	}
	return c.with(a, c.Timeout, func(ctx context.Context, client *fabric.Client) error {
		start := time.Now()
		reply, reselected, err := call(ctx, client, data)
		if err != nil {
			return err
		}
		return a.print(c.reply(reply, reselected, time.Since(start)), func(w io.Writer) {
			if c.Send {
				fmt.Fprintln(w, "accepted")
				return
			}
			w.Write(reply.Data)
			if isTerminal(w) {
				fmt.Fprintln(w)
			}
		})
	})
}

func (c *callCmd) reply(reply channels.Reply, reselected int, took time.Duration) callReply {
	out := callReply{
		OK: true, Channel: c.Channel, Actor: c.Actor, Spot: c.Spot, Acceptance: "Accepted", Header: reply.Header,
		Reselected: reselected, TookMS: float64(took.Microseconds()) / 1000,
	}
	if text := string(reply.Data); !c.Send && utf8.ValidString(text) {
		out.Data = &text
	} else if !c.Send {
		out.DataBase64 = base64.StdEncoding.EncodeToString(reply.Data)
	}
	return out
}
