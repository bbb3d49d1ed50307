package cli

import (
	"fmt"
	"strconv"
	"strings"

	"natsfabric/internal/wire"
)

// owner is a node, or one process run of it: RID or RID/LIFECYCLE.
type owner struct {
	rid       string
	lifecycle uint64
}

// UnmarshalText reads a flag.
func (o *owner) UnmarshalText(text []byte) error {
	rid, run, one := strings.Cut(string(text), "/")
	if err := wire.CheckName("RID", rid); err != nil {
		return err
	}
	o.rid = rid
	if !one {
		return nil
	}
	n, err := strconv.ParseUint(run, 10, 64)
	if err != nil || n == 0 {
		return fmt.Errorf("%q is not allowed: it must be RID/LIFECYCLE, with the number that fabricnode nodes and fabricnode objects show", text)
	}
	o.lifecycle = n
	return nil
}

func (o owner) String() string { return fmt.Sprintf("%s/%d", o.rid, o.lifecycle) }
