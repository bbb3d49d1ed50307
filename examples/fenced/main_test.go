package main

import (
	"context"
	"strings"
	"testing"
	"time"

	"natsfabric/fabrictest"
)

func TestMain(m *testing.M) { fabrictest.VerifyTestMain(m) }

func TestStory(t *testing.T) {
	var out strings.Builder
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := run(ctx, &out); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	for _, says := range []string{"owns the account: balance 100", "owns it now: balance 150", "wakes up and writes: refused by the token", "the database holds 150"} {
		if !strings.Contains(out.String(), says) {
			t.Errorf("it does not say %q:\n%s", says, out.String())
		}
	}
}
