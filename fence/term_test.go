package fence

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"natsfabric/internal/monotime"
)

// FE-4. A renewal that is acknowledged while its term is resigned does not revive the term: otherwise its writes would be let
// in for a whole TTL beside those of the next leader, who need not wait.
func TestRenewalBesideTheEnd(t *testing.T) {
	t.Parallel()
	e := &Election{}
	for range 1000 {
		term := &Term{e: e}
		term.ctx, term.cancel = context.WithCancelCause(context.Background())
		term.timer = time.NewTimer(time.Hour)
		end := monotime.Now().Add(time.Hour)
		term.deadline.Store(int64(end))
		var both sync.WaitGroup
		both.Go(func() {
			for range 300 { // so that one of them is under way
				term.extend(end.Add(time.Second))
			}
		})
		both.Go(func() { term.finish(ErrResigned) })
		both.Wait()
		if _, err := term.FenceToken(); !errors.Is(err, ErrResigned) {
			t.Fatalf("the token of a resigned term: %v", err)
		}
	}
}
