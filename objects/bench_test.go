package objects

import (
	"context"
	"fmt"
	"os"
	goruntime "runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
)

var echo = HandlerFunc(func(_ context.Context, req *Request) (Reply, error) { return Reply{Data: req.Data()}, nil })

// BenchmarkLocalRequest is a Request to an object of the same process, by callers that each have an object of their own.
func BenchmarkLocalRequest(b *testing.B) {
	for _, callers := range []int{1, 64} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			h := newHost(b, 10_000, Type{Name: "echo"})
			objects := make([]*object, callers)
			for i := range objects {
				objects[i] = h.object(b, strconv.Itoa(i), echo)
			}
			data := make([]byte, 16)
			share(b, callers, func(i, n int) {
				for range n {
					if _, err := h.rt.request(context.Background(), objects[i], opRequest, data, nil, false); err != nil {
						b.Error(err)
						return
					}
				}
			})
		})
	}
}

// BenchmarkLocalSend is senders that each have an object of their own, in the same process, and at most half a mailbox of
// messages under way.
func BenchmarkLocalSend(b *testing.B) {
	for _, senders := range []int{1, 64} {
		b.Run(fmt.Sprintf("senders=%d", senders), func(b *testing.B) {
			const window = DefaultMailbox / 2
			h := newHost(b, 10_000, Type{Name: "sink"})
			objects, turns := make([]*object, senders), make([]chan struct{}, senders)
			for i := range objects {
				c, n := make(chan struct{}, 2), 0
				turns[i] = c
				objects[i] = h.object(b, strconv.Itoa(i), HandlerFunc(func(context.Context, *Request) (Reply, error) {
					if n++; n%(window/2) == 0 {
						c <- struct{}{}
					}
					return Reply{}, nil
				}))
			}
			data := make([]byte, 16)
			share(b, senders, func(i, n int) {
				for sent := range n {
					if sent >= window && sent%(window/2) == 0 {
						<-turns[i]
					}
					if _, err := h.rt.request(context.Background(), objects[i], opSend, data, nil, true); err != nil {
						b.Error(err)
						return
					}
				}
				if _, err := h.rt.request(context.Background(), objects[i], opRequest, data, nil, false); err != nil {
					b.Error(err)
				}
			})
		})
	}
}

// BenchmarkIdleObjects is what an object costs that has had a turn and has none now, beside its own state.
func BenchmarkIdleObjects(b *testing.B) {
	const objects = 1_000_000
	for range b.N {
		h := newHost(b, 10_000, Type{Name: "idle", Capacity: objects})
		heap, rss := heapNow(), rssNow()
		for i := range objects {
			h.object(b, "idle-object-"+strconv.Itoa(i), echo)
		}
		h.rt.each(func(o *object) {
			if _, err := h.rt.request(context.Background(), o, opRequest, nil, nil, false); err != nil {
				b.Error(err)
			}
		})
		b.ReportMetric(float64(heapNow()-heap)/objects, "heap-B/object")
		b.ReportMetric(float64(rssNow()-rss)/objects, "rss-B/object")
		goruntime.KeepAlive(h)
	}
}

func heapNow() uint64 {
	goruntime.GC()
	goruntime.GC()
	var m goruntime.MemStats
	goruntime.ReadMemStats(&m)
	return m.HeapAlloc
}

// rssNow is this process's memory as the system counts it; 0 where it cannot be read.
func rssNow() uint64 {
	data, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	pages, _ := strconv.ParseUint(strings.Fields(string(data))[1], 10, 64)
	return pages * uint64(os.Getpagesize())
}

// share has f called by each of the callers for its part of b.N.
func share(b *testing.B, callers int, f func(i, n int)) {
	b.ReportAllocs()
	b.ResetTimer()
	var wg sync.WaitGroup
	for i := range callers {
		n := b.N / callers
		if i < b.N%callers {
			n++
		}
		wg.Go(func() { f(i, n) })
	}
	wg.Wait()
}
