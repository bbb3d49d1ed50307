package kvlocation

import "natsfabric/outcome"

// EntryAt is the entry of a record that another process run has written and told of, record as its JSON: for who goes on from it
// with a write, which fails when it is not what the key holds at that revision. The error is an *outcome.Error, ProtocolError.
func EntryAt(key ObjectKey, revision uint64, record []byte) (Entry, error) {
	if revision == 0 {
		return Entry{}, outcome.New("read", outcome.ProtocolError, outcome.NotAccepted, key.String(), "revision 0 is that of no record")
	}
	return entryOf(key, &storedMsg{revision: revision, value: record})
}
