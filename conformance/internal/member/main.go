// Command member is a node of a mesh whose handler does what its caller asks, and notes what it ran in a file that
// outlives it. Tests start it, kill it and freeze it.
//
// It hosts objects, too, which note what they do in a journal that all members of a bed share (package journal).
//
// It writes "sessions URL" when it takes clients' sessions, "ready LIFECYCLE" once it serves, "state FROM TO REASON" at
// each change of its host state, and takes commands on standard input: "weight N" answers "weight done" or "weight failed
// WHY"; "act JSON" carries out an operation at an object (package act) and answers "acted JSON"; "relocate JSON" moves all
// that it owns, in the mode of the JSON, and answers "relocated JSON".
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"go.uber.org/zap"

	"natsfabric/channels"
	"natsfabric/conformance/internal/act"
	"natsfabric/conformance/internal/job"
	"natsfabric/conformance/internal/journal"
	"natsfabric/fabric"
	"natsfabric/kvlocation"
	"natsfabric/outcome"
	"natsfabric/relocate"
	"natsfabric/session"
)

// shutdownTime bounds an orderly end.
const shutdownTime = 20 * time.Second

// takenEvery is how often a member looks whether accepted requests came to their end without a turn.
const takenEvery = 100 * time.Millisecond

// relocationTime bounds a move of everything.
const relocationTime = time.Minute

func main() {
	var cfg fabric.Config
	var spec channels.Spec
	var kind, ledger, book string
	var capacity int
	var sessions bool
	flag.StringVar(&cfg.Mesh, "mesh", "", "mesh")
	flag.StringVar(&cfg.RID, "rid", "", "name of the node")
	flag.StringVar(&cfg.Connect.URL, "url", "", "NATS URL")
	flag.DurationVar(&cfg.LeaseTTL, "ttl", 0, "lease TTL")
	flag.DurationVar(&cfg.LeaseRenew, "renew", 0, "lease renewal interval")
	flag.DurationVar(&cfg.LeaseMargin, "margin", 0, "lease margin")
	flag.DurationVar(&cfg.StoreFailureGrace, "grace", 0, "store failure grace")
	flag.StringVar(&spec.Name, "channel", "work", "channel to serve")
	flag.StringVar(&kind, "kind", "", "kind of the channel")
	flag.IntVar(&spec.Weight, "weight", 0, "weight; -1 for none")
	flag.IntVar(&spec.Queue, "queue", 0, "places in the queue")
	flag.IntVar(&spec.Workers, "workers", 0, "handlers at the same time")
	flag.StringVar(&ledger, "ledger", "", "file to append to")
	flag.StringVar(&book, "journal", "", "file in which objects note what they do; without one the node hosts none")
	flag.IntVar(&capacity, "capacity", 0, "objects of each type at most")
	flag.StringVar(&cfg.AppVersion, "version", "", "application version")
	flag.StringVar(&cfg.Wave, "wave", "", "maintenance wave")
	flag.DurationVar(&cfg.Relocation.UnitTimeout, "unit", 0, "deadline of one object's move")
	flag.BoolVar(&cfg.Relocation.NoFollow, "nofollow", false, "pass nothing on to objects that have moved away")
	flag.BoolVar(&sessions, "sessions", false, "take clients' sessions, on a port of the loopback interface")
	flag.Parse()
	spec.Kind = kvlocation.ChannelKind(kind)
	if book != "" {
		w, err := journal.Open(book)
		if err != nil {
			fmt.Println("failed", err)
			os.Exit(1)
		}
		defer w.Close()
		cfg.Types = (&library{rid: cfg.RID, journal: w, gates: filepath.Dir(book)}).types(capacity)
		cfg.Sessions = &session.Config{Authenticate: anybody, Heartbeat: time.Second}
	}
	if err := run(cfg, spec, ledger, sessions); err != nil {
		fmt.Println("failed", err)
		os.Exit(1)
	}
}

// anybody lets every client in under the name that it gives itself.
func anybody(_ context.Context, h session.Hello) (session.Identity, error) {
	return session.Identity{Subject: h.Client}, nil
}

func run(cfg fabric.Config, spec channels.Spec, ledger string, sessions bool) error {
	file, err := os.OpenFile(ledger, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer file.Close()
	w := &worker{rid: cfg.RID, ledger: file, gate: job.MemberGate(filepath.Dir(ledger), cfg.RID)}
	spec.Handler = w.handle
	cfg.Channels = []channels.Spec{spec}
	log := zap.NewDevelopmentConfig()
	log.Level.SetLevel(zap.InfoLevel)
	log.DisableCaller, log.DisableStacktrace = true, true
	if cfg.Logger, err = log.Build(); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	n, err := fabric.Start(ctx, cfg)
	if err != nil {
		return err
	}
	if sessions {
		web, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		server := &http.Server{Handler: n.Sessions().Handler(), ReadHeaderTimeout: shutdownTime}
		defer server.Close()
		go func() { _ = server.Serve(web) }()
		fmt.Println("sessions", "ws://"+web.Addr().String())
	}
	states := n.States(context.Background())
	fmt.Println("ready", n.Lifecycle())
	go commands(n, spec.Name)
	go w.noteTaken(ctx, n, spec.Name)
	go func() {
		<-ctx.Done()
		end, cancel := context.WithTimeout(context.Background(), shutdownTime)
		defer cancel()
		if err := n.Shutdown(end); err != nil {
			fmt.Println("shutdown", err)
		}
	}()
	for ch := range states {
		fmt.Println("state", ch.From, ch.To, ch.Reason)
	}
	if err := n.Err(); err != nil {
		return err
	}
	return nil
}

// commands does what the test writes to standard input.
func commands(n *fabric.Node, channel string) {
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		if text, ok := strings.CutPrefix(in.Text(), "act "); ok {
			go carryOut(n, text)
			continue
		}
		if text, ok := strings.CutPrefix(in.Text(), "relocate "); ok {
			go relocateAll(n, text)
			continue
		}
		var weight int
		if _, err := fmt.Sscanf(in.Text(), "weight %d", &weight); err != nil {
			fmt.Println("failed", in.Text())
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), shutdownTime)
		if err := n.SetWeight(ctx, channel, weight); err != nil {
			fmt.Println("weight failed", err)
		} else {
			fmt.Println("weight done")
		}
		cancel()
	}
}

// carryOut carries out one operation at an object.
func carryOut(n *fabric.Node, text string) {
	var a act.Act
	if err := json.Unmarshal([]byte(text), &a); err != nil {
		fmt.Println("failed", err)
		return
	}
	data, err := json.Marshal(act.Run(context.Background(), n, &a))
	if err != nil {
		fmt.Println("failed", err)
		return
	}
	fmt.Println("acted", string(data))
}

// relocateAll moves everything that the node owns.
func relocateAll(n *fabric.Node, text string) {
	var mode relocate.Mode
	if err := json.Unmarshal([]byte(text), &mode); err != nil {
		fmt.Println("failed", err)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), relocationTime)
	defer cancel()
	r, err := n.Relocate(ctx, mode)
	if err != nil {
		fmt.Println("failed", err)
		return
	}
	data, err := json.Marshal(r)
	if err != nil {
		fmt.Println("failed", err)
		return
	}
	fmt.Println("relocated", string(data))
}

// worker is the handler of the channel.
type worker struct {
	rid    string
	ledger *os.File
	gate   job.Gate
}

func (w *worker) handle(ctx context.Context, r *channels.Request) (channels.Reply, error) {
	var j job.Job
	if err := json.Unmarshal(r.Data(), &j); err != nil {
		return channels.Reply{}, outcome.Wrap("work", outcome.InvalidOperation, outcome.Accepted, "", "the payload is no job", err)
	}
	if j.Do == job.Count {
		return counts()
	}
	w.note(job.RanLine(j.ID))
	reply, err := w.work(ctx, j)
	how := "replied"
	if err != nil {
		how = err.Error()
	}
	w.note(job.EndLine(j.ID, how))
	return reply, err
}

// note appends one line with one write: the kernel keeps it when the process is killed.
func (w *worker) note(line string) {
	if _, err := w.ledger.WriteString(line); err != nil {
		fmt.Println("failed", err)
		os.Exit(1) // without a ledger nothing that this process does proves anything
	}
}

// noteTaken notes how many accepted requests had no turn, because the lease ended or their deadlines passed, soon after.
func (w *worker) noteTaken(ctx context.Context, n *fabric.Node, channel string) {
	tick := time.NewTicker(takenEvery)
	defer tick.Stop()
	noted := map[string]uint64{}
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		served := n.Metrics().Served[channel]
		for line, now := range map[string]uint64{job.LineLapsed: served.Lapsed, job.LineExpired: served.Expired} {
			if now > noted[line] {
				w.note(job.TakenLine(line, now-noted[line]))
				noted[line] = now
			}
		}
	}
}

func (w *worker) work(ctx context.Context, j job.Job) (channels.Reply, error) {
	switch j.Do {
	case job.Sleep:
		t := time.NewTimer(j.Duration())
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
			return channels.Reply{}, context.Cause(ctx)
		}
	case job.Dwell:
		time.Sleep(j.Duration())
	case job.Hold:
		w.gate.Pass()
	case job.Block:
		<-ctx.Done()
		return channels.Reply{}, context.Cause(ctx)
	case job.Panic:
		panic("the test wants it")
	case job.Fail:
		if j.Kind.Valid() {
			return channels.Reply{}, outcome.New("work", j.Kind, outcome.Accepted, "", "the test wants it")
		}
		return channels.Reply{}, errors.New("the test wants it")
	case job.Big:
		return channels.Reply{Data: []byte(strings.Repeat("x", j.Size))}, nil
	}
	return channels.Reply{Data: job.Answer(w.rid, j.ID)}, nil
}

func counts() (channels.Reply, error) {
	runtime.GC()
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	c := job.Counts{Goroutines: runtime.NumGoroutine(), HeapBytes: mem.HeapAlloc}
	files, err := os.ReadDir("/proc/self/fd")
	if err == nil {
		c.Files = len(files)
	}
	data, err := json.Marshal(c)
	return channels.Reply{Data: data}, err
}
