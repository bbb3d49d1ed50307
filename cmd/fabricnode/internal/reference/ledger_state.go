package reference

import (
	"encoding/json"
	"unsafe"
)

// ledgerEntry is one entry, as a read shows it.
type ledgerEntry struct {
	Client string `json:"client"`
	Seq    int64  `json:"seq"`
	Data   string `json:"data"`
	// Owner is the node at which it was appended, OwnerGeneration the object's owner generation then.
	Owner           string `json:"owner"`
	OwnerGeneration uint64 `json:"owner_generation"`
}

// entries is what a ledger keeps, in the order of appending.
type entries struct {
	list  []ledgerEntry
	bytes int
}

// add appends e. A (client, seq) that is there already is appended again: whoever checks looks for it.
func (s *entries) add(e ledgerEntry) error {
	size := len(e.Client) + len(e.Data) + int(unsafe.Sizeof(e))
	switch {
	case len(s.list) >= MaxEntries:
		return tooMuch("the ledger is full: it holds %d entries", MaxEntries)
	case s.bytes+size > MaxEntryBytes:
		return tooMuch("the ledger is full: it holds %d bytes", MaxEntryBytes)
	}
	s.list = append(s.list, e)
	s.bytes += size
	return nil
}

// page is the answer to a read.
type page struct {
	Entries []json.RawMessage `json:"entries"`
	Len     int               `json:"len"`
	// Next is where the next page begins; all were read when it is Len.
	Next int `json:"next"`
}

// read returns at most limit entries from the given one on, fewer where they would make the reply too large.
func (s *entries) read(from, limit int) (page, error) {
	p := page{Entries: []json.RawMessage{}, Len: len(s.list), Next: min(from, len(s.list))}
	size := 0
	for ; p.Next < len(s.list) && len(p.Entries) < limit; p.Next++ {
		e, err := json.Marshal(s.list[p.Next])
		if err != nil {
			return p, err
		}
		if size += len(e); size > pageBytes && len(p.Entries) > 0 {
			break
		}
		p.Entries = append(p.Entries, e)
	}
	return p, nil
}
