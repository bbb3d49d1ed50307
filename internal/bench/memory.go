package bench

import (
	"runtime"
	"runtime/debug"
)

// memory is what a process has in use, in bytes.
type memory struct {
	Heap int64 `json:"heap"` // live objects
	RSS  int64 `json:"rss"`  // negative where it can't be told
}

// memoryInUse collects garbage and gives free pages back first.
func memoryInUse() memory {
	runtime.GC() // finishes the sweep of the collection before
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	rss, ok := residentMemory()
	if !ok {
		rss = -1
	}
	return memory{Heap: int64(m.HeapAlloc), RSS: rss}
}

// perObject is what n objects added since before.
func (m memory) perObject(before memory, n int) Sample {
	s := Sample{Heap: float64(m.Heap-before.Heap) / float64(n)}
	if before.RSS >= 0 && m.RSS >= 0 {
		s[RSS] = float64(m.RSS-before.RSS) / float64(n)
	}
	return s
}
