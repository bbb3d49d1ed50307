package main

import (
	"context"
	"strings"
	"testing"
	"time"

	"natsfabric/fabrictest"
)

func TestMain(m *testing.M) { fabrictest.VerifyTestMain(m) }

// The game itself checks that nothing was lost, doubled or re-ordered.
func TestGame(t *testing.T) {
	var out strings.Builder
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if err := run(ctx, &out); err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	if n := strings.Count(out.String(), "5 objects, moved from"); n != moves || !strings.Contains(out.String(), "all 400 scores are on the board") {
		t.Errorf("%d moves of the room with its players, want %d:\n%s", n, moves, &out)
	}
}
