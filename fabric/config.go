package fabric

import (
	"crypto/tls"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"natsfabric/channels"
	"natsfabric/fence"
	"natsfabric/internal/wire"
	"natsfabric/kvlocation"
	"natsfabric/objects"
	"natsfabric/session"
)

// Defaults of a Config.
const (
	// DefaultTimeout bounds a call whose context has no deadline.
	DefaultTimeout = channels.DefaultTimeout
	// MaxTimeout is the greatest bound of one call.
	MaxTimeout = channels.MaxTimeout
)

// Config says what a node is. Only Mesh is required, and a way to reach NATS when it is not on nats.DefaultURL.
type Config struct {
	// Mesh is the name space: [A-Za-z0-9_-]{1,64}. Required.
	Mesh string
	// RID is the node's name in the mesh, of the same form. Empty means a fresh one: a node without a RID of its
	// own never waits for a predecessor's lease.
	RID string
	// AppVersion is the application's version, shown in the descriptor and by `nats micro info`. Objects move to nodes of
	// the same version, or, in a rolling update, of the one that is named. Default "0.0.0".
	AppVersion string
	// Wave is the node's maintenance wave, of the same form as a name: objects move to nodes of another wave. Empty means
	// none.
	Wave string

	// Weight is the weight of this node's RouteMesh channels whose Spec gives none, and its share in the placement of new
	// objects: 1 to 256. Default 1.
	Weight int

	// Connect says how to reach NATS, when Conn is nil.
	Connect Connect
	// Conn is a connection of the caller's, who closes it after Shutdown. It must have been made with
	// nats.ReconnectBufSize(-1) and without nats.NoEcho: see CheckConn.
	Conn *nats.Conn
	// Domain is the JetStream domain of the mesh's streams. Empty means the connection's own.
	Domain string

	// Channels are served from the start. More can be added with Node.Serve.
	Channels []channels.Spec

	// Types are the object types that this node hosts, each name once per class, one Entry Spot at most.
	Types []objects.Type
	// Capacity is how many objects the node owns at most, of all types together. Default 1,000,000; 1 to 100,000,000.
	Capacity int
	// MaxTurns is how many turns of objects run at a time at most; more wait. Default 10,000; 1 to 1,000,000.
	MaxTurns int
	// RouteTTL is how long a route to an object is used before the store is asked again. Default 15 s; 1 ms to 1 h.
	RouteTTL time.Duration
	// AuditRetention is how long the store keeps who released what. Default 30 days; 1 h to 10 years.
	AuditRetention time.Duration

	// Relocation says how objects move to other nodes.
	Relocation Relocation
	// Sessions lets the node own the sessions of clients: nil means none. Authenticate is required; the node itself fills
	// in Mesh, RID, Lifecycle, Conn, Router, Objects and LeaseOf. Actors of every node can be bound to sessions.
	Sessions *session.Config
	// SelfFence lets the node stop its process when its lease is lost and what runs then, turns and handlers, does not end
	// in time (FE-13). Nil means that it does not: such a turn's results are withheld, and guards refuse its writes.
	SelfFence *fence.SelfFence
	// Supervision says how monitors know the node.
	Supervision Supervision

	// LeaseTTL is the owner lease's time to live: whole seconds, 2 s to 5 min. Default 18 s, which rides, with the
	// defaults below, through one JetStream leader election (5 to 8 s without writes) without refusing anything.
	LeaseTTL time.Duration
	// LeaseRenew is the time between renewals, from 100 ms. Default a sixth of LeaseTTL. Two renewals must fit
	// before the admission deadline: 2*LeaseRenew <= LeaseTTL - LeaseMargin.
	LeaseRenew time.Duration
	// LeaseMargin is how long before the lease's expiry the node stops admitting: 200 ms to half of LeaseTTL.
	// Default a sixth of LeaseTTL.
	LeaseMargin time.Duration
	// StoreFailureGrace is how long the last fully read member list is used while the store is unavailable
	// (FO-7b). It extends no lease. 0 means the default of 30 s; 1 s to 10 min.
	StoreFailureGrace time.Duration
	// DefaultTimeout bounds a call whose context has no deadline. Default 5 s; 1 ms to 8 min.
	DefaultTimeout time.Duration
	// MaxWait is how long Start may wait for a predecessor's lease of the same RID to expire. Default: twice that
	// lease's TTL and 30 s, which covers a leader election; at most 1 h.
	MaxWait time.Duration

	// Middleware wraps every channel handler of this node, the first one outermost.
	Middleware []channels.Middleware
	// CallMiddleware wraps every call of a channel that this node makes, the first one outermost.
	CallMiddleware []channels.CallMiddleware
	// ObjectCallMiddleware wraps every call of an object that this node makes, the first one outermost.
	ObjectCallMiddleware []objects.CallMiddleware

	// Logger gets what an operator should see; nothing is logged at info level per message. Default: nothing.
	Logger *zap.Logger
}

// Connect says how to reach NATS. The zero value means nats.DefaultURL without credentials.
type Connect struct {
	// URL is one server URL or several, separated by commas. Default nats.DefaultURL.
	URL string
	// Context names a context of the `nats` CLI to take URL and credentials from. It excludes URL and the
	// credentials below.
	Context string
	// At most one of these four ways to authenticate.
	CredsFile string // a .creds file
	NKeyFile  string // an nkey seed file
	User      string // with Password
	Password  string
	Token     string
	// TLS is the client's TLS configuration. Nil means what the URL's scheme says.
	TLS *tls.Config
	// CAFile, CertFile and KeyFile are PEM files, as an alternative to TLS.
	CAFile   string
	CertFile string
	KeyFile  string
	// Timeout bounds the first connection attempt. Default 5 s; 100 ms to 5 min.
	Timeout time.Duration
	// Options are added after the fabric's own. An option that turns a reconnect buffer on is refused.
	Options []nats.Option
}

// withDefaults returns cfg with every unset field filled in.
func (cfg Config) withDefaults() Config {
	if cfg.LeaseTTL == 0 {
		cfg.LeaseTTL = kvlocation.DefaultTTL
	}
	if cfg.StoreFailureGrace == 0 {
		cfg.StoreFailureGrace = kvlocation.DefaultGrace
	}
	if cfg.DefaultTimeout == 0 {
		cfg.DefaultTimeout = DefaultTimeout
	}
	if cfg.Weight == 0 {
		cfg.Weight = 1
	}
	if cfg.AppVersion == "" {
		cfg.AppVersion = "0.0.0"
	}
	if cfg.Logger == nil {
		cfg.Logger = zap.NewNop()
	}
	cfg.Relocation = cfg.Relocation.withDefaults(cfg.RouteTTL)
	cfg.Supervision = cfg.Supervision.withDefaults(cfg.RID)
	return cfg
}

// Validate checks every field, defaults filled in, and returns all that is wrong as one error: each part names the
// field, the value and the allowed range. Deadlines that do not agree are wrong, and named as the two that clash: the lease's
// with its renewal, its margin and the store's attempts; the grace with the renewal; a move's with the store's attempts; the
// following with the life of a route.
func (cfg Config) Validate() error {
	cfg = cfg.withDefaults()
	errs := []error{wire.CheckName("Mesh", cfg.Mesh)}
	if cfg.Wave != "" {
		errs = append(errs, wire.CheckName("Wave", cfg.Wave))
	}
	errs = append(errs,
		cfg.lease().Validate(cfg.storeAttempt()),
		checkRange("StoreFailureGrace", cfg.StoreFailureGrace, time.Second, 10*time.Minute),
		checkRange("DefaultTimeout", cfg.DefaultTimeout, time.Millisecond, MaxTimeout),
		checkRange("MaxWait", cfg.MaxWait, 0, time.Hour))
	errs = append(errs, checkReach(cfg.Conn, cfg.Connect))
	if cfg.Weight < 1 || cfg.Weight > channels.MaxWeight {
		errs = append(errs, fmt.Errorf("Weight %d is not allowed: it must be 1 to %d", cfg.Weight, channels.MaxWeight))
	}
	errs = append(errs, cfg.checkObjects(), cfg.checkRelocation(), cfg.checkSessions(), cfg.checkSupervision(), cfg.checkSelfFence())
	seen := map[string]bool{}
	for i, spec := range cfg.Channels {
		if err := spec.Validate(); err != nil {
			errs = append(errs, under(fmt.Sprintf("Channels[%d]: ", i), err))
		}
		if seen[spec.Name] {
			errs = append(errs, fmt.Errorf("Channels[%d]: Name %q is given twice", i, spec.Name))
		}
		seen[spec.Name] = true
	}
	return errors.Join(errs...)
}

// checkObjects checks what concerns objects.
func (cfg Config) checkObjects() error {
	errs := []error{
		checkNumber("Capacity", cfg.Capacity, objects.MaxCapacity),
		checkNumber("MaxTurns", cfg.MaxTurns, objects.MaxTurns),
	}
	if cfg.RouteTTL != 0 {
		errs = append(errs, checkRange("RouteTTL", cfg.RouteTTL, time.Millisecond, objects.MaxRouteTTL))
	}
	if cfg.AuditRetention != 0 {
		errs = append(errs, checkRange("AuditRetention", cfg.AuditRetention, time.Hour, kvlocation.MaxAuditRetention))
	}
	type name struct {
		class objects.Class
		name  string
	}
	seen := map[name]int{}
	entry := -1
	for i, t := range cfg.Types {
		if err := t.Validate(); err != nil {
			errs = append(errs, under(fmt.Sprintf("Types[%d]: ", i), err))
			continue
		}
		if first, twice := seen[name{t.Class, t.Name}]; twice {
			errs = append(errs, fmt.Errorf("Types[%d]: %s %q is given twice: it is Types[%d] already", i, t.Class, t.Name, first))
			continue
		}
		seen[name{t.Class, t.Name}] = i
		if t.Class == kvlocation.ClassEntrySpot {
			if entry >= 0 {
				errs = append(errs, fmt.Errorf("Types[%d]: %s %q is one too many: a node has one Entry Spot, and Types[%d] is it", i, t.Class, t.Name, entry))
				continue
			}
			entry = i
		}
	}
	return errors.Join(errs...)
}

// storeAttempt is how long one request to the store may take before it is sent again: 2 s, or less with a short lease,
// so that one lost answer does not cost it.
func (cfg Config) storeAttempt() time.Duration {
	return min(kvlocation.DefaultAttemptTimeout, max(cfg.LeaseTTL/6, kvlocation.MinRenew))
}

// lease is the part of the configuration that concerns the owner lease.
func (cfg Config) lease() kvlocation.LeaseConfig {
	rid := cfg.RID
	if rid == "" {
		rid = "fresh" // what Start puts there is always allowed
	}
	return kvlocation.LeaseConfig{RID: rid, TTL: cfg.LeaseTTL, Renew: cfg.LeaseRenew, Margin: cfg.LeaseMargin, MaxWait: cfg.MaxWait}
}

// checkNumber wants 0, the default, or 1 to most.
func checkNumber(field string, v, most int) error {
	if v < 0 || v > most {
		return fmt.Errorf("%s %d is not allowed: it must be 1 to %d, or 0 for the default", field, v, most)
	}
	return nil
}

func checkRange(field string, v, lo, hi time.Duration) error {
	if v < lo || v > hi {
		return fmt.Errorf("%s %v is not allowed: it must be %v to %v", field, v, lo, hi)
	}
	return nil
}

// checkReach checks how NATS is to be reached.
func checkReach(conn *nats.Conn, c Connect) error {
	if conn != nil && !c.isZero() {
		return errors.New("Conn and Connect are both set: give one of them")
	}
	return c.validate()
}

func (c Connect) isZero() bool {
	return c.URL == "" && c.Context == "" && c.CredsFile == "" && c.NKeyFile == "" && c.User == "" && c.Password == "" &&
		c.Token == "" && c.TLS == nil && c.CAFile == "" && c.CertFile == "" && c.KeyFile == "" && c.Timeout == 0 && len(c.Options) == 0
}

func (c Connect) validate() error {
	var ways []string
	for _, w := range []struct {
		name string
		set  bool
	}{{"CredsFile", c.CredsFile != ""}, {"NKeyFile", c.NKeyFile != ""}, {"User", c.User != ""}, {"Token", c.Token != ""}} {
		if w.set {
			ways = append(ways, w.name)
		}
	}
	switch {
	case len(ways) > 1:
		return fmt.Errorf("Connect has several credentials %v: give one of CredsFile, NKeyFile, User with Password, Token", ways)
	case c.Password != "" && c.User == "":
		return errors.New("Connect.Password is set without Connect.User")
	case c.Context != "" && (c.URL != "" || len(ways) > 0):
		return fmt.Errorf("Connect.Context %q clashes with Connect.URL or credentials: a context brings its own", c.Context)
	case c.TLS != nil && (c.CAFile != "" || c.CertFile != "" || c.KeyFile != ""):
		return errors.New("Connect.TLS clashes with CAFile, CertFile and KeyFile: give one or the other")
	case (c.CertFile == "") != (c.KeyFile == ""):
		return errors.New("Connect.CertFile and Connect.KeyFile belong together: give both or neither")
	}
	if c.Timeout != 0 {
		if err := checkRange("Connect.Timeout", c.Timeout, 100*time.Millisecond, 5*time.Minute); err != nil {
			return err
		}
	}
	return checkURLs(c.URL)
}
