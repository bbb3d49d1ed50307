//go:build unix

package fence

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"

	"natsfabric/kvlocation"
)

// FileDevice is a fence device of several processes: a node is cut off by a file in Dir. A file hold-<call>-<by> there keeps
// a call until it goes, or the call's time is over. It writes into Dir/log what its calls do, and whether two acted at once.
type FileDevice struct{ Dir, By string }

// Name returns the device's name.
func (FileDevice) Name() string { return "power" }

// Fence cuts the target off, unless its time is over by then.
func (d FileDevice) Fence(ctx context.Context, t Target) Report {
	d.Say("fences " + t.Node)
	d.hold(ctx, "fence")
	if end, ok := ctx.Deadline(); ctx.Err() != nil || ok && !time.Now().Before(end) {
		d.Say("was late")
		return Report{Detail: "late"}
	}
	lock, err := os.OpenFile(filepath.Join(d.Dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return Report{Detail: err.Error()}
	}
	defer lock.Close() // it unlocks, as the process's death does
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		d.Say("acted beside another")
	}
	if err := os.WriteFile(filepath.Join(d.Dir, "cut-"+t.Node), nil, 0o600); err != nil {
		return Report{Detail: err.Error()}
	}
	d.Say("cut " + t.Node)
	return Report{Answer: Fenced}
}

// Check looks for the file.
func (d FileDevice) Check(ctx context.Context, t Target) Report {
	d.Say("checks " + t.Node)
	d.hold(ctx, "check")
	if _, err := os.Stat(filepath.Join(d.Dir, "cut-"+t.Node)); err != nil {
		return Report{Answer: NotFenced}
	}
	return Report{Answer: Fenced}
}

func (d FileDevice) hold(ctx context.Context, call string) {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		if _, err := os.Stat(filepath.Join(d.Dir, "hold-"+call+"-"+d.By)); err != nil {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Say writes one line into the log.
func (d FileDevice) Say(text string) {
	f, err := os.OpenFile(filepath.Join(d.Dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		panic(err)
	}
	defer f.Close()
	if _, err := fmt.Fprintln(f, d.By, text); err != nil {
		panic(err)
	}
}

// PromoterConfig is a candidate with a short term whose fence device is a FileDevice.
func PromoterConfig(node, dir string) ElectionConfig {
	return ElectionConfig{
		Name: "db", Node: node, TTL: 2 * time.Second, Renew: 300 * time.Millisecond, Margin: 400 * time.Millisecond, Poll: 50 * time.Millisecond,
		Backoff: 100 * time.Millisecond, MaxBackoff: 200 * time.Millisecond, AllowUnreplicated: true,
		Fencing: &Plan{Levels: []Level{{{Device: FileDevice{dir, node}, Timeout: time.Second}}}},
	}
}

// promoterChild is the process of candidate b. It says in the log when it leads, and whom it has seen to lead.
func promoterChild() error {
	dir := os.Getenv("FENCE_TEST_DIR")
	nc, err := nats.Connect(os.Getenv("FENCE_TEST_URL"), nats.ReconnectBufSize(-1), nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond), nats.Timeout(time.Minute))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute) // the test kills it before
	defer cancel()
	store, err := kvlocation.Open(ctx, nc, kvlocation.Config{Mesh: "m", RID: "b", AttemptTimeout: 400 * time.Millisecond})
	if err != nil {
		return err
	}
	e, err := NewElection(store, PromoterConfig("b", dir))
	if err != nil {
		return err
	}
	log := FileDevice{dir, "b"}
	go func() {
		for last := ""; ; <-time.After(20 * time.Millisecond) {
			if s := e.Snapshot().Status; s.Phase == PhaseLed && s.Holder.Node != last {
				last = s.Holder.Node
				log.Say("sees " + last)
			}
		}
	}()
	for {
		t, err := e.Campaign(ctx)
		switch {
		case errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil:
			return err
		case err != nil:
			log.Say("failed: " + err.Error())
			return err
		}
		log.Say("leads " + t.Token().String())
		<-t.Context().Done()
	}
}
