package leash

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// What does not return is given up once, and called again only after it has come back.
func TestNothingPilesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l Leash
		release := make(chan struct{})
		var calls atomic.Int32
		call := func(name string, f func(context.Context) (int, error)) (int, error) {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			return Call(ctx, &l, name, time.Second, f)
		}
		stuck := func(context.Context) (int, error) { calls.Add(1); <-release; return 7, nil }
		if _, err := call("a", stuck); !errors.Is(err, ErrLate) || l.Out() != 1 {
			t.Fatalf("%v, %d out", err, l.Out())
		}
		for range 100 {
			if _, err := call("a", stuck); !errors.Is(err, ErrOut) {
				t.Fatal(err)
			}
		}
		if calls.Load() != 1 || l.Out() != 1 {
			t.Fatalf("%d calls, %d out", calls.Load(), l.Out())
		}
		if v, err := call("b", func(context.Context) (int, error) { return 1, nil }); v != 1 || err != nil {
			t.Fatalf("another name: %d, %v", v, err)
		}
		close(release)
		synctest.Wait()
		if v, err := call("a", stuck); v != 7 || err != nil || l.Out() != 0 {
			t.Fatalf("after it came back: %d, %v, %d out", v, err, l.Out())
		}
	})
}

// One that returns just as it is given up counts as one or the other, and is not out for ever.
func TestReturnsAsItIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l Leash
		var late int
		for range 2000 {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			end := time.Now().Add(2 * time.Second)
			v, err := Call(ctx, &l, "a", time.Second, func(context.Context) (int, error) {
				<-time.After(time.Until(end))
				return 7, nil
			})
			cancel()
			switch {
			case errors.Is(err, ErrLate):
				late++
			case err != nil || v != 7:
				t.Fatal(v, err)
			}
			synctest.Wait()
			if n := l.Out(); n != 0 {
				t.Fatalf("%d are out after all have returned", n)
			}
		}
		t.Logf("%d of 2000 came too late", late)
	})
}

func TestCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l Leash
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, err := Call(ctx, &l, "a", time.Second, func(context.Context) (int, error) { panic("boom") })
		if err == nil || !strings.Contains(err.Error(), "boom") {
			t.Fatal(err)
		}
		// It may come a little late.
		v, err := Call(ctx, &l, "a", time.Second, func(ctx context.Context) (int, error) {
			<-ctx.Done()
			<-time.After(time.Second / 2)
			return 3, nil
		})
		if v != 3 || err != nil || l.Out() != 0 {
			t.Fatalf("%d, %v, %d out", v, err, l.Out())
		}
	})
}
