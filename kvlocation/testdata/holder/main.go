// Command holder holds the lease of one node until it is told to stop. Tests kill, freeze and thaw it.
//
// It runs one long turn, and short ones one after the other for as long as the lease admits them, each in the lease's
// context, and appends what it did to a file: one line "<verb> <generation> <unix nanoseconds>" each. The time of an admission is taken
// before it is asked for.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"time"

	"github.com/nats-io/nats.go"

	"natsfabric/kvlocation"
)

func main() {
	var (
		mesh = flag.String("mesh", "", "mesh name")
		url  = flag.String("url", "", "NATS server")
		rid  = flag.String("rid", "", "node name")
		file = flag.String("file", "", "what was done, appended")
		cfg  kvlocation.LeaseConfig
	)
	flag.DurationVar(&cfg.TTL, "ttl", 0, "lease TTL")
	flag.DurationVar(&cfg.Renew, "renew", 0, "renewal interval")
	flag.DurationVar(&cfg.Margin, "margin", 0, "margin")
	flag.Parse()
	cfg.RID = *rid
	if err := run(*mesh, *url, *file, cfg); err != nil {
		fmt.Println("error:", err)
		if errors.Is(err, kvlocation.ErrSuperseded) {
			os.Exit(3)
		}
		os.Exit(1)
	}
}

func run(mesh, url, file string, cfg kvlocation.LeaseConfig) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	f, err := os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	nc, err := nats.Connect(url, nats.ReconnectBufSize(-1), nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond))
	if err != nil {
		return err
	}
	defer nc.Close()
	s, err := kvlocation.Open(ctx, nc, kvlocation.Config{Mesh: mesh, RID: cfg.RID, AttemptTimeout: time.Second})
	if err != nil {
		return err
	}
	defer s.Close()
	cfg.OnWait = func(w kvlocation.LeaseWait) {
		fmt.Printf("waiting for lifecycle %d, %v at most\n", w.Holder.Lifecycle, w.Remaining)
	}
	l, err := s.AcquireLease(ctx, cfg)
	if err != nil {
		return err
	}
	fmt.Printf("holds lifecycle %d generation %d\n", l.Lifecycle(), l.Generation())

	note := func(verb string, at time.Time) {
		fmt.Fprintf(f, "%s %d %d\n", verb, l.Generation(), at.UnixNano())
	}
	long := make(chan struct{})
	go func() { // one turn that only ends when it is cancelled
		defer close(long)
		lctx := l.Context()
		<-lctx.Done()
		fmt.Println("turn cancelled:", context.Cause(lctx))
	}()
	turns := make(chan struct{})
	go func() {
		defer close(turns)
		for ctx.Err() == nil {
			lctx, at := l.Context(), time.Now()
			if err := l.Admit(); err != nil {
				time.Sleep(5 * time.Millisecond)
				continue
			}
			note("admit", at)
			select { // a short turn
			case <-lctx.Done():
			case <-time.After(20 * time.Millisecond):
			}
		}
	}()
	defer func() {
		stop()
		l.Release(context.Background())
		<-turns
		<-long
	}()
	for {
		select {
		case <-ctx.Done():
			return nil
		case e, ok := <-l.Events():
			if !ok {
				return errors.New("the lease ended")
			}
			note(e.Kind.String(), time.Now())
			fmt.Printf("event %v generation %d: %v\n", e.Kind, e.Generation, e.Err)
			if e.Kind.Terminal() {
				return e.Err
			}
		}
	}
}
