package cli

import (
	"io"
	"os"
)

// isTerminal reports whether w is a character device, which is near enough to decide about line ends and progress.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
