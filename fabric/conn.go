package fabric

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/synadia-io/orbit.go/natscontext"

	"natsfabric/outcome"
)

// defaultConnectTimeout bounds the first connection attempt.
const defaultConnectTimeout = 5 * time.Second

// CheckConn returns an error that names the option to set when nc was made in a way that breaks the fabric's
// guarantees:
//
//   - a reconnect buffer would send, after a reconnect, what callers have long been told was not sent;
//   - NoEcho would hide a node's own channels from itself;
//   - without reconnects one lost connection would end the node.
func CheckConn(nc *nats.Conn) error {
	switch {
	case nc == nil:
		return errors.New("Conn is nil")
	case nc.IsClosed():
		return errors.New("Conn is closed: connect it first")
	case nc.IsDraining():
		return errors.New("Conn is draining: give one that stays open")
	case nc.Opts.ReconnectBufSize >= 0:
		return fmt.Errorf("Conn has a reconnect buffer (ReconnectBufSize %d): messages would go out after their callers gave up; connect with nats.ReconnectBufSize(-1)", nc.Opts.ReconnectBufSize)
	case nc.Opts.NoEcho:
		return errors.New("Conn was made with nats.NoEcho(): a node could not call its own channels; connect without it")
	case !nc.Opts.AllowReconnect:
		return errors.New("Conn was made with nats.NoReconnect(): connect without it")
	case !nc.HeadersSupported():
		return errors.New("Conn's server does not support headers: it is older than the fabric needs")
	}
	return nil
}

// Dial connects as c says, with the options that a node needs, under the given client name. The caller closes the
// connection. Errors are *outcome.Error and tell what is wrong in an operator's words: InvalidOperation when c is
// wrong, Unavailable with ErrConnect in the chain when the server cannot be reached or refuses.
func Dial(ctx context.Context, name string, c Connect) (*nats.Conn, error) {
	err := c.validate()
	if err == nil {
		err = c.checkFiles()
	}
	if err != nil {
		return nil, misconfigured("connection", name, err)
	}
	nc, err := dial(ctx, name, c)
	if err != nil {
		return nil, outcome.Wrap("connect", outcome.Unavailable, outcome.NotAccepted, "", "", fmt.Errorf("%w: %w", ErrConnect, err))
	}
	return nc, nil
}

func dial(ctx context.Context, name string, c Connect) (*nats.Conn, error) {
	timeout := c.Timeout
	if timeout == 0 {
		timeout = defaultConnectTimeout
	}
	if d, ok := ctx.Deadline(); ok {
		timeout = min(timeout, max(time.Until(d), time.Millisecond))
	}
	opts := []nats.Option{
		nats.Name(name),
		nats.Timeout(timeout),
		nats.ReconnectBufSize(-1), // nothing may sit in a buffer and go out later
		nats.MaxReconnects(-1),
		nats.ReconnectWait(100 * time.Millisecond),
		nats.ReconnectJitter(100*time.Millisecond, 200*time.Millisecond),
		nats.PingInterval(2 * time.Second), // finds a half-open connection in 4 to 6 s
		nats.MaxPingsOutstanding(2),
	}
	switch {
	case c.CredsFile != "":
		opts = append(opts, nats.UserCredentials(c.CredsFile))
	case c.NKeyFile != "":
		nkey, err := nats.NkeyOptionFromSeed(c.NKeyFile)
		if err != nil {
			return nil, fmt.Errorf("Connect.NKeyFile %q holds no nkey seed: %w", c.NKeyFile, err)
		}
		opts = append(opts, nkey)
	case c.User != "":
		opts = append(opts, nats.UserInfo(c.User, c.Password))
	case c.Token != "":
		opts = append(opts, nats.Token(c.Token))
	}
	if c.TLS != nil {
		opts = append(opts, nats.Secure(c.TLS))
	}
	if c.CAFile != "" {
		opts = append(opts, nats.RootCAs(c.CAFile))
	}
	if c.CertFile != "" {
		opts = append(opts, nats.ClientCert(c.CertFile, c.KeyFile))
	}
	opts = append(opts, c.Options...)

	where := c.URL
	connect := func() (*nats.Conn, error) { return nats.Connect(where, opts...) }
	switch {
	case c.Context != "":
		where = fmt.Sprintf("the nats CLI context %q", c.Context)
		connect = func() (*nats.Conn, error) {
			nc, _, err := natscontext.Connect(c.Context, opts...)
			return nc, err
		}
	case where == "":
		where = nats.DefaultURL
	}
	nc, err := within(ctx, connect)
	if err != nil {
		return nil, explainDial(err, redact(where), c)
	}
	if err := CheckConn(nc); err != nil {
		nc.Close()
		return nil, err
	}
	return nc, nil
}

// within runs connect, which knows no context and tries each server in turn, but not beyond the end of ctx. A connection
// that comes later is closed.
func within(ctx context.Context, connect func() (*nats.Conn, error)) (*nats.Conn, error) {
	type result struct {
		nc  *nats.Conn
		err error
	}
	results := make(chan result, 1)
	go func() {
		nc, err := connect()
		results <- result{nc, err}
	}()
	select {
	case r := <-results:
		return r.nc, r.err
	case <-ctx.Done():
		go func() {
			if r := <-results; r.nc != nil {
				r.nc.Close()
			}
		}()
		return nil, ctx.Err()
	}
}

// explainDial turns a connection failure into what an operator can act on.
func explainDial(err error, where string, c Connect) error {
	var opErr *net.OpError
	var dnsErr *net.DNSError
	if bad := (*url.Error)(nil); errors.As(err, &bad) {
		err = bad.Err // without the URL, and what is secret in it
	}
	switch {
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("connecting to %s: %w", where, err)
	case c.Context != "" && strings.Contains(err.Error(), "unknown context"):
		return fmt.Errorf("%s does not exist: contexts are looked for in %s: %w", where, contextDir(), err)
	case errors.Is(err, nats.ErrAuthorization) || errors.Is(err, nats.ErrAuthExpired) || strings.Contains(strings.ToLower(err.Error()), "authorization violation"):
		return fmt.Errorf("%s refused the credentials (%s): check them against the server's accounts and users: %w", where, c.credentials(), err)
	case strings.Contains(err.Error(), "x509:"):
		return fmt.Errorf("the TLS certificate of %s is not trusted: give the CA that signed it (CA file): %w", where, err)
	case errors.Is(err, nats.ErrSecureConnRequired):
		return fmt.Errorf("%s requires TLS: use a tls:// URL or set a CA file: %w", where, err)
	case errors.Is(err, nats.ErrSecureConnWanted):
		return fmt.Errorf("%s does not offer TLS, but the configuration asks for it: %w", where, err)
	case errors.As(err, &dnsErr):
		return fmt.Errorf("host name of %s cannot be resolved: %w", where, err)
	case errors.Is(err, nats.ErrTimeout), errors.Is(err, context.DeadlineExceeded), errors.As(err, &opErr) && opErr.Timeout():
		return fmt.Errorf("no answer from %s in time: is it a NATS server? %w", where, err)
	case errors.Is(err, nats.ErrNoServers) || errors.As(err, &opErr):
		return fmt.Errorf("no NATS server answers at %s: start one there, or give the URL of a running one: %w", where, err)
	default:
		return fmt.Errorf("cannot connect to %s: %w", where, err)
	}
}

func (c Connect) credentials() string {
	switch {
	case c.CredsFile != "":
		return "credentials file " + c.CredsFile
	case c.NKeyFile != "":
		return "nkey file " + c.NKeyFile
	case c.User != "" && c.Password == "":
		return fmt.Sprintf("user %q without a password", c.User)
	case c.User != "":
		return fmt.Sprintf("user %q with a password", c.User)
	case c.Token != "":
		return "a token"
	case c.Context != "":
		return "those of the context"
	case strings.Contains(c.URL, "@"):
		return "those in the URL"
	default:
		return "none given"
	}
}

// contextDir is where the nats CLI keeps its contexts.
func contextDir() string {
	parent := os.Getenv("XDG_CONFIG_HOME")
	if parent == "" {
		parent = "~/.config"
	}
	return path.Join(parent, "nats", "context")
}

// redact removes passwords and tokens from a list of URLs, of which some may lack the scheme or be no URLs at all.
func redact(urls string) string {
	parts := strings.Split(urls, ",")
	for i, p := range parts {
		at := strings.LastIndexByte(p, '@')
		if at < 0 {
			continue
		}
		begin := 0
		if n := strings.Index(p[:at], "://"); n >= 0 {
			begin = n + len("://")
		}
		user, _, withPassword := strings.Cut(p[begin:at], ":")
		if withPassword {
			user += ":"
		} else {
			user = "" // a token
		}
		parts[i] = p[:begin] + user + "xxxxx" + p[at:]
	}
	return strings.Join(parts, ",")
}
