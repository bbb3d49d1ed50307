package fabric

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"
)

// schemes are those of URLs that lead to a NATS server.
var schemes = []string{"nats", "tls", "ws", "wss"}

// checkURLs refuses what cannot be the URL of a NATS server: the client library would take any scheme, and blame the
// server for the rest.
func checkURLs(urls string) error {
	if urls == "" {
		return nil
	}
	for part := range strings.SplitSeq(urls, ",") {
		part = strings.TrimSpace(part)
		text := part
		if !strings.Contains(text, "://") {
			text = "nats://" + text
		}
		u, err := url.Parse(text)
		if err != nil || u.Hostname() == "" || strings.Contains(u.Hostname(), ":") != strings.HasPrefix(u.Host, "[") {
			return fmt.Errorf("Connect.URL %q is not allowed: it is no URL like nats://host:4222", redact(part))
		}
		if !slices.Contains(schemes, u.Scheme) {
			return fmt.Errorf("Connect.URL %q is not allowed: its scheme must be one of %s", redact(part), strings.Join(schemes, ", "))
		}
		if p := u.Port(); p != "" {
			if n, err := strconv.ParseUint(p, 10, 16); err != nil || n == 0 {
				return fmt.Errorf("Connect.URL %q is not allowed: its port must be 1 to 65535", redact(part))
			}
		}
	}
	return nil
}

// checkFiles refuses files that cannot be read or do not hold what they should.
func (c Connect) checkFiles() error {
	for _, f := range []struct {
		field, file, holds string
		check              func([]byte) error
	}{
		{"Connect.CredsFile", c.CredsFile, "no NATS credentials", c.checkCreds},
		{"Connect.NKeyFile", c.NKeyFile, "no nkey seed", c.checkNKey},
		{"Connect.CAFile", c.CAFile, "no PEM certificate", checkCA},
		{"Connect.CertFile", c.CertFile, "no PEM certificate for the key in Connect.KeyFile", c.checkPair},
		{"Connect.KeyFile", c.KeyFile, "", func([]byte) error { return nil }}, // judged with the certificate
	} {
		if f.file == "" {
			continue
		}
		text, err := os.ReadFile(f.file)
		if err != nil {
			return fmt.Errorf("%s cannot be read: %w", f.field, err)
		}
		if err := f.check(text); err != nil {
			return fmt.Errorf("%s %q holds %s: %w", f.field, f.file, f.holds, err)
		}
	}
	return nil
}

// checkCreds lets the client library read the seed, by which it would sign what the server asks.
func (c Connect) checkCreds([]byte) error {
	var o nats.Options
	if err := nats.UserCredentials(c.CredsFile)(&o); err != nil {
		return err
	}
	_, err := o.SignatureCB([]byte("nonce"))
	return err
}

func (c Connect) checkNKey([]byte) error {
	_, err := nats.NkeyOptionFromSeed(c.NKeyFile)
	return err
}

func checkCA(text []byte) error {
	if !x509.NewCertPool().AppendCertsFromPEM(text) {
		return errors.New("nothing in it is one")
	}
	return nil
}

func (c Connect) checkPair([]byte) error {
	_, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
	return err
}
