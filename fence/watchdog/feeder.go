package watchdog

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Dog is something outside of the process that stops it, or its machine, when it is not fed.
type Dog interface {
	// Limit is how long it waits for food.
	Limit() time.Duration
	// Feed feeds it.
	Feed() error
	// Disarm ends its watch, in order.
	Disarm() error
}

// Config says how a dog is fed.
type Config struct {
	// Dog is who is fed. Required.
	Dog Dog
	// Healthy says whether the process is as it should be; it is given Limit to answer. Required.
	Healthy func(ctx context.Context) error
	// Every is the time between two checks. 0 means a third of the dog's limit. Every and Limit together must fit into that.
	Every time.Duration
	// Limit bounds a check. 0 means Every.
	Limit time.Duration
	// Unfed is called when a check fails or a feeding does, for logs. Optional; it must not block.
	Unfed func(err error)
}

// Feeder feeds a dog until it is stopped.
type Feeder struct {
	cfg    Config
	cancel context.CancelFunc
	done   chan struct{}
	once   sync.Once
	err    error
}

// Feed begins to feed. The error is of the configuration.
func Feed(cfg Config) (*Feeder, error) {
	if cfg.Dog == nil || cfg.Healthy == nil {
		return nil, errors.New("watchdog: Config needs Dog and Healthy")
	}
	if cfg.Every == 0 {
		cfg.Every = cfg.Dog.Limit() / 3
	}
	if cfg.Limit == 0 {
		cfg.Limit = cfg.Every
	}
	if cfg.Every <= 0 || cfg.Limit <= 0 || cfg.Every+cfg.Limit > cfg.Dog.Limit() {
		return nil, fmt.Errorf("watchdog: Every %v and Limit %v clash with the dog's limit %v: each must be above 0, and both together fit into it", cfg.Every, cfg.Limit, cfg.Dog.Limit())
	}
	if cfg.Unfed == nil {
		cfg.Unfed = func(error) {}
	}
	ctx, cancel := context.WithCancel(context.Background())
	f := &Feeder{cfg: cfg, cancel: cancel, done: make(chan struct{})}
	go f.run(ctx)
	return f, nil
}

func (f *Feeder) run(ctx context.Context) {
	defer close(f.done)
	tick := time.NewTicker(f.cfg.Every)
	defer tick.Stop()
	for {
		if err := f.check(ctx); err != nil && ctx.Err() == nil {
			f.cfg.Unfed(err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// check feeds after a check that passed in time. One that hangs keeps the feeder, and the dog hungry: that is its purpose.
func (f *Feeder) check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, f.cfg.Limit)
	defer cancel()
	begin := time.Now()
	if err := f.cfg.Healthy(ctx); err != nil {
		return fmt.Errorf("watchdog: not fed: %w", err)
	}
	if took := time.Since(begin); took > f.cfg.Limit {
		return fmt.Errorf("watchdog: not fed: the check took %v, its limit is %v", took, f.cfg.Limit)
	}
	return f.cfg.Dog.Feed()
}

// Stop ends the feeding, waits for a check that runs, and disarms the dog; its error is the disarming's. It may be called
// any number of times.
func (f *Feeder) Stop() error {
	f.once.Do(func() {
		f.cancel()
		<-f.done
		f.err = f.cfg.Dog.Disarm()
	})
	return f.err
}
