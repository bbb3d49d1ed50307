package wire

import (
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestCheckName(t *testing.T) {
	for _, name := range []string{"a", "A-z_09", "-", "_", strings.Repeat("x", MaxName)} {
		if err := CheckName("mesh", name); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	for _, name := range []string{"", "a.b", "a b", "*", ">", "ä", "a\x00", "a\n", "=", strings.Repeat("x", MaxName+1)} {
		if err := CheckName("mesh", name); err == nil {
			t.Errorf("%q is allowed", name)
		}
	}
}

// The text names the field, the value (cut to fit a line) and the allowed form.
func TestCheckNameText(t *testing.T) {
	const form = " is not allowed: it must be 1 to 64 characters of A-Z, a-z, 0-9, _ and -"
	for _, c := range []struct{ name, want string }{
		{"a.b", `RID "a.b"` + form},
		{"", `RID ""` + form},
		{strings.Repeat("x", 1000), `RID "` + strings.Repeat("x", 80) + `"... (1000 bytes)` + form},
	} {
		if err := CheckName("RID", c.name); err == nil || err.Error() != c.want {
			t.Errorf("got  %v\nwant %s", err, c.want)
		}
	}
}

func TestEscapeID(t *testing.T) {
	for _, c := range []struct{ id, token string }{
		{"abc_XYZ-09", "abc_XYZ-09"},
		{"a.b", "a=2Eb"},
		{"=", "=3D"},
		{"*>", "=2A=3E"},
		{" \t\x00", "=20=09=00"},
		{"ä", "=C3=A4"},
		{"주문", "=EC=A3=BC=EB=AC=B8"},
	} {
		if got, err := EscapeID(c.id); err != nil || got != c.token {
			t.Errorf("EscapeID(%q) = %q, %v; want %q", c.id, got, err, c.token)
		}
		if got, err := UnescapeID(c.token); err != nil || got != c.id {
			t.Errorf("UnescapeID(%q) = %q, %v; want %q", c.token, got, err, c.id)
		}
	}
	for _, id := range []string{"", "\xff", "a\xc3", "\xed\xa0\x80", strings.Repeat("x", MaxID+1)} {
		if got, err := EscapeID(id); err == nil {
			t.Errorf("EscapeID(%q) = %q, want an error", id, got)
		}
	}
	longest := strings.Repeat("\x00", MaxID)
	if token, err := EscapeID(longest); err != nil || len(token) != 3*MaxID {
		t.Errorf("the longest ID: %d bytes, %v", len(token), err)
	} else if back, err := UnescapeID(token); err != nil || back != longest {
		t.Errorf("the longest ID does not come back: %v", err)
	}
}

// An ID has exactly one token: what EscapeID would not have written is refused.
func TestUnescapeIDRefusesOtherSpellings(t *testing.T) {
	for _, token := range []string{
		"", "=41", "=2D", "=5F", "=3d", "=c3=a4", "=", "=C", "=GG", "a=", "a.b", "a b", "ä",
		"=FF", "=C3", strings.Repeat("x", MaxID+1), strings.Repeat("=00", MaxID+1),
	} {
		if id, err := UnescapeID(token); err == nil {
			t.Errorf("UnescapeID(%q) = %q, want an error", token, id)
		}
	}
}

// Every character of Unicode survives, alone, in a token that is valid in subjects and in keys.
func TestEscapeIDOfAllOfUnicode(t *testing.T) {
	for r := rune(0); r <= utf8.MaxRune; r++ {
		if !utf8.ValidRune(r) {
			continue
		}
		id := string(r)
		token, err := EscapeID(id)
		if err != nil {
			t.Fatalf("%U: %v", r, err)
		}
		for i := range len(token) {
			if !plain(token[i]) && token[i] != '=' {
				t.Fatalf("%U: the token %q has the byte %q", r, token, token[i])
			}
		}
		if back, err := UnescapeID(token); err != nil || back != id {
			t.Fatalf("%U: %q came back as %q, %v", r, token, back, err)
		}
	}
}

var tokenForm = regexp.MustCompile(`^(?:[A-Za-z0-9_-]|=[0-9A-F]{2})+$`)

func FuzzEscapeID(f *testing.F) {
	f.Add("plain")
	f.Add("a.b >*\x00=41")
	f.Add("=EC=A3=BC")
	f.Add("주문/42")
	f.Fuzz(func(t *testing.T, s string) {
		if token, err := EscapeID(s); err == nil {
			if !tokenForm.MatchString(token) {
				t.Fatalf("token %q of %q", token, s)
			}
			if back, err := UnescapeID(token); err != nil || back != s {
				t.Fatalf("%q came back as %q, %v", s, back, err)
			}
		}
		if id, err := UnescapeID(s); err == nil {
			if token, err := EscapeID(id); err != nil || token != s {
				t.Fatalf("%q is a second spelling of %q (%q, %v)", s, id, token, err)
			}
		}
	})
}
