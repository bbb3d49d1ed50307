package kvlocation

import (
	"fmt"
	"reflect"

	"natsfabric/internal/jsonkeep"
	"natsfabric/internal/wire"
)

// MaxDescriptor is the greatest size of a descriptor's JSON, in bytes.
const MaxDescriptor = 32 << 10

// MaxWeight is the greatest weight of a channel's member.
const MaxWeight = 256

// descriptorFields has the methods of no Descriptor, so that encoding it does not call them.
type descriptorFields Descriptor

var descriptorNames = jsonkeep.Names(reflect.TypeFor[descriptorFields]())

// MarshalJSON encodes the descriptor, the fields that this version does not know included.
func (d Descriptor) MarshalJSON() ([]byte, error) {
	return jsonkeep.Encode(descriptorFields(d), d.Unknown)
}

// UnmarshalJSON decodes a descriptor and keeps the fields that this version does not know.
func (d *Descriptor) UnmarshalJSON(data []byte) error {
	var f descriptorFields
	unknown, err := jsonkeep.Decode(data, &f, descriptorNames)
	if err != nil {
		return err
	}
	f.Unknown = unknown
	*d = Descriptor(f)
	return nil
}

// decodeDescriptor reads a descriptor from its key's last message.
func decodeDescriptor(m *storedMsg) (Descriptor, error) {
	var d Descriptor
	if m == nil || m.deleted() {
		return d, fmt.Errorf("there is no descriptor")
	}
	if err := d.UnmarshalJSON(m.value); err != nil {
		return d, fmt.Errorf("%s at revision %d cannot be read: %w", m.key, m.revision, err)
	}
	switch {
	case d.V < 1 || d.V > wire.SchemaVersion:
		return d, fmt.Errorf("%s at revision %d has schema version %d, this program knows 1 to %d", m.key, m.revision, d.V, wire.SchemaVersion)
	case descKey(d.RID) != m.key:
		return d, fmt.Errorf("%s at revision %d says that it is of node %q", m.key, m.revision, d.RID)
	}
	for _, c := range d.Channels {
		if c.Weight < 0 || c.Weight > MaxWeight {
			return d, fmt.Errorf("%s at revision %d gives channel %q the weight %d, allowed are 0 to %d", m.key, m.revision, c.Name, c.Weight, MaxWeight)
		}
	}
	return d, nil
}
