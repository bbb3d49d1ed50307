package objects

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	goruntime "runtime"
	"slices"
	"testing"

	"natsfabric/outcome"
)

// What a worker has taken in advance is still the mailbox's: whatever happens during the turn before it finds it there, in
// its place.
func TestTakenInAdvance(t *testing.T) {
	t.Parallel()
	all := []string{"first", "a", "b", "c"}
	for name, c := range map[string]struct {
		during func(t *testing.T, h *host, o *object, j *journal)
		after  func(t *testing.T, h *host, o *object, j *journal)
		want   []string
		goexit bool
		in     string // which turn it happens in; "first" if empty
	}{
		"nothing happens": {want: all},
		"the mailbox is full": {want: append(slices.Clone(all), "d"), during: func(t *testing.T, h *host, o *object, _ *journal) {
			if err := h.send(o, "d"); err != nil { // the first one counts no more
				t.Error(err)
			}
			wantOutcome(t, h.send(o, "e"), outcome.CapacityExceeded, outcome.NotAccepted)
			if n, bytes := o.waiting(); n != 4 || bytes != 4 {
				t.Errorf("%d messages of %d bytes wait", n, bytes)
			}
		}},
		"the mailbox is full, but for what has begun": {in: "a", want: append(slices.Clone(all), "d", "e"), during: func(t *testing.T, h *host, o *object, _ *journal) {
			for _, data := range []string{"d", "e"} { // a counts no more
				if err := h.send(o, data); err != nil {
					t.Error(err)
				}
			}
			wantOutcome(t, h.send(o, "f"), outcome.CapacityExceeded, outcome.NotAccepted)
		}},
		"one has begun": {in: "a", want: all, during: func(t *testing.T, _ *host, o *object, _ *journal) {
			if n, bytes := o.waiting(); n != 2 || bytes != 2 {
				t.Errorf("%d messages of %d bytes wait", n, bytes)
			}
		}},
		"a turn goes first": {want: []string{"first", "the other turn", "a", "b", "c"}, during: func(t *testing.T, _ *host, o *object, j *journal) {
			e := newOwn(mailFramework)
			e.own().run = func(context.Context) error { j.note("the other turn"); return nil }
			if !o.offerFirst(e) {
				t.Error("the turn was not taken")
			}
		}},
		"it is sealed": {
			want: all,
			during: func(t *testing.T, _ *host, o *object, _ *journal) {
				if _, err := o.beginSeal(newUnitSeal(o, false)); err != nil {
					t.Error(err)
				}
			},
			after: func(t *testing.T, _ *host, o *object, j *journal) {
				within(t, o.sealed().rested, "the rest")
				if got := j.entries(); len(got) != 1 {
					t.Errorf("a sealed object ran %v", got)
				}
				o.unseal(mailbox{})
			},
		},
		"the lease lapses": {
			want:   all,
			during: func(_ *testing.T, h *host, _ *object, _ *journal) { h.lapse() },
			after: func(t *testing.T, h *host, o *object, j *journal) {
				eventually(t, func() error {
					if _, running := o.running(); running {
						return errors.New("a turn runs")
					}
					return nil
				})
				if got := j.entries(); len(got) != 1 {
					t.Errorf("ran %v after the lapse", got)
				}
				h.regain()
			},
		},
		"it is closed":                   {want: all[:1], during: func(_ *testing.T, h *host, o *object, _ *journal) { h.rt.drop(o, errClosed(o)) }},
		"the handler ends the goroutine": {want: all, goexit: true},
		"another object's turn is due": {want: []string{"first", "the other object", "a", "b", "c"}, during: func(t *testing.T, h *host, o *object, j *journal) {
			other := h.object(t, "other", HandlerFunc(func(context.Context, *Request) (Reply, error) {
				j.note("the other object")
				return Reply{}, nil
			}))
			if err := h.send(other, ""); err != nil {
				t.Error(err)
			}
			eventually(t, func() error {
				if d, _ := o.running(); d <= timeBudget {
					return errors.New("its time is not over")
				}
				return nil
			})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, 1, Type{Name: "t", Mailbox: 4})
			in := cmp.Or(c.in, "first")
			j := &journal{}
			begun, gate := make(chan string), make(chan struct{})
			o := h.object(t, "o", HandlerFunc(func(_ context.Context, req *Request) (Reply, error) {
				data := string(req.Data())
				if data != "hold" {
					j.note(data)
				}
				if data == "hold" || data == in {
					begun <- data
					<-gate
				}
				if data == "first" && c.goexit {
					goruntime.Goexit()
				}
				return Reply{}, nil
			}))
			send := func(data string) {
				t.Helper()
				if err := h.send(o, data); err != nil {
					t.Fatal(err)
				}
			}
			send("hold")
			within(t, begun, "the first turn")
			for _, data := range all {
				send(data)
			}
			gate <- struct{}{}
			within(t, begun, "the next turn")
			if c.during != nil {
				c.during(t, h, o, j)
			}
			close(gate)
			if c.after != nil {
				c.after(t, h, o, j)
			}
			eventually(t, func() error {
				if got := j.entries(); !slices.Equal(got, c.want) {
					return fmt.Errorf("ran %q, want %q", got, c.want)
				}
				return nil
			})
			eventually(t, func() error { // nothing is left, and everything is accounted for
				if n, _ := o.waiting(); n != 0 {
					return fmt.Errorf("%d messages are left", n)
				}
				if s := h.counts(); s.Accepted != s.Run+s.Dropped {
					return fmt.Errorf("counted %+v", s)
				}
				return nil
			})
		})
	}
}
