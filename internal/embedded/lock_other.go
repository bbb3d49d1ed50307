//go:build !unix

package embedded

// lockStoreDir does nothing where there is no flock: keep servers apart by
// their directories.
func lockStoreDir(string) (unlock func(), err error) { return func() {}, nil }
