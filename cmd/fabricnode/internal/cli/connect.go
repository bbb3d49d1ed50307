package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"natsfabric/fabric"
	"natsfabric/internal/wire"
)

// meshFlags name the mesh and the way to NATS. Every command that talks to a mesh has them.
type meshFlags struct {
	Mesh string `required:"" placeholder:"NAME" help:"Name of the mesh: letters, digits, _ and -, 1 to 64 of them."`

	Server         filled        `group:"NATS" placeholder:"URL,..." help:"NATS server, or several of one cluster. Default ${natsURL}."`
	Context        string        `group:"NATS" placeholder:"NAME" help:"Context of the nats CLI to take server and credentials from."`
	Creds          string        `group:"NATS" placeholder:"FILE" help:"Credentials file."`
	NKey           string        `group:"NATS" name:"nkey" placeholder:"FILE" help:"File with an nkey seed."`
	User           string        `group:"NATS" placeholder:"NAME" help:"User name, with --password."`
	Password       string        `group:"NATS" help:"Password; better given as $$FABRIC_PASSWORD."`
	Token          string        `group:"NATS" help:"Token; better given as $$FABRIC_TOKEN."`
	TLSCA          string        `group:"NATS" name:"tlsca" placeholder:"FILE" help:"PEM file of the certificate authority."`
	TLSCert        string        `group:"NATS" name:"tlscert" placeholder:"FILE" help:"PEM file of the client certificate."`
	TLSKey         string        `group:"NATS" name:"tlskey" placeholder:"FILE" help:"PEM file of the client certificate's key."`
	Domain         string        `group:"NATS" placeholder:"NAME" help:"JetStream domain of the mesh's streams."`
	ConnectTimeout time.Duration `group:"NATS" default:"5s" help:"Bound of the first connection attempt."`
}

func (f *meshFlags) connect() fabric.Connect {
	return fabric.Connect{
		URL: string(f.Server), Context: f.Context, CredsFile: f.Creds, NKeyFile: f.NKey, User: f.User, Password: f.Password,
		Token: f.Token, CAFile: f.TLSCA, CertFile: f.TLSCert, KeyFile: f.TLSKey, Timeout: f.ConnectTimeout,
	}
}

// validate checks what the fabric's own checks cannot see.
func (f *meshFlags) validate() error {
	ways := 0
	for _, set := range []string{f.Creds, f.NKey, f.User, f.Token} {
		if set != "" {
			ways++
		}
	}
	if ways > 1 {
		return errors.New("several credentials are given: give one of --creds, --nkey, --user with --password, --token")
	}
	if strings.ContainsAny(f.Domain, ".*> \t") {
		return fmt.Errorf("--domain %q is not allowed: it must be one subject token", f.Domain)
	}
	return checkDuration("--connect-timeout", f.ConnectTimeout, 100*time.Millisecond, 5*time.Minute)
}

// dial opens a plain connection, for what needs no client of the mesh. What the server refuses later is logged once: the
// requests behind it are sent again until the command's time is over.
func (f *meshFlags) dial(ctx context.Context, log *zap.Logger) (*nats.Conn, error) {
	if err := errors.Join(wire.CheckName("Mesh", f.Mesh), f.validate()); err != nil {
		return nil, inFlags(err)
	}
	var first sync.Once
	connect := f.connect()
	connect.Options = append(connect.Options, nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
		first.Do(func() {
			if errors.Is(err, nats.ErrPermissionViolation) {
				log.Warn("the NATS user lacks a right; docs/api.md lists those that each role needs", zap.Error(err))
				return
			}
			log.Warn("NATS reports an error", zap.Error(err))
		})
	}))
	nc, err := fabric.Dial(ctx, "fabricnode", connect)
	return nc, startError(err)
}

// client opens a client of the mesh before ctx ends.
func (f *meshFlags) client(ctx context.Context, timeout time.Duration, log *zap.Logger) (*fabric.Client, error) {
	cfg := fabric.ClientConfig{Mesh: f.Mesh, Connect: f.connect(), Domain: f.Domain, DefaultTimeout: timeout, Logger: log}
	if err := errors.Join(f.validate(), cfg.Validate()); err != nil {
		return nil, inFlags(err)
	}
	c, err := fabric.ConnectClient(ctx, cfg)
	if err != nil && timeout < f.ConnectTimeout && ranOut(ctx, err) {
		err = fmt.Errorf("%w (--timeout is %v, connecting included)", err, timeout)
	}
	return c, startError(err)
}

// ranOut reports whether time was what ended an attempt. The socket's own deadline may be a moment before that of ctx.
func ranOut(ctx context.Context, err error) bool {
	return errors.Is(ctx.Err(), context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, nats.ErrTimeout)
}
