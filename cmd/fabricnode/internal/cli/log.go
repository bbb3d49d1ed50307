package cli

import (
	"io"
	"log/slog"

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

// serverLog passes on what the embedded server logs. Its notices are of no interest in ordinary operation.
func serverLog(log *zap.Logger) func(slog.Level, string) {
	log = log.Named("nats-server")
	return func(level slog.Level, line string) {
		switch {
		case level >= slog.LevelError:
			log.Error(line)
		case level >= slog.LevelWarn:
			log.Warn(line)
		default:
			log.Debug(line)
		}
	}
}
