package cli

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"natsfabric/supervise"
)

// monitorPages are the pages of a monitor.
type monitorPages struct {
	url  string
	srv  *http.Server
	done chan struct{}
}

// listenMonitor serves /healthz and /metrics of a monitor, unless addr is "off".
func listenMonitor(addr string, m *supervise.Monitor, p supervise.Policy) (*monitorPages, error) {
	out := &monitorPages{done: make(chan struct{})}
	if addr == "off" {
		close(out.done)
		return out, nil
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("--http: %w", err)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(monitorCollector{m})
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) {
		if s := m.Metrics(); s.ScanAge > 3*p.CheckInterval+10*time.Second || s.Scans == s.ScansFailed {
			http.Error(w, fmt.Sprintf("the workers were last looked at %v ago", s.ScanAge.Round(time.Second)), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	out.url = "http://" + l.Addr().String()
	out.srv = &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	go func() {
		defer close(out.done)
		if err := out.srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			panic(err) // the listener is this program's own
		}
	}()
	return out, nil
}

func (p *monitorPages) close() {
	if p.srv != nil {
		p.srv.Close()
	}
	<-p.done
}

// monitorCollector shows a monitor's numbers.
type monitorCollector struct{ m *supervise.Monitor }

var (
	descWorkers    = prometheus.NewDesc("supervise_workers", "Workers by verdict, as the last scan found them.", []string{"verdict"}, nil)
	descPlanned    = prometheus.NewDesc("supervise_workers_planned", "Workers that a planned action or a maintenance speaks for.", nil, nil)
	descIncidents  = prometheus.NewDesc("supervise_incidents_open", "Open incidents.", nil, nil)
	descDecisions  = prometheus.NewDesc("supervise_decisions_total", "Decisions of this monitor by kind.", []string{"kind"}, nil)
	descCommands   = prometheus.NewDesc("supervise_commands_total", "Restart commands run by this monitor, by outcome.", []string{"outcome"}, nil)
	descScans      = prometheus.NewDesc("supervise_scans_total", "Scans of this monitor.", []string{"result"}, nil)
	descScanAge    = prometheus.NewDesc("supervise_scan_age_seconds", "Time since the last scan that succeeded.", nil, nil)
	descScanTook   = prometheus.NewDesc("supervise_scan_duration_seconds", "Time that the last scan took.", nil, nil)
	descNotify     = prometheus.NewDesc("supervise_notifications_total", "Notifications by result.", []string{"result"}, nil)
	descCollect    = prometheus.NewDesc("supervise_collect_failed_total", "Log collections that failed.", nil, nil)
	descStore      = prometheus.NewDesc("supervise_store_errors_total", "What the store did not do.", nil, nil)
	descEventsLost = prometheus.NewDesc("supervise_events_lost_total", "Events that could not be written.", nil, nil)
	descOut        = prometheus.NewDesc("supervise_calls_out", "Calls of notifiers, collectors and restarters that were given up and have not returned.", nil, nil)
	descStopped    = prometheus.NewDesc("supervise_stopped", "1 while a pause or maintenance stops the automation.", []string{"mode"}, nil)
)

// Describe sends nothing: what there is depends on what has happened.
func (monitorCollector) Describe(chan<- *prometheus.Desc) {}

// Collect sends the monitor's numbers.
func (c monitorCollector) Collect(ch chan<- prometheus.Metric) {
	s := c.m.Metrics()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	count := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	for v, n := range s.Workers {
		gauge(descWorkers, float64(n), string(v))
	}
	gauge(descPlanned, float64(s.Planned))
	gauge(descIncidents, float64(s.Incidents))
	for k, n := range s.Decisions {
		count(descDecisions, n, string(k))
	}
	for o, n := range s.Commands {
		count(descCommands, n, string(o))
	}
	count(descScans, s.Scans-s.ScansFailed, "ok")
	count(descScans, s.ScansFailed, "failed")
	gauge(descScanAge, s.ScanAge.Seconds())
	gauge(descScanTook, s.ScanTook.Seconds())
	count(descNotify, s.Told, "delivered")
	count(descNotify, s.NotifyFailed, "failed")
	count(descCollect, s.CollectFailed)
	count(descStore, s.StoreErrors)
	count(descEventsLost, s.EventsLost)
	gauge(descOut, float64(s.Out))
	for _, mode := range []supervise.ControlMode{supervise.Paused, supervise.UnderMaintenance} {
		on := 0.0
		if s.Mode == mode {
			on = 1
		}
		gauge(descStopped, on, string(mode))
	}
}
