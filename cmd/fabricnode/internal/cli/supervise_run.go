package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"natsfabric/supervise"
)

type superviseRunCmd struct {
	meshFlags
	policyFlags

	Restart        []string `group:"Workers" sep:"none" placeholder:"PATTERN=COMMAND" help:"Command that restarts the workers whose ID matches: 'gpu-*=ssh {worker} docker restart app'. May be given several times; the first that matches counts."`
	RestartRequest []string `group:"Workers" sep:"none" placeholder:"PATTERN=SUBJECT" help:"NATS subject that takes orders to restart the workers whose ID matches; {worker} stands for the ID."`
	Logs           []string `group:"Workers" sep:"none" placeholder:"PATTERN=COMMAND" help:"Command that prints the logs of the workers whose ID matches."`
	LogFile        []string `group:"Workers" sep:"none" placeholder:"PATTERN=PATH" help:"File whose end is the logs of the workers whose ID matches."`
	Expect         []string `group:"Workers" placeholder:"WORKER,..." help:"Workers that are unreachable when they have no record."`
	Webhook        []string `group:"Alerts" sep:"none" placeholder:"URL" help:"Where alerts are posted as JSON, as chat tools take it."`
	Mention        string   `group:"Alerts" placeholder:"TEXT" help:"Goes before the text of pages on webhooks, <!channel> for instance."`
	AlertSubject   []string `group:"Alerts" sep:"none" placeholder:"SUBJECT" help:"NATS subject on which alerts are published as JSON."`
	HTTP           string   `name:"http" default:"off" placeholder:"ADDR" help:"Address of /healthz and /metrics; port 0 takes a free one. Default ${default}."`
}

// placeholderWorker stands for the worker's ID in a subject.
const placeholderWorker = "{worker}"

// checkSubject refuses what is no subject that a message can be published on.
func checkSubject(flag, subject string) error {
	bad := func(token string) bool { return token == "" || token == "*" || token == ">" }
	if strings.ContainsAny(subject, " \t\r\n") || slices.ContainsFunc(strings.Split(subject, "."), bad) {
		return fmt.Errorf("%s %.80q is not allowed: it must be a subject like alerts.shop, without spaces and wildcards", flag, subject)
	}
	return nil
}

// rule is one PATTERN=VALUE of a flag.
type rule struct{ pattern, value string }

func parseRules(flag string, texts []string) ([]rule, error) {
	var out []rule
	for _, text := range texts {
		pattern, value, ok := strings.Cut(text, "=")
		if !ok || pattern == "" || strings.TrimSpace(value) == "" {
			return nil, withCode(ExitUsage, fmt.Errorf("%s %q is not allowed: it must be PATTERN=VALUE, '*=docker restart {worker}' for instance", flag, text))
		}
		if _, err := path.Match(pattern, ""); err != nil {
			return nil, withCode(ExitUsage, fmt.Errorf("%s %q is not allowed: %q is no pattern, * and gpu-* are some", flag, text, pattern))
		}
		out = append(out, rule{pattern, value})
	}
	return out, nil
}

// splitWords cuts a command at white space; single and double quotes keep it together. There is no shell.
func splitWords(text string) ([]string, error) {
	var words []string
	var word strings.Builder
	var quote rune
	inside := false
	for _, c := range text {
		switch {
		case quote != 0 && c == quote:
			quote = 0
		case quote == 0 && (c == '\'' || c == '"'):
			quote, inside = c, true
		case quote == 0 && (c == ' ' || c == '\t' || c == '\n'):
			if inside {
				words = append(words, word.String())
			}
			word.Reset()
			inside = false
		default:
			word.WriteRune(c)
			inside = true
		}
	}
	if quote != 0 {
		return nil, fmt.Errorf("command %q has no closing %c", text, quote)
	}
	if inside {
		words = append(words, word.String())
	}
	return words, nil
}

// targets makes one target of each pattern, in the order in which the patterns first stand in the flags.
func (c *superviseRunCmd) targets(nc *nats.Conn) ([]supervise.Target, error) {
	var out []supervise.Target
	at := map[string]int{}
	target := func(pattern string) *supervise.Target {
		i, ok := at[pattern]
		if !ok {
			i = len(out)
			at[pattern] = i
			out = append(out, supervise.Target{Match: pattern})
		}
		return &out[i]
	}
	for _, f := range []struct {
		flag  string
		texts []string
		set   func(t *supervise.Target, value string, words []string)
	}{
		{"--restart", c.Restart, func(t *supervise.Target, _ string, words []string) { t.Restarter = supervise.Command{Args: words} }},
		{"--restart-request", c.RestartRequest, func(t *supervise.Target, v string, _ []string) {
			t.Restarter = supervise.Request{Conn: nc, Subject: v}
		}},
		{"--logs", c.Logs, func(t *supervise.Target, _ string, words []string) { t.Collector = supervise.CommandLogs{Args: words} }},
		{"--log-file", c.LogFile, func(t *supervise.Target, v string, _ []string) { t.Collector = supervise.FileTail{Path: v} }},
	} {
		rules, err := parseRules(f.flag, f.texts)
		if err != nil {
			return nil, err
		}
		for _, r := range rules {
			words, err := splitWords(r.value)
			if err != nil {
				return nil, withCode(ExitUsage, fmt.Errorf("%s: %w", f.flag, err))
			}
			if f.flag == "--restart-request" {
				if err := checkSubject(f.flag, strings.ReplaceAll(r.value, placeholderWorker, "w")); err != nil {
					return nil, withCode(ExitUsage, err)
				}
			}
			f.set(target(r.pattern), r.value, words)
		}
	}
	return out, nil
}

// config makes the monitor's configuration of the flags. Without a connection it only shows whether they are right.
func (c *superviseRunCmd) config(a *app, nc *nats.Conn, p supervise.Policy) (cfg supervise.Config, err error) {
	cfg = supervise.Config{Policy: p, Expected: c.Expect, Logger: a.log}
	if cfg.Targets, err = c.targets(nc); err != nil {
		return cfg, err
	}
	if cfg.Notifiers, err = c.notifiers(a, nc); err != nil {
		return cfg, err
	}
	if err := c.restarts(p); err != nil {
		return cfg, withCode(ExitUsage, err)
	}
	return cfg, inPolicyFlags(cfg.Validate())
}

// restarts refuses a policy that restarts while no flag says how.
func (c *superviseRunCmd) restarts(p supervise.Policy) error {
	if len(c.Restart)+len(c.RestartRequest) > 0 {
		return nil
	}
	var which []string
	for v, who := range p.Responsible {
		if who == supervise.Restart {
			which = append(which, string(v))
		}
	}
	if len(which) == 0 {
		return nil
	}
	slices.Sort(which)
	return fmt.Errorf("nothing says how workers are restarted: give --restart '*=COMMAND {worker}' or --restart-request '*=SUBJECT.{worker}', or leave %s to a person (--responsible)", strings.Join(which, " and "))
}

// notifiers are the log, always, and what the flags name.
func (c *superviseRunCmd) notifiers(a *app, nc *nats.Conn) ([]supervise.Notifier, error) {
	out := []supervise.Notifier{supervise.Log{Logger: a.log}}
	for _, url := range c.Webhook {
		w := supervise.Webhook{URL: url, Mention: c.Mention}
		if err := w.Validate(); err != nil {
			return nil, withCode(ExitUsage, fmt.Errorf("--webhook: %w", err))
		}
		out = append(out, w)
	}
	for _, subject := range c.AlertSubject {
		if err := checkSubject("--alert-subject", subject); err != nil {
			return nil, withCode(ExitUsage, err)
		}
		out = append(out, supervise.Subject{Conn: nc, Subject: subject})
	}
	return out, nil
}

// watchingEvent is what run prints with --json once it watches.
type watchingEvent struct {
	Event   string `json:"event"`
	Mesh    string `json:"mesh"`
	Monitor string `json:"monitor"`
	HTTP    string `json:"http,omitempty"`
	PID     int    `json:"pid"`
}

func (c *superviseRunCmd) Run(a *app) error {
	p, err := c.policy()
	if err != nil {
		return err
	}
	if _, err := c.config(a, nil, p); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(a.sig.ctx, setupTimeout)
	defer cancel()
	s, err := c.open(ctx, a.log)
	if err != nil {
		return err
	}
	defer s.close()
	cfg, err := c.config(a, s.nc, p)
	if err != nil {
		return err
	}
	m, err := supervise.NewMonitor(ctx, s.store, cfg)
	if err != nil {
		return startError(err)
	}
	defer m.Close()
	pages, err := listenMonitor(c.HTTP, m, p)
	if err != nil {
		return withCode(ExitUsage, err)
	}
	defer pages.close()
	if err := a.print(watchingEvent{"watching", c.Mesh, m.ID(), pages.url, os.Getpid()}, func(w io.Writer) {
		fmt.Fprintf(w, "monitor %s watches the workers of mesh %s\n", m.ID(), c.Mesh)
		err = errors.Join(err, p.WriteTable(w))
	}); err != nil {
		return err
	}
	a.log.Info("watching", zap.String("mesh", c.Mesh), zap.String("monitor", m.ID()), zap.Duration("check_interval", p.CheckInterval))
	<-a.sig.ctx.Done()
	a.log.Info("stopping; a restart command that runs is waited for", zap.Duration("at_most", p.CommandLimit+10*time.Second))
	return nil
}
