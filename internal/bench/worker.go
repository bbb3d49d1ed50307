package bench

import (
	"context"
	"encoding/json"
	"time"
)

// worker is what roles have in common that run work: each piece is prepared once and runs again and again.
type worker struct {
	prepare  func(ctx context.Context, k sliceKey) (work, error)
	prepared map[sliceKey]work
	recorder recorder
	load     *load
}

// sliceKey says which operation of which side is measured.
type sliceKey struct {
	Do      string `json:"do"`
	Side    string `json:"side"`
	Payload int    `json:"payload"`
	Callers int    `json:"callers"`
	Objects int    `json:"objects"` // that doOthers asks
	// Pace is the operations of all callers per second that doUpdate makes; 0: one after the other.
	Pace int `json:"pace,omitempty"`
}

type sliceArgs struct {
	sliceKey
	For time.Duration `json:"for"`
}

// do runs the operations of a worker.
func (w *worker) do(ctx context.Context, op string, raw json.RawMessage) (any, error) {
	switch op {
	case "slice":
		a, err := decode[sliceArgs](raw)
		if err != nil {
			return nil, err
		}
		job, err := w.work(ctx, a.sliceKey)
		if err != nil {
			return nil, err
		}
		return w.recorder.measure(ctx, a.Callers, a.For, job)
	case "load": // until "unload"
		k, err := decode[sliceKey](raw)
		if err != nil {
			return nil, err
		}
		job, err := w.work(ctx, k)
		if err != nil {
			return nil, err
		}
		w.load = startLoad(k.Callers, job)
		return nil, nil
	case "unload": // its operations per second
		return w.unload()
	}
	return nil, unknownOp(op)
}

func (w *worker) work(ctx context.Context, k sliceKey) (work, error) {
	if job, ok := w.prepared[k]; ok {
		return job, nil
	}
	job, err := w.prepare(ctx, k)
	if err != nil {
		return work{}, err
	}
	if w.prepared == nil {
		w.prepared = make(map[sliceKey]work)
	}
	w.prepared[k] = job
	return job, nil
}

// unload ends the load, if there is one.
func (w *worker) unload() (float64, error) {
	if w.load == nil {
		return 0, nil
	}
	l := w.load
	w.load = nil
	return l.stop()
}
