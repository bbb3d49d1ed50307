package reference

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.uber.org/goleak"

	"natsfabric/outcome"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestWork(t *testing.T) {
	start := time.Now()
	got, err := work(t.Context(), []byte(`{"sleep_ms":20,"payload":{"a":[1,"x"]}}`))
	if err != nil || string(got) != `{"a":[1,"x"]}` {
		t.Fatalf("got %q, %v", got, err)
	}
	if took := time.Since(start); took < 20*time.Millisecond {
		t.Errorf("answered after %v, before its sleep ended", took)
	}
}

func TestWorkRefusesBadPayloads(t *testing.T) {
	for name, c := range map[string]struct {
		payload string
		kind    outcome.Kind
	}{
		"empty":             {"", outcome.InvalidOperation},
		"no JSON":           {"hello", outcome.InvalidOperation},
		"array":             {"[1]", outcome.InvalidOperation},
		"unknown field":     {`{"sleep":1}`, outcome.InvalidOperation},
		"fraction":          {`{"sleep_ms":1.5}`, outcome.InvalidOperation},
		"something follows": {`{"sleep_ms":1} {}`, outcome.InvalidOperation},
		"negative":          {`{"sleep_ms":-1}`, outcome.Rejected},
		"too long":          {`{"sleep_ms":60001}`, outcome.Rejected},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := work(t.Context(), []byte(c.payload))
			if !errors.Is(err, c.kind) || !errors.Is(err, outcome.Accepted) {
				t.Fatalf("got %v, want %v and Accepted", err, c.kind)
			}
		})
	}
}

func TestWorkEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := work(ctx, []byte(`{"sleep_ms":60000}`))
	if !errors.Is(err, outcome.Unavailable) || !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v, want Unavailable and the context's error", err)
	}
}
