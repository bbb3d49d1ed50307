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
	"natsfabric/outcome"
)

// maxStdin bounds a payload read from standard input: the largest that nats-server can be set to take.
const maxStdin = 64 << 20

type callCmd struct {
	meshFlags
	To      string        `placeholder:"RID" help:"Call this node, and no other."`
	Timeout time.Duration `default:"5s" help:"Bound of the call, connecting included."`
	Send    bool          `help:"Wait for the acceptance only, not for a reply."`

	Channel string `arg:"" help:"Name of the channel."`
	Payload string `arg:"" optional:"" help:"Payload; - reads standard input. Empty without it."`
}

// callReply is what call answers with --json.
type callReply struct {
	OK         bool                `json:"ok"`
	Channel    string              `json:"channel"`
	Acceptance string              `json:"acceptance"`
	Data       *string             `json:"data,omitempty"`
	DataBase64 string              `json:"data_base64,omitempty"` // in place of data that is not UTF-8
	Header     map[string][]string `json:"header,omitempty"`
	Reselected int                 `json:"reselected,omitempty"`
	TookMS     float64             `json:"took_ms"`
}

// caller is a channel, or one node's.
type caller interface {
	Request(context.Context, []byte, ...channels.CallOption) (channels.Reply, error)
	Send(context.Context, []byte, ...channels.CallOption) error
}

func (c *callCmd) Run(a *app) (err error) {
	if err := wire.CheckName("channel name", c.Channel); err != nil {
		return withCode(ExitUsage, err)
	}
	if c.To != "" {
		if err := wire.CheckName("RID", c.To); err != nil {
			return withCode(ExitUsage, err)
		}
	}
	if err := checkDuration("--timeout", c.Timeout, time.Millisecond, fabric.MaxTimeout); err != nil {
		return withCode(ExitUsage, err)
	}
	data := []byte(c.Payload)
	if c.Payload == "-" {
		if data, err = a.readStdin(maxStdin + 1); err != nil {
			return fmt.Errorf("standard input: %w", err)
		}
		if len(data) > maxStdin {
			return withCode(ExitUsage, fmt.Errorf("standard input is larger than %d bytes", maxStdin))
		}
	}
	ctx, cancel := context.WithTimeout(a.sig.ctx, c.Timeout)
	defer cancel()
	client, err := c.client(ctx, c.Timeout, a.log)
	if err != nil {
		return err
	}
	defer client.Close(context.WithoutCancel(ctx))
	var to caller = client.Channel(c.Channel)
	if c.To != "" {
		to = client.Channel(c.Channel).At(c.To)
	}
	var trace channels.Trace
	var reply channels.Reply
	start := time.Now()
	if c.Send {
		err = to.Send(ctx, data, channels.WithTrace(&trace))
	} else {
		reply, err = to.Request(ctx, data, channels.WithTrace(&trace))
	}
	if c.To == "" && errors.Is(err, outcome.NotFound) && errors.Is(err, outcome.NotAccepted) {
		return fmt.Errorf("%w (fabricnode nodes lists the channels)", err)
	}
	if err != nil {
		return err
	}
	out := callReply{
		OK: true, Channel: c.Channel, Acceptance: "Accepted", Header: reply.Header,
		Reselected: trace.Reselected, TookMS: float64(time.Since(start).Microseconds()) / 1000,
	}
	if text := string(reply.Data); !c.Send && utf8.ValidString(text) {
		out.Data = &text
	} else if !c.Send {
		out.DataBase64 = base64.StdEncoding.EncodeToString(reply.Data)
	}
	return a.print(out, func(w io.Writer) {
		if c.Send {
			fmt.Fprintln(w, "accepted")
			return
		}
		w.Write(reply.Data)
		if isTerminal(w) {
			fmt.Fprintln(w)
		}
	})
}
