// Package jsonkeep lets a record be rewritten by a version that does not know all its fields: what it does not know it keeps.
package jsonkeep

import (
	"bytes"
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// Names returns the JSON names of a struct's fields.
func Names(t reflect.Type) map[string]bool {
	names := make(map[string]bool, t.NumField())
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		names[name] = true
	}
	return names
}

// Decode decodes data into v, a pointer to a struct, and returns the fields that are not among known.
func Decode(data []byte, v any, known map[string]bool) (map[string]json.RawMessage, error) {
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

// Encode encodes v, a struct, with the unknown fields behind its own, in the order of their names.
func Encode(v any, unknown map[string]json.RawMessage) ([]byte, error) {
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
