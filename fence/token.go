package fence

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"strings"
)

// MaxSource is the greatest length of a token's source, in bytes.
const MaxSource = 1024

// numbersLen is the length of a token's numbers in text: three times 16 digits, and two hyphens.
const numbersLen = 3*16 + 2

// Token is one grant of the right to write. Tokens are ordered within their source, by epoch, then generation, then
// sequence, and never go backwards (FE-1). The zero Token grants nothing.
type Token struct {
	// Source names what grants: "<mesh>/actor/<escaped id>" or "<mesh>/spot/<escaped id>" for the turns of an object,
	// "<mesh>/leader/<name>" for a term, "<mesh>/supervise/<escaped worker>" for an order to restart a worker.
	// Printable ASCII without space and colon, 1 to MaxSource bytes.
	Source string
	// Epoch is the identity of the store, larger when its streams were made again.
	Epoch uint64
	// Generation is the object's generation, larger when the object was created again; for a term the revision of its grant.
	Generation uint64
	// Sequence is the owner generation, larger when the object changed its owner; 0 for a term; for an order the revision of
	// its intent.
	Sequence uint64
}

// IsZero reports whether t is the zero Token.
func (t Token) IsZero() bool { return t == Token{} }

// Compare returns -1, 0 or +1 as t is lower than, equal to or higher than o. Tokens of different sources have no order
// that means anything; they are ordered by source, so that sorting stays well defined.
func (t Token) Compare(o Token) int {
	return cmp.Or(
		cmp.Compare(t.Source, o.Source),
		cmp.Compare(t.Epoch, o.Epoch),
		cmp.Compare(t.Generation, o.Generation),
		cmp.Compare(t.Sequence, o.Sequence),
	)
}

// String returns the token's text: <source>:<epoch>-<generation>-<sequence>, each number 16 lower-case hexadecimal
// digits. Texts of one source sort bytewise as their tokens do. The zero Token is "".
func (t Token) String() string {
	if t.IsZero() {
		return ""
	}
	return string(t.append(make([]byte, 0, len(t.Source)+1+numbersLen)))
}

// Numbers returns the token's three numbers in text, 50 bytes that sort bytewise as the tokens of one source do, for
// resources that keep source and numbers apart. The zero Token's is "".
func (t Token) Numbers() string {
	if t.IsZero() {
		return ""
	}
	return string(t.appendNumbers(make([]byte, 0, numbersLen)))
}

func (t Token) append(b []byte) []byte {
	return t.appendNumbers(append(append(b, t.Source...), ':'))
}

func (t Token) appendNumbers(b []byte) []byte {
	for i, n := range [...]uint64{t.Epoch, t.Generation, t.Sequence} {
		if i > 0 {
			b = append(b, '-')
		}
		var raw [8]byte
		for j := range raw {
			raw[j] = byte(n >> (56 - 8*j))
		}
		b = hex.AppendEncode(b, raw[:])
	}
	return b
}

// ParseToken reads what String writes and refuses every other text, "" included.
func ParseToken(text string) (Token, error) {
	bad := func(why string) (Token, error) {
		if len(text) > 120 {
			text = text[:120] + "..."
		}
		return Token{}, fmt.Errorf("fence: %q is no token: %s", text, why)
	}
	source, numbers, ok := strings.Cut(text, ":")
	switch {
	case !ok:
		return bad("it must be <source>:<epoch>-<generation>-<sequence>")
	case !validSource(source):
		return bad(sourceForm)
	case len(numbers) != numbersLen:
		return bad("its numbers must be three times 16 hexadecimal digits with hyphens between")
	}
	var n [3]uint64
	for i := range numbersLen {
		c := numbers[i]
		switch {
		case i%17 == 16:
			if c != '-' {
				return bad("its numbers must be separated by hyphens")
			}
		case c >= '0' && c <= '9':
			n[i/17] = n[i/17]<<4 | uint64(c-'0')
		case c >= 'a' && c <= 'f':
			n[i/17] = n[i/17]<<4 | uint64(c-'a'+10)
		default:
			return bad("its numbers must be lower-case hexadecimal digits")
		}
	}
	return Token{Source: source, Epoch: n[0], Generation: n[1], Sequence: n[2]}, nil
}

// MarshalText returns String's text, "" for the zero Token, and an error for a source that ParseToken would refuse.
func (t Token) MarshalText() ([]byte, error) {
	if t.IsZero() {
		return []byte{}, nil
	}
	if !validSource(t.Source) {
		return nil, fmt.Errorf("fence: source %.120q: %s", t.Source, sourceForm)
	}
	return t.append(nil), nil
}

// UnmarshalText reads MarshalText's text: "" is the zero Token, all else goes through ParseToken.
func (t *Token) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		*t = Token{}
		return nil
	}
	parsed, err := ParseToken(string(text))
	if err == nil {
		*t = parsed
	}
	return err
}

var sourceForm = fmt.Sprintf("a source must be 1 to %d bytes of printable ASCII without space and colon", MaxSource)

func validSource(s string) bool {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] >= 0x7f || s[i] == ':' {
			return false
		}
	}
	return len(s) >= 1 && len(s) <= MaxSource
}
