package fabric_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nkeys"

	"natsfabric/channels"
	"natsfabric/fabric"
	"natsfabric/fabrictest"
	"natsfabric/kvlocation"
)

// reaches starts a node by c, calls its own channel, and stops it. A connection made the same way makes the mesh.
func reaches(t *testing.T, c fabric.Connect) {
	t.Helper()
	nc, err := fabric.Dial(t.Context(), "setup", c)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if _, err := kvlocation.Init(t.Context(), nc, kvlocation.Setup{Mesh: "m"}); err != nil {
		t.Fatal(err)
	}
	n := startNode(t, fabric.Config{Mesh: "m", RID: "a", Connect: c, Channels: []channels.Spec{{Name: "echo", Handler: echo}}})
	if _, err := n.Channel("echo").Request(t.Context(), []byte("x")); err != nil {
		t.Fatal(err)
	}
	stopNode(t, n)
}

// wantRefused wants the dial by c to fail with a text that says each of texts.
func wantRefused(t *testing.T, c fabric.Connect, texts ...string) {
	t.Helper()
	nc, err := fabric.Dial(t.Context(), "test", c)
	if err == nil {
		nc.Close()
		t.Fatalf("%+v was let in", c)
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("the error does not say %q: %v", text, err)
		}
	}
}

// TestConnectTLS: the server's certificate is checked against the CA file, and the client shows its own.
func TestConnectTLS(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ca, caKey := issue(t, nil, nil, "ca")
	write(t, dir, "ca.pem", "CERTIFICATE", ca.Raw)
	for _, name := range []string{"server", "client"} {
		cert, key := issue(t, ca, caKey, name)
		write(t, dir, name+".pem", "CERTIFICATE", cert.Raw)
		der, err := x509.MarshalECPrivateKey(key)
		if err != nil {
			t.Fatal(err)
		}
		write(t, dir, name+"-key.pem", "EC PRIVATE KEY", der)
	}
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "server.pem"), filepath.Join(dir, "server-key.pem"))
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(ca)
	s := fabrictest.StartServer(t, fabrictest.WithOptions(func(o *server.Options) {
		o.TLSVerify = true
		o.TLSConfig = &tls.Config{Certificates: []tls.Certificate{pair}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS12}
		o.TLSTimeout = 10
	}))
	file := func(name string) string { return filepath.Join(dir, name) }
	reaches(t, fabric.Connect{URL: s.URL(), CAFile: file("ca.pem"), CertFile: file("client.pem"), KeyFile: file("client-key.pem")})
	wantRefused(t, fabric.Connect{URL: s.URL()}, "TLS certificate", "not trusted")
	wantRefused(t, fabric.Connect{URL: s.URL(), CAFile: file("client.pem"), CertFile: file("client.pem"), KeyFile: file("client-key.pem")}, "TLS certificate", "not trusted")
	wantRefused(t, fabric.Connect{URL: s.URL(), CAFile: file("none.pem")}, "Connect.CAFile", "none.pem")
}

// issue makes a certificate for loopback, signed by ca or by itself.
func issue(t *testing.T, ca *x509.Certificate, caKey *ecdsa.PrivateKey, name string) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: ca == nil, BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if ca == nil {
		ca, caKey = tmpl, key
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, ca, &key.PublicKey, caKey)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert, key
}

func write(t *testing.T, dir, name, kind string, der []byte) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestConnectNKey: a user who is known by a public key alone.
func TestConnectNKey(t *testing.T) {
	t.Parallel()
	user := must(nkeys.CreateUser())(t)
	public := must(user.PublicKey())(t)
	s := fabrictest.StartServer(t, fabrictest.WithOptions(func(o *server.Options) {
		o.Nkeys = []*server.NkeyUser{{Nkey: public}}
	}))
	seed := filepath.Join(t.TempDir(), "user.nk")
	if err := os.WriteFile(seed, must(user.Seed())(t), 0o600); err != nil {
		t.Fatal(err)
	}
	reaches(t, fabric.Connect{URL: s.URL(), NKeyFile: seed})
	wantRefused(t, fabric.Connect{URL: s.URL()}, "refused the credentials", "none given")
	wantRefused(t, fabric.Connect{URL: s.URL(), NKeyFile: "/dev/null"}, "Connect.NKeyFile", "no nkey seed")
}

// TestConnectCreds: a user of an account with JetStream, under an operator, by a credentials file.
func TestConnectCreds(t *testing.T) {
	t.Parallel()
	operator, system, account, user := must(nkeys.CreateOperator())(t), must(nkeys.CreateAccount())(t), must(nkeys.CreateAccount())(t), must(nkeys.CreateUser())(t)
	oc := jwt.NewOperatorClaims(must(operator.PublicKey())(t))
	oc.SystemAccount = must(system.PublicKey())(t)
	oJWT := must(oc.Encode(operator))(t)
	resolver := &server.MemAccResolver{}
	for _, kp := range []nkeys.KeyPair{system, account} {
		ac := jwt.NewAccountClaims(must(kp.PublicKey())(t))
		if kp == account {
			ac.Limits.JetStreamLimits = jwt.JetStreamLimits{MemoryStorage: -1, DiskStorage: -1}
		}
		if err := resolver.Store(ac.Subject, must(ac.Encode(operator))(t)); err != nil {
			t.Fatal(err)
		}
	}
	uJWT := must(jwt.NewUserClaims(must(user.PublicKey())(t)).Encode(account))(t)
	creds := filepath.Join(t.TempDir(), "user.creds")
	if err := os.WriteFile(creds, must(jwt.FormatUserConfig(uJWT, must(user.Seed())(t)))(t), 0o600); err != nil {
		t.Fatal(err)
	}
	s := fabrictest.StartServer(t, fabrictest.WithOptions(func(o *server.Options) {
		o.TrustedOperators = []*jwt.OperatorClaims{must(jwt.DecodeOperatorClaims(oJWT))(t)}
		o.AccountResolver = resolver
		o.SystemAccount = oc.SystemAccount
	}))
	reaches(t, fabric.Connect{URL: s.URL(), CredsFile: creds})
	wantRefused(t, fabric.Connect{URL: s.URL()}, "refused the credentials", "none given")
	wantRefused(t, fabric.Connect{URL: s.URL(), CredsFile: "/nonexistent.creds"}, "Connect.CredsFile", "/nonexistent.creds")
}

// must ends the test when what was made comes with an error.
func must[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}
