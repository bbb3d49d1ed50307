package supervise

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"natsfabric/fabrictest"
	"natsfabric/kvlocation"
)

// record reads a worker's record.
func (b *bed) record(t testing.TB, worker string) *fact[Record] {
	t.Helper()
	token, _ := escape(worker)
	f, err := readFact[Record](testContext(t), b.sh.Confirm, workerPrefix+token)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestAgentBeatsOnlyWithTheLoop(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	w := b.work(t, "w")
	fabrictest.Eventually(t, readyIn, "some beats, and the last in order", func() bool {
		r := b.record(t, "w")
		return r != nil && r.value.Beats >= 3 && w.agent.Err() == nil
	})
	r := b.record(t, "w")
	if r.value.State != Processing || r.value.Job != "job-1" || r.value.Progress == "" || r.value.Instance == "" {
		t.Errorf("record %+v", r.value)
	}
	for name, at := range map[string]time.Time{"state_since": r.value.StateSince, "heartbeat": r.value.Heartbeat, "progress_at": r.value.ProgressAt, "booted": r.value.Booted} {
		if d := r.time.Sub(at).Abs(); d > time.Minute { // the agent knows the store's time as well as the machine lets it
			t.Errorf("%s is %v from the store's time", name, d)
		}
	}
	// The loop hangs; the agent, its connection and this process live on.
	w.stop()
	last := b.record(t, "w").revision()
	fabrictest.Eventually(t, readyIn, "a second without a record, for one may have been on its way", func() bool {
		before := last
		b.outlast(t, time.Second)
		last = b.record(t, "w").revision()
		return last == before
	})
}

func TestAgentWritesChangesAtOnceAndTheRestRarely(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	a, err := NewAgent(testContext(t), b.sh, AgentConfig{Worker: "w", Every: time.Hour, TTL: 24 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 1000 {
		a.Loop().Tick(Idle, "", fmt.Sprint(i))
	}
	fabrictest.Eventually(t, readyIn, "the first beat", func() bool { return b.record(t, "w") != nil })
	a.Loop().Tick(Processing, "job-1", "")
	fabrictest.Eventually(t, readyIn, "the change", func() bool { return b.record(t, "w").value.Job == "job-1" })
	since := b.record(t, "w").value.StateSince
	a.Loop().Tick(Processing, "job-2", "")
	fabrictest.Eventually(t, readyIn, "the next job", func() bool { return b.record(t, "w").value.Job == "job-2" })
	r := b.record(t, "w").value
	if r.Beats != 3 || !r.StateSince.Equal(since) {
		t.Errorf("after 1002 ticks, of which two changed something: %+v", r)
	}
	if err := a.Close(testContext(t)); err != nil {
		t.Fatal(err)
	}
	if err := a.Close(testContext(t)); err != nil {
		t.Fatal(err)
	}
	if r := b.record(t, "w").value; r.State != Stopped {
		t.Errorf("after Close: %+v", r)
	}
}

func TestAgentOfAnEarlierRunIsSuperseded(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	old := b.work(t, "w")
	fabrictest.Eventually(t, readyIn, "the first run's beats", func() bool { r := b.record(t, "w"); return r != nil && r.value.Beats >= 2 })
	first := b.record(t, "w").value
	b.work(t, "w")
	fabrictest.Eventually(t, readyIn, "the first run to notice", func() bool { return errors.Is(old.agent.Err(), ErrSuperseded) })
	r := b.record(t, "w").value
	if r.Instance == first.Instance {
		t.Errorf("the record is the earlier run's: %+v", r)
	}
	fabrictest.Eventually(t, readyIn, "the second run to go on", func() bool { return b.record(t, "w").value.Beats > r.Beats+2 })
}

func TestAgentRefusesAWrongConfiguration(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	for _, cfg := range []AgentConfig{{}, {Worker: "w", Every: time.Millisecond}, {Worker: "w", TTL: 1500 * time.Millisecond}, {Worker: "\xff"}} {
		if _, err := NewAgent(testContext(t), b.sh, cfg); err == nil {
			t.Errorf("%+v is allowed", cfg)
		}
	}
}

// The write that the end of an agent cuts off may have been made: the last word is written over it, and nothing has failed.
func TestAgentEndsWhileItWrites(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	proxy := fabrictest.NewProxy(t, b.url)
	sh := openStore(t, connect(t, proxy.URL()), "far").Shared(kvlocation.BucketSupervise)
	core, said := observer.New(zap.WarnLevel)
	a, err := NewAgent(testContext(t), sh, AgentConfig{Worker: "w", Every: time.Hour, TTL: 24 * time.Hour, Logger: zap.New(core)})
	if err != nil {
		t.Fatal(err)
	}
	lost := proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: "$KV.FABRIC_m_SUPERVISE.worker.w", Answer: true, Action: fabrictest.Drop})
	a.Loop().Tick(Processing, "job-1", "")
	lost.Wait(t)
	if err := a.Close(testContext(t)); err != nil {
		t.Error(err)
	}
	if r := b.record(t, "w"); r == nil || r.value.State != Stopped {
		t.Errorf("the record is %+v", r)
	}
	for _, e := range said.All() {
		t.Errorf("an end in order logs: %s %v", e.Message, e.ContextMap())
	}
}

// What the loop said last stands when the agent ends in order: that it failed, and nothing over the record of a later run.
func TestAgentsLastWord(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	agent := func() *Agent {
		t.Helper()
		a, err := NewAgent(testContext(t), b.sh, AgentConfig{Worker: "w", Every: time.Hour, TTL: 24 * time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	first := agent()
	first.Loop().Tick(Failed, "job-1", "")
	if err := first.Close(testContext(t)); err != nil {
		t.Fatal(err)
	}
	if r := b.record(t, "w"); r == nil || r.value.State != Failed {
		t.Fatalf("it had failed, and the record is %+v", r)
	}
	second := agent()
	second.Loop().Tick(Processing, "job-2", "")
	fabrictest.Eventually(t, readyIn, "the second run's record", func() bool { return b.record(t, "w").value.Job == "job-2" })
	third := agent()
	third.Loop().Tick(Processing, "job-3", "")
	fabrictest.Eventually(t, readyIn, "the third run's record", func() bool { return b.record(t, "w").value.Job == "job-3" })
	second.Loop().Tick(Idle, "", "")
	fabrictest.Eventually(t, readyIn, "the second run to notice", func() bool { return errors.Is(second.Err(), ErrSuperseded) })
	second.Loop().Tick(Processing, "job-4", "")
	if err := second.Close(testContext(t)); err != nil {
		t.Fatal(err)
	}
	if r := b.record(t, "w").value; r.Job != "job-3" || r.State != Processing {
		t.Errorf("an earlier run has written over the record: %+v", r)
	}
	if err := third.Close(testContext(t)); err != nil {
		t.Fatal(err)
	}
}

// A tick that could not be written while it was young never is: the record would claim a heartbeat that the loop did not have.
func TestOldTickIsNotWritten(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	proxy := fabrictest.NewProxy(t, b.url)
	sh := openStore(t, connect(t, proxy.URL()), "far").Shared(kvlocation.BucketSupervise)
	a, err := NewAgent(testContext(t), sh, AgentConfig{Worker: "w", Every: 100 * time.Millisecond, TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	away := proxy.Arm(fabrictest.Trigger{Dir: fabrictest.ToServer, Subject: "$KV.FABRIC_m_SUPERVISE.worker.w", Times: -1, Action: fabrictest.Drop})
	a.Loop().Tick(Processing, "old", "")
	away.Wait(t)
	b.outlast(t, 3*time.Second) // it is young for a second
	away.Disarm()
	b.outlast(t, 3*time.Second)
	if r := b.record(t, "w"); r != nil {
		t.Errorf("a tick that was seconds old was written: %+v", r.value)
	}
	fabrictest.Eventually(t, readyIn, "a later tick's record", func() bool {
		a.Loop().Tick(Processing, "new", "")
		r := b.record(t, "w")
		return r != nil && r.value.Job == "new"
	})
	if err := a.Close(testContext(t)); err != nil {
		t.Fatal(err)
	}
}
