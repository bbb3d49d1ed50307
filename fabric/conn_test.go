package fabric

import (
	"strings"
	"testing"
	"time"
)

// No error says a password or a token that stands in a URL, however it is written.
func TestErrorsHideSecrets(t *testing.T) {
	t.Parallel()
	for _, url := range []string{
		"nats://user:s3cret@127.0.0.1:1",
		"user:s3cret@127.0.0.1:1",
		"nats://s3cret@127.0.0.1:1",
		"s3cret@127.0.0.1:1",
		"nats://127.0.0.1:1, nats://user:s3cret@127.0.0.1:1",
		"nats://user:s3cret%zz@127.0.0.1:1",
	} {
		_, err := Dial(t.Context(), "test", Connect{URL: url, Timeout: time.Second})
		if err == nil || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v", url, err)
		}
		if !strings.Contains(err.Error(), "127.0.0.1:1") {
			t.Errorf("%s: the error does not name the server: %v", url, err)
		}
	}
}
