package demo

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// ledgerSuffix is the end of a ledger's file name; the rest is the node's RID.
const ledgerSuffix = ".ran"

// ledger is the append-only file in which a member notes each line before it runs it. One record is one write, so that
// records of concurrent handlers don't mix, and what was written survives the death of the process.
type ledger struct{ f *os.File }

func openLedger(dir, rid string) (*ledger, error) {
	f, err := os.OpenFile(filepath.Join(dir, rid+ledgerSuffix), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	return &ledger{f}, nil
}

func (l *ledger) note(line int) error {
	record := append(strconv.AppendInt(make([]byte, 0, 12), int64(line), 10), '\n')
	_, err := l.f.Write(record)
	return err
}

func (l *ledger) close() error { return l.f.Close() }

// readLedgers returns who ran each line: one entry a run, so a line that ran twice has two.
func readLedgers(dir string) (map[int][]string, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*"+ledgerSuffix))
	if err != nil {
		return nil, err
	}
	ran := map[int][]string{}
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		rid := strings.TrimSuffix(filepath.Base(name), ledgerSuffix)
		sc := bufio.NewScanner(f)
		for sc.Scan() {
			line, err := strconv.Atoi(sc.Text())
			if err != nil {
				f.Close()
				return nil, fmt.Errorf("%s holds %q, which is no line number", name, sc.Text())
			}
			ran[line] = append(ran[line], rid)
		}
		f.Close()
		if err := sc.Err(); err != nil {
			return nil, err
		}
	}
	return ran, nil
}
