//go:build unix

package embedded

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
)

// lockStoreDir keeps a second server, in this process or another, from opening
// the same files. The lock ends with the process, however it dies.
func lockStoreDir(dir string) (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(dir, ".lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, storeError(dir, err)
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	switch {
	case errors.Is(err, syscall.EWOULDBLOCK):
		f.Close()
		return nil, &StartError{Subject: dir, Reason: "the store directory is in use by another server"}
	case err != nil:
		f.Close()
		return nil, storeError(dir, err)
	}
	return func() { f.Close() }, nil
}
