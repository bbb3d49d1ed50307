package wire

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// MaxName is the greatest length of a mesh, RID, channel or type name, in bytes.
const MaxName = 64

// MaxID is the greatest length of an object ID, in bytes before escaping.
const MaxID = 255

// CheckName returns an error that names the field, the value and the allowed form when name is not
// [A-Za-z0-9_-]{1,64}.
func CheckName(field, name string) error {
	ok := len(name) >= 1 && len(name) <= MaxName
	for i := 0; ok && i < len(name); i++ {
		ok = plain(name[i])
	}
	if !ok {
		return fmt.Errorf("%s %s is not allowed: it must be 1 to %d characters of A-Z, a-z, 0-9, _ and -", field, quoteShort(name), MaxName)
	}
	return nil
}

// quoteShort quotes s, cut to a length that fits a line.
func quoteShort(s string) string {
	if len(s) > 80 {
		return fmt.Sprintf("%q... (%d bytes)", s[:80], len(s))
	}
	return fmt.Sprintf("%q", s)
}

func plain(c byte) bool {
	return c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '_' || c == '-'
}

// EscapeID turns an object ID (valid UTF-8, 1..255 bytes) into one subject or key token: A-Za-z0-9_- stay, every
// other byte becomes =XX with upper-case hexadecimal digits.
func EscapeID(id string) (string, error) {
	if len(id) == 0 || len(id) > MaxID || !utf8.ValidString(id) {
		return "", fmt.Errorf("object ID %s is not allowed: it must be valid UTF-8 of 1 to %d bytes", quoteShort(id), MaxID)
	}
	n := 0
	for i := 0; i < len(id); i++ {
		if !plain(id[i]) {
			n++
		}
	}
	if n == 0 {
		return id, nil
	}
	const hex = "0123456789ABCDEF"
	var b strings.Builder
	b.Grow(len(id) + 2*n)
	for i := 0; i < len(id); i++ {
		if c := id[i]; plain(c) {
			b.WriteByte(c)
		} else {
			b.WriteByte('=')
			b.WriteByte(hex[c>>4])
			b.WriteByte(hex[c&15])
		}
	}
	return b.String(), nil
}

// UnescapeID is the inverse of EscapeID. It refuses every token that EscapeID does not produce, so that an ID has
// exactly one token.
func UnescapeID(token string) (string, error) {
	var b strings.Builder
	b.Grow(len(token))
	for i := 0; i < len(token); i++ {
		c := token[i]
		if c == '=' && i+2 < len(token) {
			hi, ok1 := unhex(token[i+1])
			lo, ok2 := unhex(token[i+2])
			if v := hi<<4 | lo; ok1 && ok2 && !plain(v) {
				b.WriteByte(v)
				i += 2
				continue
			}
		}
		if !plain(c) {
			return "", fmt.Errorf("token %s is not an escaped object ID", quoteShort(token))
		}
		b.WriteByte(c)
	}
	id := b.String()
	if len(id) == 0 || len(id) > MaxID || !utf8.ValidString(id) {
		return "", fmt.Errorf("token %s is not an escaped object ID", quoteShort(token))
	}
	return id, nil
}

func unhex(c byte) (byte, bool) {
	switch {
	case c >= '0' && c <= '9':
		return c - '0', true
	case c >= 'A' && c <= 'F':
		return c - 'A' + 10, true
	}
	return 0, false
}
