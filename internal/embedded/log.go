package embedded

import (
	"fmt"
	"log/slog"
)

// logger hands the server's lines to a hook and keeps the first fatal one,
// which is how nats-server reports that it can't start.
type logger struct {
	hook  func(slog.Level, string)
	fatal chan error // capacity 1
}

func newLogger(hook func(slog.Level, string)) *logger {
	if hook == nil {
		hook = func(slog.Level, string) {}
	}
	return &logger{hook: hook, fatal: make(chan error, 1)}
}

func (l *logger) line(level slog.Level, format string, v []any) {
	l.hook(level, fmt.Sprintf(format, v...))
}

func (l *logger) Noticef(format string, v ...any) { l.line(slog.LevelInfo, format, v) }
func (l *logger) Warnf(format string, v ...any)   { l.line(slog.LevelWarn, format, v) }
func (l *logger) Errorf(format string, v ...any)  { l.line(slog.LevelError, format, v) }
func (l *logger) Debugf(format string, v ...any)  { l.line(slog.LevelDebug, format, v) }
func (l *logger) Tracef(format string, v ...any)  { l.line(slog.LevelDebug, format, v) }

func (l *logger) Fatalf(format string, v ...any) {
	l.line(slog.LevelError, format, v)
	select {
	case l.fatal <- fmt.Errorf(format, v...):
	default:
	}
}
