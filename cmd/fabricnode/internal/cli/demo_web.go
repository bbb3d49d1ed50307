package cli

import (
	"errors"
	"fmt"
	"io"

	"natsfabric/cmd/fabricnode/internal/demo"
	"natsfabric/cmd/fabricnode/internal/httpd"
)

// webDemoFlags turn demo into that of sessions.
type webDemoFlags struct {
	Web  bool   `help:"See in a browser how an Actor moves between nodes while the page's connection stays, in place of the rest."`
	HTTP string `name:"http" default:"127.0.0.1:0" placeholder:"ADDR" help:"With --web: address of the page; port 0 takes a free one. Default ${default}."`
}

// webEvent is what --json prints once the page is there, webResult at the end.
type webEvent struct {
	Event string `json:"event"`
	URL   string `json:"url"`
}

type webResult struct {
	OK   bool      `json:"ok"`
	Load demo.Load `json:"load"`
}

// runWeb is Run of demo with --web.
func (f *webDemoFlags) runWeb(a *app) error {
	listener, err := httpd.ListenAt(f.HTTP)
	if err == nil && listener == nil {
		err = errors.New("the page cannot be off")
	}
	if err != nil {
		return withCode(ExitUsage, fmt.Errorf("--http: %w", err))
	}
	load, err := demo.RunWeb(a.sig.ctx, demo.WebOptions{
		Listener: listener, Tell: a.screen.tell, Logger: a.log, Abort: a.sig.abortWith,
		Ready: func(url string) {
			a.screen.tell("open %s in a browser; Ctrl-C ends the demo", url)
			if a.json {
				// Nobody reads it: then the demo is told to stop.
				_ = a.print(webEvent{"page", url}, nil)
			}
		},
	})
	if err != nil {
		return err
	}
	res := webResult{load.Lost+load.Doubled == 0, load}
	if err := a.print(res, func(w io.Writer) {
		fmt.Fprintf(w, "the demo's client: %d sent, %d replied, %d failed; %d lost, %d doubled; at most %.1f ms without a reply\n",
			load.Sent, load.Replied, load.NotAccepted+load.Accepted+load.Unknown, load.Lost, load.Doubled, load.GapMS)
	}); err != nil {
		return err
	}
	if !res.OK {
		return withCode(ExitProof, errors.New("requests were lost or doubled"))
	}
	return nil
}
