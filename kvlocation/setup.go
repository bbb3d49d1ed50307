package kvlocation

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"natsfabric/internal/wire"
)

const (
	// MinServer is the oldest nats-server whose JetStream has everything that the buckets need: message TTLs with
	// markers, and atomic publishing.
	MinServer = "2.12"
	// minAPILevel is the JetStream API level of MinServer.
	minAPILevel = 2

	// MetaEpoch is the key of the stream metadata that holds the store's epoch.
	MetaEpoch = "fabric-epoch"
	// MetaMesh is the key of the stream metadata that holds the name of the mesh.
	MetaMesh = "fabric-mesh"

	// duplicateWindow is longer than any write is repeated.
	duplicateWindow = 10 * time.Minute
	// markerTTL is how long the server keeps the marker of a key that expired. It is longer than any delayed
	// write can live, so that "expected: nothing" does not become true again under one.
	markerTTL = 10 * time.Minute

	// setupTimeout bounds one attempt to make a stream.
	setupTimeout = 5 * time.Second
	// firstAsk is what the first attempt at a question gets, DefaultAttemptTimeout what the later ones grow to.
	firstAsk = 500 * time.Millisecond
	// updateTimeout bounds a change of replicas, which fills the new ones.
	updateTimeout = 30 * time.Second
)

// Setup says how the streams of a mesh are to look: the buckets NODES, LOCATION, SUPERVISE and FENCE,
// and the streams RELAY and MOVE.
type Setup struct {
	// Mesh is the name of the mesh: 1 to 64 characters of A-Z, a-z, 0-9, _ and -.
	Mesh string
	// Domain is the JetStream domain; empty for that of the connection.
	Domain string
	// Replicas is how many servers keep each bucket: 1, 3 or 5. 0 means 1.
	Replicas int
	// Memory keeps the buckets in memory. What was acknowledged is then lost when the servers stop: for tests only.
	Memory bool
	// SetReplicas lets Init change the number of replicas of buckets that exist. Without it a difference is
	// reported as drift and nothing is changed.
	SetReplicas bool

	// records leaves out the streams that programs without an RID have nothing to do with, and no right to ask about.
	records bool
}

// Report is what Init did and what Init or Check found.
type Report struct {
	Mesh string `json:"mesh"`
	// Server is the version of the server that the connection leads to.
	Server  string         `json:"server"`
	Buckets []BucketReport `json:"buckets"`
}

// BucketReport is one bucket of a Report, or one of the streams RELAY and MOVE.
type BucketReport struct {
	Bucket string `json:"bucket"`
	// Stream is the name of the stream behind it.
	Stream string `json:"stream"`
	// Missing: the bucket does not exist (Check only).
	Missing bool `json:"missing,omitempty"`
	// Created: Init made it.
	Created bool `json:"created,omitempty"`
	// Changed: Init changed its replicas, as SetReplicas allowed.
	Changed  bool   `json:"changed,omitempty"`
	Epoch    uint64 `json:"epoch,omitempty"`
	Replicas int    `json:"replicas,omitempty"`
	// Drift lists what is not as it should be.
	Drift []Drift `json:"drift,omitempty"`
}

// name is how messages call it.
func (b BucketReport) name() string {
	if b.Bucket == b.Stream {
		return "stream " + b.Stream
	}
	return "bucket " + b.Bucket
}

// Drift is one setting of a bucket that is not as it should be.
type Drift struct {
	Field string `json:"field"`
	Want  string `json:"want"`
	Got   string `json:"got"`
	// Dangerous: the fabric's guarantees do not hold with it, and Open refuses it.
	Dangerous bool `json:"dangerous"`
}

func (d Drift) String() string {
	return fmt.Sprintf("%s is %s, must be %s", d.Field, d.Got, d.Want)
}

// OK reports whether every bucket exists and is as it should be.
func (r Report) OK() bool {
	return !slices.ContainsFunc(r.Buckets, func(b BucketReport) bool { return b.Missing || len(b.Drift) > 0 })
}

// dangerous returns an error that names the first thing that forbids to use the store at a server, or nil.
func (r Report) dangerous(server string) error {
	for _, b := range r.Buckets {
		if b.Missing {
			return fmt.Errorf("%s does not exist: make the mesh's streams first (fabricnode init --mesh %s --server %s)", b.name(), r.Mesh, server)
		}
		for _, d := range b.Drift {
			if d.Dangerous {
				return fmt.Errorf("%s: %s: correct the stream %s, or remove it and make it again (all it holds is lost then)", b.name(), d, b.Stream)
			}
		}
	}
	return nil
}

// epoch returns the epoch of a bucket; 0 when the report does not have it.
func (r Report) epoch(bucket string) uint64 {
	for _, b := range r.Buckets {
		if b.Bucket == bucket {
			return b.Epoch
		}
	}
	return 0
}

// Init makes the streams of a mesh that do not exist: all of a new mesh, or those that an older version did not make.
// The epochs of the ones that exist stay. It is idempotent, and any number of programs may call it at once. Of streams that exist it repairs nothing but what SetReplicas allows: the rest stands in the report as
// drift, which is not an error.
//
// Errors name what is missing: JetStream, a newer server, servers for the replicas, a permission, an answer.
func Init(ctx context.Context, nc *nats.Conn, s Setup) (Report, error) {
	return s.run(ctx, nc, true)
}

// Check compares the streams of a mesh with what they should be, and changes nothing. A missing stream and drift
// stand in the report and are no error.
func Check(ctx context.Context, nc *nats.Conn, s Setup) (Report, error) {
	return s.run(ctx, nc, false)
}

func (s Setup) run(ctx context.Context, nc *nats.Conn, create bool) (Report, error) {
	if s.Replicas == 0 {
		s.Replicas = 1
	}
	if err := s.validate(); err != nil {
		return Report{}, err
	}
	js, err := s.jetStream(nc)
	if err != nil {
		return Report{}, err
	}
	if err := checkServer(ctx, nc, js); err != nil {
		return Report{}, err
	}
	r := Report{Mesh: s.Mesh, Server: nc.ConnectedServerVersion()}
	for _, want := range s.streams() {
		b, err := s.bucket(ctx, nc, js, want, create)
		if err != nil {
			return r, err
		}
		r.Buckets = append(r.Buckets, b)
	}
	return r, nil
}

func (s Setup) validate() error {
	if err := wire.CheckName("mesh name", s.Mesh); err != nil {
		return err
	}
	switch s.Replicas {
	case 1, 3, 5:
		return nil
	}
	return fmt.Errorf("replicas %d is not allowed: it must be 1, 3 or 5", s.Replicas)
}

func (s Setup) jetStream(nc *nats.Conn) (jetstream.JetStream, error) {
	if s.Domain != "" {
		return jetstream.NewWithDomain(nc, s.Domain)
	}
	return jetstream.New(nc)
}

// streams returns the streams as they should be.
func (s Setup) streams() []jetstream.StreamConfig {
	mesh := wire.Mesh(s.Mesh)
	storage := jetstream.FileStorage
	if s.Memory {
		storage = jetstream.MemoryStorage
	}
	bucket := func(bucket, change string) jetstream.StreamConfig {
		return jetstream.StreamConfig{
			Name:              "KV_" + bucket,
			Description:       "natsfabric mesh " + s.Mesh,
			Subjects:          []string{"$KV." + bucket + ".>"},
			Retention:         jetstream.LimitsPolicy,
			Discard:           jetstream.DiscardNew,
			Storage:           storage,
			Replicas:          s.Replicas,
			MaxMsgsPerSubject: 1,
			MaxConsumers:      -1,
			MaxMsgs:           -1,
			MaxBytes:          -1,
			MaxMsgSize:        -1,
			Duplicates:        duplicateWindow,
			DenyDelete:        true,
			AllowRollup:       true,
			AllowDirect:       true,
			AllowMsgTTL:       true,
			// The server writes markers of this TTL for keys that expire.
			SubjectDeleteMarkerTTL: markerTTL,
			AllowAtomicPublish:     true,
			RePublish: &jetstream.RePublish{
				Source:      "$KV." + bucket + ".>",
				Destination: mesh.ChangePrefix() + "." + change + ".>",
			},
			Metadata: map[string]string{MetaMesh: s.Mesh},
		}
	}
	streams := []jetstream.StreamConfig{
		bucket(mesh.NodesBucket(), changeNodes),
		bucket(mesh.LocationBucket(), changeLocation),
	}
	if s.records {
		return streams
	}
	// What stands there may have several parts under one subject. It goes away by TTL, without a marker.
	plain := func(name, prefix string) jetstream.StreamConfig {
		cfg := bucket(name, "")
		cfg.Name, cfg.Subjects = name, []string{prefix + ".>"}
		cfg.MaxMsgsPerSubject, cfg.SubjectDeleteMarkerTTL, cfg.RePublish = -1, 0, nil
		return cfg
	}
	relay, moves := plain(mesh.RelayStream(), mesh.RelayPrefix()), plain(mesh.MoveStream(), mesh.MovePrefix())
	// No move relies on it that a part outlives the server (ADR 0034). Replicas keep it without the disk; the server allows the mode
	// with one copy in a file only, and without batches.
	moves.AllowAtomicPublish = false
	if s.Replicas == 1 && !s.Memory {
		moves.PersistMode = jetstream.AsyncPersistMode
	}
	return append(streams, bucket(mesh.SuperviseBucket(), changeSupervise), bucket(mesh.FenceBucket(), changeFence), relay, moves)
}

// The bucket's token in the subjects of republished changes.
const (
	changeNodes     = "nodes"
	changeLocation  = "location"
	changeSupervise = "supervise"
	changeFence     = "fence"
)

// patiently puts a question to the JetStream API until the answer is definite, for as long as ctx allows and 30 s at
// most. While JetStream, or the stream that is asked about, elects a leader, no answer comes, or one that says so.
func patiently[T any](ctx context.Context, nc *nats.Conn, ask func(context.Context) (T, error)) (T, error) {
	return patientlyEach(ctx, nc, func(try int) time.Duration { return min(firstAsk<<min(try, 8), DefaultAttemptTimeout) }, leaderless, ask)
}

// patientlyEach is patiently with so much time for each attempt. What passes by itself is asked again, too.
func patientlyEach[T any](ctx context.Context, nc *nats.Conn, attempt func(try int) time.Duration, passes func(error) bool, ask func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, DefaultTimeout)
	defer cancel()
	var said error // by the servers, before an attempt that nobody answered
	for try := 0; ; try++ {
		actx, cancel := context.WithTimeout(ctx, attempt(try))
		v, err := ask(actx)
		cancel()
		switch {
		case passes(err):
			said = err
		case err == nil || !unanswered(err) || forbidden(nc) != nil:
			return v, err
		}
		select {
		case <-time.After(backoff(try)):
		case <-ctx.Done():
			if said != nil {
				err = said
			}
			return v, err
		}
	}
}

// checkServer asks for JetStream and its level.
func checkServer(ctx context.Context, nc *nats.Conn, js jetstream.JetStream) error {
	info, err := patiently(ctx, nc, js.AccountInfo)
	if err != nil {
		return setupError(ctx, nc, "ask for JetStream ($JS.API.INFO)", err)
	}
	if info.API.Level < minAPILevel {
		return fmt.Errorf("nats-server %s at %s is too old: %s or newer is needed (JetStream API level %d, found %d)",
			nc.ConnectedServerVersion(), nc.ConnectedUrlRedacted(), MinServer, minAPILevel, info.API.Level)
	}
	return nil
}

func (s Setup) bucket(ctx context.Context, nc *nats.Conn, js jetstream.JetStream, want jetstream.StreamConfig, create bool) (BucketReport, error) {
	b := BucketReport{Bucket: strings.TrimPrefix(want.Name, "KV_"), Stream: want.Name}
	info, err := patiently(ctx, nc, func(ctx context.Context) (*jetstream.StreamInfo, error) { return streamInfo(ctx, js, want.Name) })
	// Making a stream, and writing into its settings what stands there already, may be asked for again.
	change := func(ask func(context.Context) (*jetstream.StreamInfo, error)) (*jetstream.StreamInfo, error) {
		return patientlyEach(ctx, nc, func(int) time.Duration { return setupTimeout }, func(err error) bool { return leaderless(err) || s.forming(nc, err) }, ask)
	}
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound) && !create:
		b.Missing = true
		return b, nil
	case errors.Is(err, jetstream.ErrStreamNotFound):
		if info, err = change(func(ctx context.Context) (*jetstream.StreamInfo, error) { return createStream(ctx, js, want) }); err != nil {
			return b, s.createError(ctx, nc, want, err)
		}
		b.Created = true
	case err != nil:
		return b, setupError(ctx, nc, "read the stream "+want.Name, err)
	}

	if create && info.Config.Metadata[MetaEpoch] == "" && info.State.LastSeq == 0 {
		// Made a moment ago, here or by another program; both derive the same epoch from the server's own time
		// of creation. It is larger than that of any earlier life of the stream.
		cfg := info.Config
		cfg.Metadata = withMeta(cfg.Metadata, MetaEpoch, strconv.FormatInt(info.Created.UnixMicro(), 10))
		if info, err = change(func(ctx context.Context) (*jetstream.StreamInfo, error) { return updateStream(ctx, js, cfg) }); err != nil {
			return b, setupError(ctx, nc, "write the epoch into the stream "+want.Name, err)
		}
	}
	if create && s.SetReplicas && info.Config.Replicas != want.Replicas {
		uctx, cancel := context.WithTimeout(ctx, updateTimeout)
		defer cancel()
		if info, err = setReplicas(uctx, js, info, want); err != nil {
			return b, s.createError(ctx, nc, want, err)
		}
		b.Changed = true
	}
	b.Replicas = info.Config.Replicas
	b.Epoch, _ = epochOf(info.Config.Metadata)
	b.Drift = compareStreams(want, info.Config)
	return b, nil
}

// setReplicas changes the replicas of a stream. A server refuses that together with another way of persisting, so the stream of
// moves is made anew: what moves under way have there is lost, and its sequences go on, for the consumers' sake.
func setReplicas(ctx context.Context, js jetstream.JetStream, info *jetstream.StreamInfo, want jetstream.StreamConfig) (*jetstream.StreamInfo, error) {
	cfg := info.Config
	cfg.Replicas = want.Replicas
	if cfg.PersistMode == want.PersistMode {
		return updateStream(ctx, js, cfg)
	}
	cfg.PersistMode, cfg.FirstSeq = want.PersistMode, info.State.LastSeq+1
	if err := js.DeleteStream(ctx, cfg.Name); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, err
	}
	return createStream(ctx, js, cfg)
}

func withMeta(meta map[string]string, key, value string) map[string]string {
	out := map[string]string{key: value}
	for k, v := range meta {
		if k != key {
			out[k] = v
		}
	}
	return out
}

func streamInfo(ctx context.Context, js jetstream.JetStream, name string) (*jetstream.StreamInfo, error) {
	st, err := js.Stream(ctx, name)
	if err != nil {
		return nil, err
	}
	return st.CachedInfo(), nil
}

func createStream(ctx context.Context, js jetstream.JetStream, cfg jetstream.StreamConfig) (*jetstream.StreamInfo, error) {
	st, err := js.CreateStream(ctx, cfg)
	if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
		return streamInfo(ctx, js, cfg.Name) // another program made it meanwhile
	}
	if err != nil {
		return nil, err
	}
	return st.CachedInfo(), nil
}

func updateStream(ctx context.Context, js jetstream.JetStream, cfg jetstream.StreamConfig) (*jetstream.StreamInfo, error) {
	st, err := js.UpdateStream(ctx, cfg)
	if err != nil {
		return nil, err
	}
	return st.CachedInfo(), nil
}

// epochOf reads the epoch from a stream's metadata.
func epochOf(meta map[string]string) (uint64, bool) {
	e, err := strconv.ParseUint(meta[MetaEpoch], 10, 64)
	return e, err == nil && e > 0 && e <= math.MaxInt64
}
