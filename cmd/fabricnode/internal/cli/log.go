package cli

import (
	"io"
	"log/slog"
	"sync/atomic"

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
// its cluster forms neither are its complaints about servers that are not there yet.
type serverLog struct {
	to    *zap.Logger
	quiet atomic.Bool
}

func newServerLog(log *zap.Logger) *serverLog {
	s := &serverLog{to: log.Named("nats-server")}
	s.quiet.Store(true)
	return s
}

// formed ends the quiet time of the start.
func (s *serverLog) formed() { s.quiet.Store(false) }

func (s *serverLog) line(level slog.Level, line string) {
	switch {
	case s.quiet.Load() || level < slog.LevelWarn:
		s.to.Debug(line)
	case level < slog.LevelError:
		s.to.Warn(line)
	default:
		s.to.Error(line)
	}
}
