package embedded

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"syscall"
)

// probeSize is what must fit on the disk for a start to make sense.
const probeSize = 256 << 10

// checkAddress reports an address that can't be listened on.
func checkAddress(host string, port int) error {
	if port < 0 {
		return nil
	}
	addr := hostPort(host, port)
	l, err := net.Listen("tcp", addr)
	if err == nil {
		return l.Close()
	}
	reason := "can't listen there"
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		reason = "the address is in use by another program (another server?); choose another port"
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		reason = "the host is not an address of this machine"
	case errors.Is(err, syscall.EACCES):
		reason = "not permitted to listen there"
	}
	return &StartError{Subject: addr, Reason: reason, Err: err}
}

// checkStoreDir creates dir and proves that a file can be written and synced
// there. What the disk really does beats permission bits: a user may be root
// and the mount read-only.
func checkStoreDir(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return storeError(dir, err)
	}
	f, err := os.CreateTemp(dir, ".probe-*")
	if err != nil {
		return storeError(dir, err)
	}
	_, err = f.Write(make([]byte, probeSize))
	if err == nil {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close(), os.Remove(f.Name()))
	if err != nil {
		return storeError(dir, err)
	}
	return nil
}

func storeError(dir string, err error) error {
	reason := "can't write to the store directory"
	switch {
	case errors.Is(err, syscall.EROFS):
		reason = "the store directory is on a read-only file system"
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		reason = "the disk of the store directory is full"
	case errors.Is(err, fs.ErrPermission):
		reason = "the store directory is not writable"
	case errors.Is(err, syscall.ENOTDIR), errors.Is(err, fs.ErrExist):
		reason = "the store directory's path leads through a file"
	}
	return &StartError{Subject: dir, Reason: reason, Err: err}
}
