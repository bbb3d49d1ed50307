package cli

import (
	"slices"
	"strings"
	"testing"
	"time"

	"natsfabric/supervise"
)

func TestSplitWords(t *testing.T) {
	for text, want := range map[string][]string{
		`docker restart {worker}`:             {"docker", "restart", "{worker}"},
		`  ssh  {worker} 'docker restart a' `: {"ssh", "{worker}", "docker restart a"},
		`sh -c "echo 'x y'; exit 1"`:          {"sh", "-c", "echo 'x y'; exit 1"},
		`a ''`:                                {"a", ""},
	} {
		got, err := splitWords(text)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %q, %v; want %q", text, got, err, want)
		}
	}
	if _, err := splitWords(`a 'b`); err == nil || !strings.Contains(err.Error(), "closing '") {
		t.Errorf("an open quote: %v", err)
	}
}

func TestBeatLines(t *testing.T) {
	for line, want := range map[string]beatLine{
		"idle":                              {supervise.Idle, "", ""},
		"processing job-1 a b c":            {supervise.Processing, "job-1", "a b c"},
		`{"state":"error","job":"job 1"}`:   {supervise.Failed, "job 1", ""},
		`{"state":"idle","progress":"100"}`: {supervise.Idle, "", "100"},
	} {
		if got, err := parseBeat(line); err != nil || got != want {
			t.Errorf("%q: %+v, %v", line, got, err)
		}
	}
	for _, line := range []string{`{"job":"x"}`, `{`} {
		if _, err := parseBeat(line); err == nil {
			t.Errorf("%q is allowed", line)
		}
	}
}

func TestSuperviseFlags(t *testing.T) {
	r, err := parse(t, "supervise", "run", "--mesh", "m", "--restart", "gpu-*=docker restart {worker}", "--logs", "gpu-*=docker logs --tail=10 {worker}",
		"--log-file", "*=/var/log/{worker}.log", "--cooldown", "20m", "--expect", "a,b")
	if err != nil {
		t.Fatal(err)
	}
	c := r.Supervise.Run
	targets, err := c.targets(nil)
	if err != nil || len(targets) != 2 || targets[0].Match != "gpu-*" || targets[1].Match != "*" || targets[1].Restarter != nil {
		t.Errorf("targets %+v, %v", targets, err)
	}
	if got := targets[0].Collector.(supervise.CommandLogs).Args; !slices.Equal(got, []string{"docker", "logs", "--tail=10", "{worker}"}) {
		t.Errorf("the log command is %q", got)
	}
	p, err := c.policy()
	if err != nil || p.Cooldown != 20*time.Minute || p.Responsible[supervise.Stalled] != supervise.Person {
		t.Errorf("policy %+v, %v", p, err)
	}
	for args, want := range map[string]string{
		"--restart=docker":                           "PATTERN=VALUE",
		"--restart==docker":                          "PATTERN=VALUE",
		"--responsible=hung=restart":                 `--responsible has nobody for verdict "error"`,
		"--responsible=hung=restart,stalled=restart": "--responsible \"restart\" for verdict \"stalled\" is not allowed",
		"--scale=0":                                  "--scale 0 is not allowed",
		"--breaker=0":                                "--breaker 0 is not allowed",
		"--cooldown=48h":                             "--breaker-window 24h0m0s clashes with --cooldown",
		"--check-interval=0s":                        "--check-interval 0s is not allowed",
	} {
		r, err := parse(t, "supervise", "run", "--mesh", "m", args)
		if err == nil {
			if _, err = r.Supervise.Run.policy(); err == nil {
				_, err = r.Supervise.Run.targets(nil)
			}
		}
		if err == nil || !strings.Contains(err.Error(), want) || exitCode(err) != ExitUsage {
			t.Errorf("%s: %v", args, err)
		}
	}
}
