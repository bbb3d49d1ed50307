package kvlocation

import "natsfabric/outcome"

// EntryAt is the entry of a record that another process run has written and tells of: record is its JSON. It saves who
// goes on from it the read; the write fails unless the key still has that revision. The error is an *outcome.Error,
// ProtocolError.
func EntryAt(key ObjectKey, revision uint64, record []byte) (Entry, error) {
	if revision == 0 {
		return Entry{}, outcome.New("read", outcome.ProtocolError, outcome.NotAccepted, key.String(), "revision 0 is that of no record")
	}
	return entryOf(key, &storedMsg{revision: revision, value: record})
}
