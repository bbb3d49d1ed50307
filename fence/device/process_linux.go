package device

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
)

var terminate = syscall.SIGTERM

// identity returns what tells this machine from others, and the ID of its present boot. A machine's ID alone does not: clones
// and containers of one image often share it, and a process ID means something only within its name space. So its host name
// and the name space stand beside it: where one of them differs, nothing is confirmed.
func identity() (machine, boot string, err error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", "", err
	}
	m, err := os.ReadFile("/etc/machine-id")
	if err != nil || len(bytes.TrimSpace(m)) == 0 {
		m = []byte("none") // a container, or a small system
	}
	host, err := os.Hostname()
	if err != nil {
		return "", "", err
	}
	space, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return "", "", err
	}
	return fmt.Sprintf("%s %s %s", bytes.TrimSpace(m), host, space), strings.TrimSpace(string(b)), nil
}

// processState returns when a process was started and whether any of its threads still runs. The error satisfies
// os.IsNotExist when there is no such process.
func processState(pid int) (start string, alive bool, err error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if errors.Is(err, syscall.ESRCH) {
		err = os.ErrNotExist // it ended while it was read
	}
	if err != nil {
		return "", false, err
	}
	// The command's name stands in parentheses and may contain anything; the third field follows the last one.
	i := bytes.LastIndexByte(stat, ')')
	fields := strings.Fields(string(stat[i+1:]))
	if i < 0 || len(fields) < 20 {
		return "", false, fmt.Errorf("/proc/%d/stat cannot be understood: %q", pid, stat)
	}
	start = fields[19]
	if fields[0] != "Z" && fields[0] != "X" {
		return start, true, nil
	}
	// The first thread has ended; others may run on.
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if os.IsNotExist(err) || errors.Is(err, syscall.ESRCH) {
		return "", false, os.ErrNotExist
	}
	return start, err != nil || len(tasks) > 1, err
}
