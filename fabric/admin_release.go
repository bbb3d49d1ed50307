package fabric

import (
	"context"
	"sync"
	"time"

	"natsfabric/objects"
	"natsfabric/outcome"
)

const (
	// maxReleases is how many releases one node works on at a time.
	maxReleases = 4
	// releaseTime bounds the work on one release. What is left then is gone on with by the next request.
	releaseTime = 2 * time.Hour
	// releaseAnswer is how long a request waits for the end of the release before it is told how far that is.
	releaseAnswer = 2 * time.Second
	// releaseKept is for how long the end of a release can be asked for, maxEnded of how many at a time.
	releaseKept = 10 * time.Minute
	maxEnded    = 64
)

// ReleaseReply is the answer to the operator request `release`, whose request is an objects.ReleaseRequest. The first
// request begins the release at the node that answers; it goes on there whether or not anybody asks. The same request on
// Poll says how far it is. When nothing answers on Poll, that node has gone: the same request on the shared subject goes
// on with what is left, for what was released is not there any more. A release that is refused or fails is an error.
type ReleaseReply struct {
	Mesh       string `json:"mesh"`
	AnsweredBy string `json:"answered_by"`
	// Poll is the subject on which the same request asks for the progress.
	Poll    string    `json:"poll"`
	Started time.Time `json:"started"`
	objects.ReleaseReport
}

// releases are the releases that a node works on, or has ended lately.
type releases struct {
	n      *Node
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu   sync.Mutex
	ends bool // no new ones
	jobs map[objects.ReleaseRequest]*release
}

// release is one of them.
type release struct {
	started time.Time
	done    chan struct{}

	// Guarded by releases.mu.
	report objects.ReleaseReport
	err    error
	ended  time.Time
}

func (r *releases) init(n *Node) {
	r.n, r.jobs = n, map[objects.ReleaseRequest]*release{}
	r.ctx, r.cancel = context.WithCancel(context.Background())
}

// stop takes no new ones and asks those that are under way to end. What was released stays so.
func (r *releases) stop() {
	r.mu.Lock()
	r.ends = true
	r.mu.Unlock()
	r.cancel()
}

// wait waits for what was under way. A record write without an answer is pursued until the node's objects are closed, so
// it comes after that.
func (r *releases) wait() { r.wg.Wait() }

func adminRelease(ctx context.Context, n *Node, req adminRequest) (any, error) {
	var what objects.ReleaseRequest
	if err := req.decode(&what); err != nil {
		return nil, err
	}
	if what.ID == "" && what.RID == "" {
		return nil, req.invalid("it names nothing to release: one object is named by kind, id and generation, those of a process run by rid and lifecycle")
	}
	r := &n.admin.releases
	job, err := r.begin(what, req.own)
	if err != nil {
		return nil, err
	}
	answer := time.NewTimer(releaseAnswer)
	defer answer.Stop()
	select {
	case <-job.done:
	case <-answer.C:
	case <-ctx.Done():
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if job.err != nil {
		return nil, job.err
	}
	return ReleaseReply{
		Mesh: n.cfg.Mesh, AnsweredBy: n.cfg.RID, Poll: n.adminSubject("release"), Started: job.started, ReleaseReport: job.report,
	}, nil
}

// begin returns the release that the request means: one that is under way, with poll also one that has ended, else a
// new one.
func (r *releases) begin(what objects.ReleaseRequest, poll bool) (*release, error) {
	key := what // who asks, and how fast it is to be, make no other release
	key.By, key.Reason, key.Rate, key.Cursor = "", "", 0, ""
	r.mu.Lock()
	defer r.mu.Unlock()
	if job := r.jobs[key]; job != nil && (poll || job.ended.IsZero()) {
		return job, nil
	}
	running, ended := 0, 0
	var oldest objects.ReleaseRequest
	for k, job := range r.jobs {
		switch {
		case job.ended.IsZero():
			running++
		case time.Since(job.ended) > releaseKept:
			delete(r.jobs, k)
		default:
			if ended++; ended == 1 || job.ended.Before(r.jobs[oldest].ended) {
				oldest = k
			}
		}
	}
	switch {
	case r.ends:
		return nil, outcome.New("release", outcome.ShuttingDown, outcome.NotAccepted, "", "this node is stopping")
	case running >= maxReleases:
		return nil, outcome.New("release", outcome.Unavailable, outcome.NotAccepted, "", "this node works on as many releases as it may at a time")
	case ended >= maxEnded:
		delete(r.jobs, oldest)
	}
	job := &release{started: time.Now().UTC(), done: make(chan struct{})}
	r.jobs[key] = job
	r.wg.Go(func() { r.run(job, what) })
	return job, nil
}

// run works on a release to its end.
func (r *releases) run(job *release, what objects.ReleaseRequest) {
	defer close(job.done)
	ctx, cancel := context.WithTimeout(r.ctx, releaseTime)
	defer cancel()
	report, err := r.n.objects.Release(ctx, what, func(report objects.ReleaseReport) {
		r.mu.Lock()
		defer r.mu.Unlock()
		job.report = report
	})
	switch {
	case err == nil && report.Done:
	case r.ctx.Err() != nil:
		err = outcome.Wrap("release", outcome.ShuttingDown, outcome.Accepted, "", "this node is stopping; what is left is for another one to release", err)
	case err == nil:
		err = outcome.New("release", outcome.DeadlineExceeded, outcome.Accepted, "", "it was not done within "+releaseTime.String()+"; what is left is for another request")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	job.report, job.err, job.ended = report, err, time.Now()
}
