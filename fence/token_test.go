package fence

import (
	"cmp"
	"encoding/json"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func tokens(source string) *rapid.Generator[Token] {
	number := rapid.OneOf(rapid.Uint64(), rapid.Uint64Range(0, 3))
	return rapid.Custom(func(t *rapid.T) Token {
		return Token{source, number.Draw(t, "epoch"), number.Draw(t, "generation"), number.Draw(t, "sequence")}
	})
}

// Order of tokens and of their texts is one, and text goes round.
func TestTextSortsAsTokens(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		source := rapid.StringMatching(`[A-Za-z0-9_=-]{1,64}/(actor|spot)/[A-Za-z0-9_=-]{1,40}`).Draw(t, "source")
		a, b := tokens(source).Draw(t, "a"), tokens(source).Draw(t, "b")
		if got, want := cmp.Compare(a.String(), b.String()), a.Compare(b); got != want {
			t.Fatalf("texts of %v and %v compare as %d, the tokens as %d", a, b, got, want)
		}
		if a.Compare(b) != -b.Compare(a) || a.Compare(a) != 0 {
			t.Fatalf("the order of %v and %v is not one", a, b)
		}
		if back, err := ParseToken(a.String()); err != nil || back != a {
			t.Fatalf("%v came back as %v, %v", a, back, err)
		}
	})
}

// Whatever ParseToken takes is what String writes: a token has one text.
func TestOneTextPerToken(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := []byte(tokens("m/actor/a").Draw(t, "token").String())
		for range rapid.IntRange(1, 3).Draw(t, "edits") {
			i := rapid.IntRange(0, len(text)-1).Draw(t, "at")
			text[i] = rapid.Byte().Draw(t, "byte")
		}
		if tok, err := ParseToken(string(text)); err == nil && tok.String() != string(text) {
			t.Fatalf("%q was read as %q", text, tok)
		}
	})
}

func TestParseRefuses(t *testing.T) {
	good := Token{"m/actor/a", 1, 34, 2}.String()
	if want := "m/actor/a:0000000000000001-0000000000000022-0000000000000002"; good != want {
		t.Fatalf("the text is %q, want %q", good, want)
	}
	for _, text := range []string{
		"", ":", "m/actor/a", good[1+len("m/actor/a"):], good[len("m/actor/a"):], good + "0", good[:len(good)-1], good + "\n", " " + good,
		strings.Replace(good, "22", "2A", 1), strings.Replace(good, "-", "_", 1), strings.Replace(good, "m/", "m:", 1),
		strings.Replace(good, "m/", "m /", 1), strings.Replace(good, "m/", "ü/", 1), strings.Replace(good, "01-", "0--", 1),
		strings.Repeat("s", MaxSource) + good,
	} {
		if tok, err := ParseToken(text); err == nil {
			t.Errorf("%q was read as %+v", text, tok)
		}
	}
}

func TestTokenInJSON(t *testing.T) {
	type row struct {
		A, B Token
	}
	in := row{A: Token{"m/spot/s", 1, 2, 3}}
	raw, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	var out row
	if err := json.Unmarshal(raw, &out); err != nil || out != in {
		t.Fatalf("%s came back as %+v, %v", raw, out, err)
	}
	if !out.B.IsZero() || out.A.IsZero() {
		t.Fatalf("IsZero is wrong for %+v", out)
	}
	if err := json.Unmarshal([]byte(`{"A":"m/spot/s:1-2-3"}`), &out); err == nil {
		t.Fatal("a short text was read")
	}
	if _, err := json.Marshal(row{A: Token{Source: "with space", Epoch: 1}}); err == nil {
		t.Fatal("a source that no parser takes was written")
	}
}
