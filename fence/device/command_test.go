package device

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"natsfabric/fabrictest"
	"natsfabric/fence"
)

func testContext(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func target() fence.Target {
	return fence.Target{Node: "n1", Lifecycle: 7, Labels: map[string]string{"bmc": "10.0.0.1", "evil": "-o"}, Token: fence.Token{Source: "m/leader/db", Epoch: 1, Generation: 33}}
}

// power is a power strip: a program that switches off and one that shows what is on.
func power(t *testing.T, fenceScript string) *Command {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "n1"), []byte("on"), 0o600); err != nil {
		t.Fatal(err)
	}
	d, err := NewCommand(CommandConfig{
		Name: "power", Env: []string{"STRIP=" + dir, "BMC={label.bmc}"},
		Fence:     []string{"/bin/sh", "-c", fenceScript, "sh", "{node}"},
		Status:    []string{"/bin/sh", "-c", `echo "Chassis Power is $(cat "$STRIP/$1")"`, "sh", "{node}"},
		Fenced:    Match{Codes: []int{0}, Output: `is off$`},
		NotFenced: Match{Codes: []int{0}, Output: `is on`},
	})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// What a device says about its own work confirms nothing; its status program does.
func TestCommand(t *testing.T) {
	ctx := testContext(t)
	for name, x := range map[string]struct {
		script string
		want   fence.Answer
	}{
		"works":          {`test "$FENCE_NODE/$FENCE_LIFECYCLE/$BMC" = n1/7/10.0.0.1 && echo off >"$STRIP/$1"`, fence.Fenced},
		"fails":          {`echo no power >&2; exit 3`, fence.NotFenced},
		"lies":           {`echo off`, fence.NotFenced},
		"works and dies": {`echo off >"$STRIP/$1"; kill -9 $$`, fence.Fenced},
		"breaks":         {`rm "$STRIP/$1"`, fence.Unknown},
	} {
		d := power(t, x.script)
		if r := d.Check(ctx, target()); r.Answer != fence.NotFenced {
			t.Errorf("%s: before: %+v", name, r)
		}
		if r := d.Fence(ctx, target()); r.Answer == fence.Fenced {
			t.Errorf("%s: the program's own word is taken for a confirmation: %+v", name, r)
		}
		if r := d.Check(ctx, target()); r.Answer != x.want {
			t.Errorf("%s: %s, want %s: %s", name, r.Answer, x.want, r.Detail)
		}
	}
	r := power(t, `echo no power >&2; exit 3`).Fence(ctx, target())
	if !strings.Contains(r.Detail, "ended with 3: no power") || string(r.Output) != "no power\n" {
		t.Errorf("the output is not kept: %+v", r)
	}
}

// A program that hangs is ended with its children when its time is up, and has no answer.
func TestCommandThatHangs(t *testing.T) {
	dir := t.TempDir()
	d := power(t, `sleep 1000 & echo $! >`+dir+`/new; mv `+dir+`/new `+dir+`/child; wait`)
	ctx, cancel := context.WithCancel(testContext(t))
	defer cancel()
	report := make(chan fence.Report, 1)
	go func() { report <- d.Fence(ctx, target()) }()
	var b []byte
	fabrictest.Eventually(t, time.Minute, "the program to begin", func() bool {
		var err error
		b, err = os.ReadFile(filepath.Join(dir, "child"))
		return err == nil
	})
	cancel()
	select {
	case r := <-report:
		if r.Answer != fence.Unknown || !strings.Contains(r.Detail, "was ended") {
			t.Fatalf("%+v", r)
		}
	case <-time.After(time.Minute):
		t.Fatal("the device does not come back")
	}
	gone := func() bool {
		stat, err := os.ReadFile("/proc/" + strings.TrimSpace(string(b)) + "/stat")
		return err != nil || strings.Contains(string(stat), ") Z ")
	}
	fabrictest.Eventually(t, time.Minute, "the child of the ended program to be gone", gone)
}

// What cannot be told is unknown, and nothing is run with a value that is missing or would be taken for an option.
func TestCommandRefuses(t *testing.T) {
	dir := t.TempDir()
	base := CommandConfig{Name: "x", Fence: []string{"/bin/sh", "-c", "touch " + dir + "/ran"}, Status: []string{"/bin/true"}, Fenced: Match{Codes: []int{0}}}
	for _, arg := range []string{"{label.missing}", "{label.evil}"} {
		c := base
		c.Fence = append(c.Fence[:len(c.Fence):len(c.Fence)], arg)
		d, err := NewCommand(c)
		if err != nil {
			t.Fatal(err)
		}
		if r := d.Fence(testContext(t), target()); r.Answer != fence.Unknown || !strings.Contains(r.Detail, "not run") {
			t.Errorf("%s: %+v", arg, r)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "ran")); err == nil {
		t.Error("the program was run")
	}
	both := base
	both.NotFenced = Match{Codes: []int{0, 1}}
	d, err := NewCommand(both)
	if err != nil {
		t.Fatal(err)
	}
	if r := d.Check(testContext(t), target()); r.Answer != fence.Unknown {
		t.Errorf("an end that means both is %s", r.Answer)
	}
	killed := base // it has said what it saw, and did not come to its end
	killed.Status, killed.Fenced = []string{"/bin/sh", "-c", "echo is off; kill -9 $$"}, Match{Output: "is off"}
	if d, err = NewCommand(killed); err != nil {
		t.Fatal(err)
	}
	if r := d.Check(testContext(t), target()); r.Answer != fence.Unknown {
		t.Errorf("a program that was killed says %s", r.Answer)
	}
	missing := base
	missing.Status = []string{"/no/such/program"}
	if d, err = NewCommand(missing); err != nil {
		t.Fatal(err)
	}
	if r := d.Check(testContext(t), target()); r.Answer != fence.Unknown {
		t.Errorf("a program that is missing says %s", r.Answer)
	}
	for name, change := range map[string]func(*CommandConfig){
		"Name": func(c *CommandConfig) { c.Name = "" }, "Status": func(c *CommandConfig) { c.Status = nil },
		"Fenced": func(c *CommandConfig) { c.Fenced = Match{} }, "missing argument": func(c *CommandConfig) { c.Fenced.Output = "(" },
	} {
		c := base
		change(&c)
		if _, err := NewCommand(c); err == nil {
			t.Errorf("a wrong %s is allowed", name)
		}
	}
	var out tail
	for range 100 {
		out.Write([]byte(strings.Repeat("x", 999) + "\n")) //nolint:errcheck // it never fails
	}
	if len(out.bytes) != MaxOutput {
		t.Errorf("%d bytes are kept", len(out.bytes))
	}
}
