package fabric

import (
	"context"
	"fmt"
	"sync"
	"time"

	"natsfabric/outcome"
)

const (
	// maxJobs is how many jobs of one verb a node works on at a time.
	maxJobs = 4
	// jobAnswer is how long a request waits for the end of its job before it is told how far that is.
	jobAnswer = 2 * time.Second
	// jobKept is for how long the end of a job can be asked for, maxEnded of how many at a time.
	jobKept  = 10 * time.Minute
	maxEnded = 64
)

// jobs are what a node works on for operators beyond the time of one request, or has ended lately: each under the
// request that means it. K is that request without what makes no other job, P how far a job is.
type jobs[K comparable, P any] struct {
	verb   string
	within time.Duration // bounds the work on one job
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu   sync.Mutex
	ends bool // no new ones
	all  map[K]*job[P]
}

// job is one of them.
type job[P any] struct {
	started time.Time
	done    chan struct{}

	// Guarded by jobs.mu.
	progress P
	err      error
	ended    time.Time
}

func (j *jobs[K, P]) init(verb string, within time.Duration) {
	j.verb, j.within, j.all = verb, within, map[K]*job[P]{}
	j.ctx, j.cancel = context.WithCancel(context.Background())
}

// stop takes no new ones and asks those that are under way to end. What was done stays so.
func (j *jobs[K, P]) stop() {
	j.mu.Lock()
	j.ends = true
	j.mu.Unlock()
	j.cancel()
}

// wait waits for what was under way.
func (j *jobs[K, P]) wait() { j.wg.Wait() }

// find returns the job that the request means, under way or ended lately.
func (j *jobs[K, P]) find(key K) (*job[P], error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if old := j.all[key]; old != nil {
		return old, nil
	}
	return nil, outcome.New(j.verb, outcome.NotFound, outcome.NotAccepted, "", "this node has worked on no such request in the last "+jobKept.String())
}

// begin returns the job that the request means if it is under way, else a new one, which runs work.
func (j *jobs[K, P]) begin(key K, work func(ctx context.Context, note func(P)) (P, error)) (*job[P], error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if old := j.all[key]; old != nil && old.ended.IsZero() {
		return old, nil
	}
	running, ended := 0, 0
	var oldest K
	for k, other := range j.all {
		switch {
		case other.ended.IsZero():
			running++
		case time.Since(other.ended) > jobKept:
			delete(j.all, k)
		default:
			if ended++; ended == 1 || other.ended.Before(j.all[oldest].ended) {
				oldest = k
			}
		}
	}
	switch {
	case j.ends:
		return nil, outcome.New(j.verb, outcome.ShuttingDown, outcome.NotAccepted, "", "this node is stopping")
	case running >= maxJobs:
		return nil, outcome.New(j.verb, outcome.Unavailable, outcome.NotAccepted, "",
			fmt.Sprintf("this node works on %d such requests, as many as it may at a time", running))
	case ended >= maxEnded:
		delete(j.all, oldest)
	}
	begun := &job[P]{started: time.Now().UTC(), done: make(chan struct{})}
	j.all[key] = begun
	j.wg.Go(func() { j.run(begun, work) })
	return begun, nil
}

// run works on a job to its end.
func (j *jobs[K, P]) run(begun *job[P], work func(context.Context, func(P)) (P, error)) {
	defer close(begun.done)
	ctx, cancel := context.WithTimeout(j.ctx, j.within)
	defer cancel()
	progress, err := work(ctx, func(p P) {
		j.mu.Lock()
		defer j.mu.Unlock()
		begun.progress = p
	})
	j.mu.Lock()
	defer j.mu.Unlock()
	begun.progress, begun.err, begun.ended = progress, err, time.Now()
}

// await waits a little for the end of a job, and returns how far it is, or the error with which it ended.
func (j *jobs[K, P]) await(ctx context.Context, begun *job[P]) (progress P, done bool, err error) {
	answer := time.NewTimer(jobAnswer)
	defer answer.Stop()
	select {
	case <-begun.done:
	case <-answer.C:
	case <-ctx.Done():
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	return begun.progress, !begun.ended.IsZero(), begun.err
}
