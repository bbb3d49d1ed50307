package kvlocation

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nuid"
	"go.uber.org/zap"

	"natsfabric/internal/wire"
)

// Defaults of Config.
const (
	DefaultAttemptTimeout = 2 * time.Second
	DefaultTimeout        = 30 * time.Second
)

// Config says which mesh's store to open. The zero value of every field but Mesh is a good one.
type Config struct {
	// Mesh is the mesh's name.
	Mesh string
	// Domain is the JetStream domain of the store; empty means the connection's own.
	Domain string
	// RID names the keys that this program may write for itself (probe.<rid>). A program without an RID leaves it
	// empty and gets a name of its own; Open then does not ask for the streams that only nodes use.
	RID string
	// AttemptTimeout bounds one request to the store, after which it is sent again. Default 2 s. A quarter of it
	// is given to a read, because a frozen replica swallows reads while the others would answer.
	AttemptTimeout time.Duration
	// Timeout bounds an operation whose context has no deadline. Default 30 s, which rides through an election.
	Timeout time.Duration
	// Logger gets warnings; nil means silence. Its entries do not name the RID: give it a field that does.
	Logger *zap.Logger
}

// Store is one open Location Store of a mesh. Its methods may be called concurrently.
type Store struct {
	nc      *nats.Conn
	mesh    wire.Mesh
	domain  string
	rid     string
	log     *zap.Logger
	attempt time.Duration
	timeout time.Duration
	api     string // "$JS.API." or that of the domain

	location  *bucket
	nodes     *bucket
	supervise *bucket
	fence     *bucket
	relay     *bucket
	moves     *bucket
	identity  identity
	mux       *mux
	parts     window // of moves, on their way to the move stream

	ctx     context.Context // ends with Close
	cancel  context.CancelFunc
	closing sync.RWMutex // held while the context ends
	wg      sync.WaitGroup
	once    sync.Once
}

// bucket spells the subjects of one bucket, or of the streams RELAY and MOVE, whose subjects are keys behind a prefix of their own.
type bucket struct {
	name    string
	stream  string
	subject string // of the keys as they are stored, with a final dot
	publish string // of the keys as they are published: a JetStream domain changes it
	direct  string // of a direct get; the stored subject of a key follows it after a dot

	// fences: authority rests on the bucket's revisions, so the process must not go on with another life of it.
	fences bool

	confirm confirmer
	life    life
}

func (s *Store) newBucket(name string) *bucket {
	b := &bucket{name: name, stream: "KV_" + name, subject: "$KV." + name + "."}
	b.publish = b.subject
	if s.domain != "" {
		b.publish = s.api + b.subject
	}
	b.direct = s.api + "DIRECT.GET." + b.stream
	return b
}

// newStream is a stream that is no bucket.
func (s *Store) newStream(name, prefix string) *bucket {
	subject := prefix + "."
	return &bucket{name: name, stream: name, subject: subject, publish: subject, direct: s.api + "DIRECT.GET." + name}
}

// Open opens the store of a mesh on nc, which must have been made with nats.ReconnectBufSize(-1): a write that waits
// in a reconnect buffer would go out after its caller gave it up. Open makes nothing: streams are made by Init.
//
// Errors are *outcome.Error: InvalidOperation for a wrong configuration, NotConfigured when the mesh's streams are
// missing or unsafe, Unavailable when the server is too old, has no JetStream or does not answer.
func Open(ctx context.Context, nc *nats.Conn, cfg Config) (*Store, error) {
	if err := cfg.check(nc); err != nil {
		return nil, refused("open store of", fmt.Sprintf("mesh %q", cfg.Mesh), err)
	}
	report, err := Check(ctx, nc, Setup{Mesh: cfg.Mesh, Domain: cfg.Domain, records: cfg.RID == ""})
	if err != nil {
		return nil, unavailable("open store of", fmt.Sprintf("mesh %q", cfg.Mesh), err)
	}
	if err := report.dangerous(nc.ConnectedUrlRedacted()); err != nil {
		return nil, notConfigured("open store of", fmt.Sprintf("mesh %q", cfg.Mesh), err)
	}
	s := &Store{
		nc: nc, mesh: wire.Mesh(cfg.Mesh), domain: cfg.Domain, rid: cfg.RID, log: cfg.Logger,
		attempt: cfg.AttemptTimeout, timeout: cfg.Timeout, api: "$JS.API.",
	}
	if s.rid == "" {
		s.rid = "c-" + nuid.Next()
	}
	if s.log == nil {
		s.log = zap.NewNop()
	}
	if s.attempt == 0 {
		s.attempt = DefaultAttemptTimeout
	}
	if s.timeout == 0 {
		s.timeout = DefaultTimeout
	}
	if s.domain != "" {
		s.api = "$JS." + s.domain + ".API."
	}
	s.location = s.newBucket(s.mesh.LocationBucket())
	s.nodes = s.newBucket(s.mesh.NodesBucket())
	s.supervise = s.newBucket(s.mesh.SuperviseBucket())
	s.fence = s.newBucket(s.mesh.FenceBucket())
	s.relay = s.newStream(s.mesh.RelayStream(), s.mesh.RelayPrefix())
	s.moves = s.newStream(s.mesh.MoveStream(), s.mesh.MovePrefix())
	s.parts = newWindow(relaySlots)
	s.identity.lost = make(chan struct{})
	for _, b := range []*bucket{s.nodes, s.location, s.supervise, s.fence} {
		b.fences, b.life.epoch = b != s.supervise, report.epoch(b.name)
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	m, err := newMux(nc)
	if err != nil {
		s.cancel()
		return nil, unavailable("open store of", fmt.Sprintf("mesh %q", cfg.Mesh), err)
	}
	s.mux = m
	return s, nil
}

// Close ends what the store runs and waits for it. The connection stays open: it is the caller's. Operations that
// are under way end with Unavailable. Close may be called any number of times.
func (s *Store) Close() error {
	s.once.Do(func() {
		s.closing.Lock()
		s.cancel()
		s.closing.Unlock()
		for _, b := range []*bucket{s.location, s.nodes, s.supervise, s.fence, s.relay, s.moves} {
			b.confirm.close()
		}
		s.mux.close()
	})
	s.wg.Wait()
	return nil
}

// begin counts one more goroutine, which calls s.wg.Done at its end; false when the store is closed.
func (s *Store) begin() bool {
	s.closing.RLock()
	defer s.closing.RUnlock()
	if s.ctx.Err() != nil {
		return false
	}
	s.wg.Add(1)
	return true
}

// Mesh is the mesh whose store this is.
func (s *Store) Mesh() wire.Mesh { return s.mesh }

// Epoch is the identity of the object records' stream, as found by Open: fixed when the stream was first made, larger if
// it was made again since. A generation means something only together with it.
func (s *Store) Epoch() uint64 { return s.location.life.epoch }

func (c *Config) check(nc *nats.Conn) error {
	if err := wire.CheckName("mesh", c.Mesh); err != nil {
		return err
	}
	if c.RID != "" {
		if err := wire.CheckName("RID", c.RID); err != nil {
			return err
		}
	}
	if strings.ContainsAny(c.Domain, " \t\r\n.*>") {
		return fmt.Errorf("domain %q is not allowed: it must be one subject token", c.Domain)
	}
	for _, d := range []struct {
		name string
		d    time.Duration
	}{{"AttemptTimeout", c.AttemptTimeout}, {"Timeout", c.Timeout}} {
		if d.d < 0 || d.d > resolveLimit {
			return fmt.Errorf("%s %v is not allowed: it must be between 0 (the default) and %v", d.name, d.d, resolveLimit)
		}
	}
	if nc == nil {
		return errors.New("connection is nil")
	}
	if nc.Opts.ReconnectBufSize >= 0 {
		return fmt.Errorf("the connection has a reconnect buffer of %d bytes: connect with nats.ReconnectBufSize(-1), "+
			"because a buffered write goes out after its caller gave it up", nc.Opts.ReconnectBufSize)
	}
	return nil
}
