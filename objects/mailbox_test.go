package objects

import (
	"testing"

	"pgregory.net/rapid"
)

// A mailbox behaves as a list with bounds, whatever is done to it in whatever order.
func TestMailboxModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		typ := &Type{Mailbox: rapid.IntRange(1, 5).Draw(t, "mailbox"), MailboxBytes: rapid.IntRange(1, 50).Draw(t, "bytes")}
		var box mailbox
		var worker ahead
		var model []*envelope
		count := func() (n, bytes int) {
			for _, e := range model {
				if e.kind == mailMessage || e.kind == mailFramework {
					n, bytes = n+1, bytes+int(e.size)
				}
			}
			return n, bytes
		}
		// What the worker has begun with counts until the mailbox is asked exactly.
		begun, begunBytes := 0, 0
		inAdvance := func() int {
			if box.ahead == nil {
				begun, begunBytes = 0, 0
				return 0
			}
			return int(worker.n - worker.begun.Load())
		}
		t.Repeat(map[string]func(*rapid.T){
			"push": func(t *rapid.T) {
				e := &envelope{more: &noMore, kind: rapid.SampledFrom([]mailKind{mailMessage, mailTimer, mailFramework, mailClose}).Draw(t, "kind")}
				if e.kind == mailMessage {
					e.size = int32(rapid.IntRange(0, 60).Draw(t, "size"))
				}
				n, bytes := count()
				want := whyNot
				switch {
				case e.kind == mailMessage && int(e.size) > typ.MailboxBytes:
					want = whyTooLarge
				case e.kind == mailMessage && (n >= typ.Mailbox || bytes+int(e.size) > typ.MailboxBytes),
					e.kind == mailFramework && n >= typ.Mailbox+frameworkReserve:
					want = whyFull
				}
				if got := box.room(e, typ); got != want {
					t.Fatalf("%d messages of %d bytes: room for %+v is %d, want %d", n, bytes, e, got, want)
				}
				if want == whyNot {
					box.push(e)
					model = append(model, e)
				}
			},
			"take in advance": func(t *rapid.T) {
				box.recall()
				begun, begunBytes = 0, 0
				box.takeAhead(&worker)
			},
			"begin with one of those": func(t *rapid.T) {
				out := inAdvance()
				e := worker.next()
				if out == 0 {
					if e != nil {
						t.Fatal("mail that was recalled")
					}
					return
				}
				if e != model[0] || e.next != nil || e.unnoticed {
					t.Fatal("not the oldest, or before its notice")
				}
				model = model[1:]
				begun, begunBytes = begun+1, begunBytes+int(e.size)
			},
			"pop": func(t *rapid.T) {
				box.recall()
				e := box.pop()
				if len(model) == 0 || model[0].unnoticed {
					if e != nil {
						t.Fatal("mail out of nothing, or before its notice")
					}
					return
				}
				if e != model[0] || e.next != nil {
					t.Fatal("not the oldest")
				}
				model = model[1:]
				if rapid.IntRange(0, 3).Draw(t, "back") == 0 {
					box.putBack(e)
					model = append([]*envelope{e}, model...)
				}
			},
			"put before the rest": func(t *rapid.T) {
				var front mailbox
				var list []*envelope
				for range rapid.IntRange(0, 3).Draw(t, "mail") {
					e := &envelope{more: &noMore, kind: mailMessage, size: 1}
					front.push(e)
					list = append(list, e)
				}
				box.prepend(front)
				model = append(list, model...)
			},
			"begin a notice": func(t *rapid.T) {
				if box.recall(); len(model) > 0 {
					if e := rapid.SampledFrom(model).Draw(t, "mail"); !e.unnoticed {
						e.unnoticed = true
						box.notices++
					}
				}
			},
			"end a notice": func(t *rapid.T) {
				for _, e := range model {
					if e.unnoticed {
						e.unnoticed = false
						box.notices--
						return
					}
				}
			},
			"cut what is held": func(t *rapid.T) {
				accepted := rapid.IntRange(0, len(model)).Draw(t, "accepted")
				box.recall()
				for i, e := range model {
					e.word = envLeft
					if i < accepted {
						e.word = envLeft | envAccepted
					}
				}
				var stays, cut mailbox
				left := model[:accepted:accepted]
				list := box.cutHeld()
				for i := accepted; i < len(model); i++ {
					e := list
					if e != model[i] {
						t.Fatal("another one was cut")
					}
					list, e.next = e.next, nil
					cut.took(e, 1)
					if rapid.Bool().Draw(t, "stays") {
						stays.push(e)
						left = append(left, e)
					} else if e.unnoticed {
						box.notices--
					}
				}
				if list != nil {
					t.Fatal("too much was cut")
				}
				box.append(stays, cut)
				model = left
			},
			"take all": func(t *rapid.T) {
				var want, left []*envelope
				for _, e := range model {
					if e.unnoticed {
						left = append(left, e)
					} else {
						want = append(want, e)
					}
				}
				n := 0
				for e := box.takeAll(); e != nil; e = e.next {
					if n == len(want) || e != want[n] {
						t.Fatal("another order")
					}
					n++
				}
				if n != len(want) {
					t.Fatalf("%d of %d", n, len(want))
				}
				model = left
			},
			"": func(t *rapid.T) {
				out := inAdvance()
				if n, bytes := count(); int(box.count) != n+begun || int(box.bytes) != bytes+begunBytes {
					t.Fatalf("counts %d of %d bytes, want %d of %d", box.count, box.bytes, n+begun, bytes+begunBytes)
				}
				if left := len(model) - out; (box.head == nil) != (left == 0) || (box.tail == nil) != (left == 0) {
					t.Fatal("head and tail")
				}
			},
		})
	})
}
