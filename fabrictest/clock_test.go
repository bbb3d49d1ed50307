package fabrictest_test

import (
	"testing"
	"time"

	"natsfabric/fabrictest"
)

func TestClocksApart(t *testing.T) {
	if testing.Short() {
		t.Skip("the first run builds the standard library and the server once more")
	}
	t.Parallel()
	for _, ahead := range []time.Duration{time.Hour, -90*time.Minute - 300*time.Millisecond} {
		s := fabrictest.StartServer(t, fabrictest.AsProcess(), fabrictest.WithClocks(ahead))
		kv := bucket(t, s.Connect(t), 1)
		before := time.Now()
		if _, err := kv.PutString(testContext(t), "k", "v"); err != nil {
			t.Fatal(err)
		}
		after := time.Now()
		e, err := kv.Get(testContext(t), "k")
		if err != nil {
			t.Fatal(err)
		}
		if at := e.Created().Add(-ahead); at.Before(before) || at.After(after) {
			t.Errorf("clock ahead by %v: stored at %v, want between %v and %v", ahead, at, before, after)
		}
	}
}
