package cli

import (
	"errors"
	"io"
	"log/slog"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// newLogger writes to w: one line an entry, without stack traces, which tell an operator nothing.
func newLogger(w io.Writer, level, format string) (*zap.Logger, error) {
	min, err := zapcore.ParseLevel(level)
	if err != nil {
		return nil, withCode(ExitUsage, err)
	}
	enc := zap.NewProductionEncoderConfig()
	enc.EncodeTime = zapcore.ISO8601TimeEncoder
	enc.EncodeDuration = zapcore.StringDurationEncoder
	encoder := zapcore.NewJSONEncoder(enc)
	if format == "console" {
		enc.EncodeLevel = zapcore.CapitalLevelEncoder
		enc.ConsoleSeparator = " "
		encoder = zapcore.NewConsoleEncoder(enc)
	}
	return zap.New(zapcore.NewCore(encoder, zapcore.Lock(zapcore.AddSync(w)), min)), nil
}

// serverLog passes on what the embedded server logs. Its notices are of no interest in ordinary operation, and while
// its cluster forms neither are its complaints about servers that are not there yet. Later it complains about a missing
// one several times a second: people hear of it once, and when it is back.
type serverLog struct {
	to    *zap.Logger
	quiet atomic.Bool

	// full is closed when the server said that its disk is full.
	full     chan struct{}
	fullOnce sync.Once

	mu      sync.Mutex
	missing map[string]bool // addresses of servers that people heard are missing
}

// errDiskFull ends a worker whose embedded server can't write: nats-server keeps the error of a failed write and does
// not write to that stream again before it was started anew, however much room there is by then.
var errDiskFull = errors.New("the disk is full, and the embedded server does not write again before it is started anew: free space, then start this process again")

var (
	routeLost = regexp.MustCompile(`^Error trying to connect to route \(attempt \d+\): dial tcp (\S+): (.*)$`)
	routeMade = regexp.MustCompile(`Route connection created`)
)

func newServerLog(log *zap.Logger) *serverLog {
	s := &serverLog{to: log.Named("nats-server"), missing: map[string]bool{}, full: make(chan struct{})}
	s.quiet.Store(true)
	return s
}

// formed ends the quiet time of the start.
func (s *serverLog) formed() { s.quiet.Store(false) }

func (s *serverLog) line(level slog.Level, line string) {
	switch {
	case level >= slog.LevelError && strings.Contains(line, syscall.ENOSPC.Error()):
		s.fullOnce.Do(func() { s.to.Error(line); close(s.full) })
	case s.quiet.Load():
		s.to.Debug(line)
	case s.route(line):
	case level < slog.LevelWarn:
		s.to.Debug(line)
	case level < slog.LevelError:
		s.to.Warn(line)
	default:
		s.to.Error(line)
	}
}

// route reports whether it told people of a lost or new route to another server, or had told them before.
func (s *serverLog) route(line string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m := routeLost.FindStringSubmatch(line); m != nil {
		if s.missing[m[1]] {
			s.to.Debug(line)
			return true
		}
		s.missing[m[1]] = true
		s.to.Warn("another server of the cluster cannot be reached", zap.String("address", m[1]), zap.String("reason", m[2]))
		return true
	}
	if len(s.missing) > 0 && routeMade.MatchString(line) {
		// Who made the route knows the address, who was called does not. If another one is still missing, its next
		// complaint says so.
		clear(s.missing)
		s.to.Info("a server of the cluster is back", zap.String("route", line))
		return true
	}
	return false
}
