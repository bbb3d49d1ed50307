package device

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"natsfabric/fabrictest"
	"natsfabric/fence"
)

// sleeper starts a child that ignores SIGTERM.
func sleeper(t *testing.T) (*exec.Cmd, fence.Target) {
	t.Helper()
	cmd := exec.Command("/bin/sh", "-c", `trap "" TERM; echo ready; while :; do sleep 1000; done`)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) //nolint:errcheck // it may be gone
		cmd.Wait()                                      //nolint:errcheck // it was killed
	})
	if _, err := out.Read(make([]byte, 16)); err != nil {
		t.Fatal(err)
	}
	labels, err := ProcessLabels(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	return cmd, fence.Target{Node: "n1", Labels: labels}
}

// alive asks the system itself, apart from the device.
func alive(pid int) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	return err == nil && !strings.Contains(string(b), "State:\tZ")
}

func TestConformance(t *testing.T) {
	// FE-6: from outside of the process, which is asked nothing: it may be frozen.
	t.Run("FE-6", processes)
}

// processes fences a frozen process, one that ignores SIGTERM, and one that runs: fenced is said when it is gone and not
// before.
func processes(t *testing.T) {
	for name, x := range map[string]struct {
		grace  time.Duration
		freeze bool
	}{"kill": {}, "ask first": {grace: 100 * time.Millisecond}, "frozen": {freeze: true}, "frozen, ask first": {100 * time.Millisecond, true}} {
		t.Run(name, func(t *testing.T) {
			cmd, tg := sleeper(t)
			d := NewProcess("kill", x.grace)
			if x.freeze {
				if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
					t.Fatal(err)
				}
			}
			if r := d.Check(testContext(t), tg); r.Answer != fence.NotFenced || !alive(cmd.Process.Pid) {
				t.Fatalf("before: %+v, alive=%t", r, alive(cmd.Process.Pid))
			}
			if r := d.Fence(testContext(t), tg); r.Answer != fence.Fenced {
				t.Fatalf("%+v", r)
			}
			if alive(cmd.Process.Pid) {
				t.Fatal("the device says fenced, and the process is alive")
			}
			for range 2 { // as a zombie, and when it was waited for
				if r := d.Check(testContext(t), tg); r.Answer != fence.Fenced {
					t.Fatalf("after: %+v", r)
				}
				cmd.Wait() //nolint:errcheck // it was killed
			}
		})
	}
}

// A process ID that was used again belongs to another process: that one is not touched.
func TestProcessIDUsedAgain(t *testing.T) {
	cmd, tg := sleeper(t)
	d := NewProcess("kill", 0)
	change := func(key, value string) fence.Target {
		out := tg
		out.Labels = maps.Clone(tg.Labels)
		out.Labels[key] = value
		return out
	}
	for name, x := range map[string]struct {
		target fence.Target
		want   fence.Answer
	}{
		"started later":       {change(LabelStart, "12"), fence.Fenced},
		"an earlier boot":     {change(LabelBoot, "other"), fence.Fenced},
		"another machine":     {change(LabelMachine, "other"), fence.Unknown},
		"no labels":           {fence.Target{Node: "n1"}, fence.Unknown},
		"the first process":   {change(LabelPID, "1"), fence.Unknown},
		"every process":       {change(LabelPID, "-1"), fence.Unknown},
		"no such process":     {change(LabelPID, "99999999"), fence.Fenced},
		"no number":           {change(LabelPID, "x"), fence.Unknown},
		"without a beginning": {change(LabelStart, ""), fence.Unknown},
	} {
		if r := d.Fence(testContext(t), x.target); r.Answer != x.want {
			t.Errorf("%s: %+v, want %s", name, r, x.want)
		}
	}
	if !alive(cmd.Process.Pid) {
		t.Fatal("a process that was not meant was killed")
	}
}

// The device's time is up before the process is gone: no confirmation.
func TestProcessTakesTooLong(t *testing.T) {
	cmd, tg := sleeper(t)
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	// SIGTERM is ignored, and the grace is longer than the device's time.
	r := NewProcess("kill", time.Hour).Fence(ctx, tg)
	if r.Answer == fence.Fenced && alive(cmd.Process.Pid) {
		t.Fatalf("%+v, and the process is alive", r)
	}
	fabrictest.Eventually(t, 10*time.Second, "the check to agree with the system", func() bool {
		return (NewProcess("kill", 0).Check(testContext(t), tg).Answer == fence.Fenced) == !alive(cmd.Process.Pid)
	})
}

// A machine's ID is not enough: clones and containers of one image share it, and then a process of somewhere else would look
// like one that has ended, or that ran before the present boot.
func TestMachineIDIsShared(t *testing.T) {
	_, tg := sleeper(t)
	machine := strings.Fields(tg.Labels[LabelMachine])
	if len(machine) != 3 {
		t.Fatalf("label %q has to name machine, host and name space", tg.Labels[LabelMachine])
	}
	for name, other := range map[string]string{
		"a clone with another name": machine[0] + " other " + machine[2],
		"another container":         machine[0] + " " + machine[1] + " pid:[1]",
		"the ID alone":              machine[0],
	} {
		far := fence.Target{Node: "n1", Labels: maps.Clone(tg.Labels)}
		far.Labels[LabelMachine], far.Labels[LabelBoot], far.Labels[LabelPID] = other, "other", "99999999"
		if r := NewProcess("kill", 0).Fence(testContext(t), far); r.Answer != fence.Unknown {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

// headlessChild is a process whose first thread ends and whose others go on.
func headlessChild() {
	go func() {
		for {
			stat, err := os.ReadFile("/proc/self/stat")
			if err == nil && strings.Contains(string(stat), ") Z ") {
				fmt.Println("headless")
				break
			}
			<-time.After(time.Millisecond)
		}
		<-time.After(time.Minute) // the test kills it before
		os.Exit(1)
	}()
	syscall.RawSyscall(syscall.SYS_EXIT, 0, 0, 0) // of this thread alone
}

// A process whose first thread has ended looks like a zombie, and its other threads may go on to write.
func TestProcessWithoutItsFirstThread(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "DEVICE_TEST_HEADLESS=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill() //nolint:errcheck // it may be gone
		cmd.Wait()         //nolint:errcheck // it was killed
	})
	if _, err := out.Read(make([]byte, 16)); err != nil {
		t.Fatal(err)
	}
	labels, err := ProcessLabels(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	d, tg := NewProcess("kill", 0), fence.Target{Node: "n1", Labels: labels}
	if r := d.Check(testContext(t), tg); r.Answer != fence.NotFenced {
		t.Errorf("its threads run: %+v", r)
	}
	if r := d.Fence(testContext(t), tg); r.Answer != fence.Fenced {
		t.Errorf("%+v", r)
	}
}

func TestSelfLabels(t *testing.T) {
	labels, err := SelfLabels()
	if err != nil {
		t.Fatal(err)
	}
	if r := NewProcess("kill", 0).Check(testContext(t), fence.Target{Labels: labels}); r.Answer != fence.NotFenced {
		t.Fatalf("the test itself: %+v", r)
	}
}
