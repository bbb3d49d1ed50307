package demo

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// The ends of the journals' file names; the rest is the node's RID.
const (
	ranSuffix     = ".ran"     // lines that a member classified
	countedSuffix = ".counted" // lines that the clients' Spots at a node counted
)

// journal is an append-only file in which a node notes each line before it acts on it. One record is one write, so that
// records of concurrent handlers don't mix, and what was written survives the death of the process.
type journal struct{ f *os.File }

func openJournal(dir, rid, suffix string) (*journal, error) {
	f, err := os.OpenFile(filepath.Join(dir, rid+suffix), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	return &journal{f}, nil
}

// noteRan notes that a line is about to be classified.
func (j *journal) noteRan(line int) error {
	_, err := j.f.Write(append(strconv.AppendInt(make([]byte, 0, 12), int64(line), 10), '\n'))
	return err
}

// noteCounted notes that a line is about to be counted.
func (j *journal) noteCounted(c counted) error {
	_, err := fmt.Fprintf(j.f, "%d %d %d %d %d %q\n", c.line, c.generation, c.ownerGeneration, c.status, c.bytes, c.client)
	return err
}

func (j *journal) close() error { return j.f.Close() }

// counted is one line in the journal of what the clients' Spots counted.
type counted struct {
	node                        string // whose journal it is
	line                        int
	generation, ownerGeneration uint64 // of the Spot
	status                      int
	bytes                       int64
	client                      string
}

// journals is what all nodes noted.
type journals struct {
	ran     map[int][]string  // who classified each line: a line that ran twice has two
	counted map[int][]counted // the same for the clients' Spots
}

func readJournals(dir string) (journals, error) {
	j := journals{ran: map[int][]string{}, counted: map[int][]counted{}}
	err := readAll(dir, ranSuffix, func(rid, record string) error {
		line, err := strconv.Atoi(record)
		j.ran[line] = append(j.ran[line], rid)
		return err
	})
	if err != nil {
		return j, err
	}
	return j, readAll(dir, countedSuffix, func(rid, record string) error {
		c := counted{node: rid}
		_, err := fmt.Sscanf(record, "%d %d %d %d %d %q", &c.line, &c.generation, &c.ownerGeneration, &c.status, &c.bytes, &c.client)
		j.counted[c.line] = append(j.counted[c.line], c)
		return err
	})
}

// readAll gives each record of the journals with this suffix to take.
func readAll(dir, suffix string, take func(rid, record string) error) error {
	files, err := filepath.Glob(filepath.Join(dir, "*"+suffix))
	if err != nil {
		return err
	}
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		rid := strings.TrimSuffix(filepath.Base(name), suffix)
		sc := bufio.NewScanner(f)
		for sc.Scan() {
			if err := take(rid, sc.Text()); err != nil {
				f.Close()
				return fmt.Errorf("%s holds %q, which is no record: %w", name, sc.Text(), err)
			}
		}
		f.Close()
		if err := sc.Err(); err != nil {
			return err
		}
	}
	return nil
}
