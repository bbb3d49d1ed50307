package fence

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"natsfabric/kvlocation"
	"natsfabric/outcome"
)

// Status is a leadership's record as it stands in the store.
type Status struct {
	Leadership
	// Epoch is the store's identity, the first part of the token.
	Epoch uint64
	// Grant is the revision of the holder's grant, the second part of its token.
	Grant uint64
	// Revision is the record's, and Written when it was written, on the store's clock (zero right after an own write).
	Revision uint64
	Written  time.Time
}

// statusOf is what a leadership's record says; one that never was has a name and no phase.
func statusOf(sh *kvlocation.Shared, name string, v view) Status {
	s := Status{Leadership: v.rec, Epoch: sh.Epoch(), Revision: v.at.Revision, Written: v.at.Time}
	s.Name = name
	if v.rec.Holder != nil {
		s.Grant = v.term()
	}
	return s
}

// Leaderships returns all leaderships of the mesh, as any replica shows them, at most limit of them (0: 1000).
// Records that cannot be understood are left out and named in the error beside the others.
func Leaderships(ctx context.Context, store *kvlocation.Store, limit int) ([]Status, error) {
	if limit <= 0 {
		limit = 1000
	}
	sh := store.Shared(kvlocation.BucketFence)
	var (
		out []Status
		bad []error
	)
	err := sh.List(ctx, "leader.", func(e kvlocation.SharedEntry) bool {
		v, err := parse(e)
		if err != nil {
			bad = append(bad, err)
			return len(bad) < limit
		}
		out = append(out, statusOf(sh, strings.TrimPrefix(e.Key, "leader."), v))
		return len(out) < limit
	})
	return out, errors.Join(append(bad, err)...)
}

// ConfirmFenced records that a person vouches for it: the node that led can do no more harm. Promotion goes on from it. It is
// allowed while the node is being fenced, and of one that must be fenced and nobody is there to do so once it has been silent
// for its TTL, which ConfirmFenced waits for: a node does not fence itself, so the only candidate that is left may be the
// one that was restarted. by and reason are kept in the record. InvalidOperation says that the leadership is not being fenced
// and its holder renews, or that it is another node; Unavailable with Unknown that it is not known whether it was recorded.
func ConfirmFenced(ctx context.Context, store *kvlocation.Store, name, node, by, reason string) (Status, error) {
	if strings.TrimSpace(by) == "" || strings.TrimSpace(reason) == "" || len(by)+len(reason) > 1000 {
		return Status{}, outcome.New("confirm fence", outcome.InvalidOperation, outcome.NotAccepted, fmt.Sprintf("leadership %q", name),
			"who confirms and the reason must be given, in at most 1000 bytes")
	}
	sh := store.Shared(kvlocation.BucketFence)
	var (
		quiet silence
		first uint64
	)
	for {
		v, err := confirmed(ctx, sh, name)
		if err != nil {
			return Status{}, err
		}
		if !v.at.Exists() {
			return Status{}, outcome.New("confirm fence", outcome.NotFound, outcome.NotAccepted, fmt.Sprintf("leadership %q", name), "there is no such leadership")
		}
		idle := quiet.observe(v)
		if first == 0 {
			first = v.at.Revision
		}
		if l := v.rec; l.Phase == PhaseLed && l.MustFence && l.Holder.Node == node && !idle && v.at.Revision == first {
			select {
			case <-ctx.Done():
				return Status{}, outcome.FromContext(ctx, "confirm fence", outcome.NotAccepted, fmt.Sprintf("leadership %q", name), "waiting whether its holder is silent for its TTL")
			case <-time.After(min(l.TTL()/6, time.Second)):
			}
			continue
		}
		v, err = change(ctx, MaxTermTTL, sh, name, v, vouch{node: node, by: by, reason: reason, at: time.Now().UTC(), idle: idle && v.rec.MustFence})
		if errors.Is(err, errLost) {
			if v.rec.Confirmed != nil && v.rec.Confirmed.By == by {
				return statusOf(sh, name, v), nil
			}
			continue // a device's answer was written meanwhile
		}
		return statusOf(sh, name, v), err
	}
}
