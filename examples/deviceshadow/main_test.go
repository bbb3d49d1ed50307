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
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if err := run(ctx, &out); err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	for _, says := range []string{
		"map[temperature:21] differs, version 2", "the same incarnation: true", "map[temperature:21], version 2 as before: true",
		"0 differences, version 3", "Rejected (Accepted", "it has version 3, not 2",
	} {
		if !strings.Contains(out.String(), says) {
			t.Errorf("it does not say %q:\n%s", says, &out)
		}
	}
}
