package supervise

import (
	"context"
	"sync"

	"natsfabric/internal/monotime"
)

// tick is what the loop said last.
type tick struct {
	state         State
	job, progress string
	at            monotime.Time
}

// Loop is the handle of a worker's own loop. Ticking it from the loop that does the work is what makes the heartbeat
// mean something: a ticker, a timer or a goroutine of its own that ticks would go on beating while the work hangs, and
// nobody would ever be told. There is no call that begins such a thing; Work is the form in which it can't be got wrong.
type Loop struct {
	agent *Agent

	mu  sync.Mutex
	now tick // guarded by mu
}

// Tick says what the loop does now, once around: the state, the job (empty between jobs) and any text that changes as
// the job gets on. It costs a few hundred nanoseconds and never waits; a record is written at once when state or job
// changed, else at most every AgentConfig.Every. Texts above MaxState, MaxJob and MaxProgress are cut.
func (l *Loop) Tick(state State, job, progress string) {
	if state == "" {
		state = Idle
	}
	l.mu.Lock()
	l.now = tick{state: State(clip(string(state), MaxState)), job: job, progress: progress, at: monotime.Now()}
	l.mu.Unlock()
	select {
	case l.agent.wake <- struct{}{}:
	default:
	}
}

func (l *Loop) last() tick {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.now
}

// Work is a worker's loop: it calls step again and again until ctx ends or step returns an error, and ticks between the
// calls. step does one piece of work, in the order of the heartbeat's interval or shorter, and returns what the loop
// does next; a longer piece ticks the loop itself as it gets on. The error is step's, or the context's.
func (l *Loop) Work(ctx context.Context, step func(ctx context.Context) (state State, job, progress string, err error)) error {
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		state, job, progress, err := step(ctx)
		if err != nil {
			return err
		}
		l.Tick(state, job, progress)
	}
}
