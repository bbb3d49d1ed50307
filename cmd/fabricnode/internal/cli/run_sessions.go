package cli

import (
	"bufio"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path"
	"strings"

	"go.uber.org/zap"

	"natsfabric/cmd/fabricnode/internal/httpd"
	"natsfabric/fabric"
	"natsfabric/outcome"
	"natsfabric/session"
)

// sessionFlags say who may open a session at the node. One with an address, or with tokens, takes sessions, over NATS too;
// every node hosts Actors that are bound to some.
type sessionFlags struct {
	Sessions      string   `group:"Sessions" default:"off" placeholder:"ADDR" help:"Address for WebSockets of clients: sessions at /session, the JavaScript client at /natsfabric.js; port 0 takes a free one. Default ${default}."`
	SessionTokens string   `group:"Sessions" placeholder:"FILE" help:"Who may open a session: a line for each, a token and the client's name. Without it everybody may who gets as far."`
	Origins       []string `group:"Sessions" placeholder:"HOST" help:"Hosts of web pages, beside the node's own, from which browsers may come; like *.example.com."`
}

// The bounds of a file of tokens.
const (
	maxTokenFile = 1 << 20
	minToken     = 8
)

// listen opens the address, and completes the node's configuration.
func (f *sessionFlags) listen(cfg *fabric.Config) (*httpd.Gate, error) {
	who := letIn
	if f.SessionTokens != "" {
		tokens, err := readTokens(f.SessionTokens)
		if err != nil {
			return nil, fmt.Errorf("--session-tokens: %w", err)
		}
		who = tokens.authenticate
	}
	for _, o := range f.Origins {
		if _, err := path.Match(o, ""); err != nil || o == "" || strings.Contains(o, "/") {
			return nil, fmt.Errorf("--origins %q is not allowed: it must be a host, or a pattern like *.example.com", o)
		}
	}
	if len(f.Origins) > 0 && f.Sessions == httpd.Off {
		return nil, errors.New("--origins needs --sessions")
	}
	if f.Sessions != httpd.Off || f.SessionTokens != "" {
		cfg.Sessions = &session.Config{Authenticate: who, Origins: f.Origins}
	}
	gate, err := httpd.ListenSessions(f.Sessions)
	if err != nil {
		return nil, fmt.Errorf("--sessions: %w", err)
	}
	return gate, nil
}

// warn says loudly when everybody may come in.
func (f *sessionFlags) warn(log *zap.Logger, url string) {
	if url != "" && f.SessionTokens == "" {
		log.Warn("SESSIONS ARE OPEN: whoever reaches this address may bind to every Actor of the mesh and call it; --session-tokens FILE lets in only who has a token",
			zap.String("sessions", url))
	}
}

// letIn lets everybody in, under the name that the client gives itself.
func letIn(_ context.Context, hello session.Hello) (session.Identity, error) {
	return session.Identity{Subject: hello.Client}, nil
}

// tokens are the names of those who may come in, by the hash of their token: looking one up takes no time that tells of others.
type tokens map[[sha256.Size]byte]string

func readTokens(name string) (tokens, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if info.Size() > maxTokenFile {
		return nil, fmt.Errorf("%s: larger than %d bytes", name, maxTokenFile)
	}
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	t := tokens{}
	lines := bufio.NewScanner(file)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		token, who, _ := strings.Cut(line, " ")
		who = strings.TrimSpace(who)
		switch {
		case len(token) < minToken:
			return nil, fmt.Errorf("%s: line %d: the token has %d bytes, it must have %d at least", name, n, len(token), minToken)
		case who == "":
			return nil, fmt.Errorf("%s: line %d: no name follows the token: it must look like \"TOKEN NAME\"", name, n)
		case len(who) > 255:
			return nil, fmt.Errorf("%s: line %d: the name has %d bytes, it may have 255", name, n, len(who))
		}
		t[sha256.Sum256([]byte(token))] = who
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if len(t) == 0 {
		return nil, errors.New(name + ": there is no token in it, so nobody could come in")
	}
	return t, nil
}

func (t tokens) authenticate(_ context.Context, hello session.Hello) (session.Identity, error) {
	who, ok := t[sha256.Sum256(hello.Credentials)]
	if !ok {
		return session.Identity{}, outcome.New("authenticate", outcome.Rejected, outcome.NotAccepted, "", "the token is not one of those that this node knows")
	}
	return session.Identity{Subject: who}, nil
}
