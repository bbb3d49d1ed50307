package kvlocation

import (
	"bytes"
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// A record may be rewritten by a version that does not know all its fields. What it does not know it keeps.

// fieldNames returns the JSON names of a struct's fields.
func fieldNames(t reflect.Type) map[string]bool {
	names := make(map[string]bool, t.NumField())
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		names[name] = true
	}
	return names
}

// decodeKeeping decodes data into v, a pointer to a struct, and returns the fields that are not among known.
func decodeKeeping(data []byte, v any, known map[string]bool) (map[string]json.RawMessage, error) {
	if err := json.Unmarshal(data, v); err != nil {
		return nil, err
	}
	var all map[string]json.RawMessage
	if err := json.Unmarshal(data, &all); err != nil {
		return nil, err
	}
	maps.DeleteFunc(all, func(name string, _ json.RawMessage) bool { return known[name] })
	if len(all) == 0 {
		return nil, nil
	}
	return all, nil
}

// encodeKeeping encodes v, a struct, with the unknown fields behind its own, in the order of their names.
func encodeKeeping(v any, unknown map[string]json.RawMessage) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false) // what was carried as it is stays as it is
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	out := bytes.TrimSuffix(b.Bytes(), []byte("\n"))
	if len(unknown) == 0 {
		return out, nil
	}
	out = out[:len(out)-1]
	for _, name := range slices.Sorted(maps.Keys(unknown)) {
		key, err := json.Marshal(name)
		if err != nil {
			return nil, err
		}
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(append(append(out, key...), ':'), unknown[name]...)
	}
	return append(out, '}'), nil
}
