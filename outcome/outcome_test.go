package outcome

import (
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var acceptances = []Acceptance{Unknown, NotAccepted, Accepted}

// An error tells its kind and what is known about acceptance, in what a program can ask and in what a person reads;
// it offers nothing that advises to retry.
func TestConformance(t *testing.T) {
	t.Run("FO-8", func(t *testing.T) {
		for _, k := range Kinds() {
			for _, a := range acceptances {
				err := error(New("request", k, a, `channel "work"`, "why"))
				for _, other := range Kinds() {
					if got := errors.Is(err, other); got != (other == k) {
						t.Errorf("errors.Is(%v, %v) = %v", err, other, got)
					}
				}
				for _, other := range acceptances {
					if got := errors.Is(err, other); got != (other == a) {
						t.Errorf("errors.Is(%v, %v) = %v", err, other, got)
					}
				}
				if KindOf(err) != k || AcceptanceOf(err) != a {
					t.Errorf("%v: KindOf %v, AcceptanceOf %v", err, KindOf(err), AcceptanceOf(err))
				}
				want := fmt.Sprintf(`request channel "work": %s (%s): why`, k, a)
				if err.Error() != want {
					t.Errorf("text %q, want %q", err.Error(), want)
				}
			}
		}
		typ := reflect.TypeFor[*Error]()
		for i := range typ.NumMethod() {
			switch m := typ.Method(i).Name; m {
			case "Error", "Headers", "Is", "Unwrap":
			default:
				t.Errorf("*Error has the method %s: Temporary, Timeout and their like are read as advice to retry", m)
			}
		}
	})
}

func TestAsFindsTheError(t *testing.T) {
	e := New("send", Rejected, Accepted, "x", "")
	var got *Error
	if !errors.As(fmt.Errorf("outer: %w", e), &got) || got != e {
		t.Errorf("errors.As found %v", got)
	}
}

// A cause may be another operation's error: its kind and acceptance must not be taken for this one's.
func TestCauseDoesNotShineThrough(t *testing.T) {
	inner := New("read", NotFound, NotAccepted, "key", "gone")
	for _, cause := range []error{inner, fmt.Errorf("wrapped: %w", inner), errors.Join(io.EOF, inner), NotFound, NotAccepted} {
		err := error(Wrap("request", Unavailable, Unknown, "", "", cause))
		if errors.Is(err, NotFound) || errors.Is(err, NotAccepted) || errors.Is(err, Accepted) {
			t.Errorf("%v matches what only its cause says", err)
		}
		if !errors.Is(err, Unavailable) || !errors.Is(err, Unknown) {
			t.Errorf("%v does not match its own kind and acceptance", err)
		}
		var k Kind
		var a Acceptance
		if errors.As(err, &k) || errors.As(err, &a) {
			t.Errorf("%v: errors.As found kind %v, acceptance %v of the cause", err, k, a)
		}
	}
}

func TestOtherErrorsOfTheCauseAreFound(t *testing.T) {
	own := &ownError{}
	sentinel := New("write", AlreadyExists, NotAccepted, "", "conflict")
	err := Wrap("request", Unavailable, Unknown, "", "", fmt.Errorf("%w, %w, %w", io.EOF, own, sentinel))
	var got *ownError
	if !errors.Is(err, io.EOF) || !errors.As(err, &got) || got != own || !errors.Is(err, sentinel) {
		t.Errorf("%v hides its cause", err)
	}
	if !strings.HasSuffix(err.Error(), "EOF, own, "+sentinel.Error()) {
		t.Errorf("text %q", err)
	}
	if New("x", Rejected, Accepted, "", "").Unwrap() != nil {
		t.Error("an error without cause unwraps to something")
	}
}

type ownError struct{}

func (*ownError) Error() string { return "own" }

func TestKindAndAcceptanceOfOtherErrors(t *testing.T) {
	for _, c := range []struct {
		err  error
		kind Kind
		acc  Acceptance
	}{
		{nil, 0, Accepted},
		{io.EOF, InternalFailure, Unknown},
		{context.Canceled, DeadlineExceeded, Unknown},
		{fmt.Errorf("x: %w", context.DeadlineExceeded), DeadlineExceeded, Unknown},
		{fmt.Errorf("x: %w", New("a", DataLost, Accepted, "", "")), DataLost, Accepted},
		{Wrap("a", Rejected, NotAccepted, "", "", context.Canceled), Rejected, NotAccepted},
	} {
		if k, a := KindOf(c.err), AcceptanceOf(c.err); k != c.kind || a != c.acc {
			t.Errorf("%v: kind %v, acceptance %v; want %v, %v", c.err, k, a, c.kind, c.acc)
		}
	}
}

func TestFromContext(t *testing.T) {
	stop := errors.New("ownership lost")
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	caused, cancelCause := context.WithCancelCause(t.Context())
	cancelCause(stop)
	expired, cancelExpired := context.WithTimeout(t.Context(), 0)
	defer cancelExpired()
	<-expired.Done()

	for _, c := range []struct {
		name     string
		ctx      context.Context
		is, isnt error
	}{
		{"cancelled", cancelled, context.Canceled, context.DeadlineExceeded},
		{"cancelled with a cause", caused, context.Canceled, context.DeadlineExceeded},
		{"expired", expired, context.DeadlineExceeded, context.Canceled},
	} {
		err := FromContext(c.ctx, "request", Accepted, "x", "while waiting")
		if !errors.Is(err, c.is) || errors.Is(err, c.isnt) || !errors.Is(err, DeadlineExceeded) || !errors.Is(err, Accepted) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if err := FromContext(caused, "request", Unknown, "", ""); !errors.Is(err, stop) {
		t.Errorf("%v hides the application's own cause", err)
	}
}

func TestNames(t *testing.T) {
	for _, k := range Kinds() {
		if got, ok := ParseKind(k.String()); !ok || got != k || !k.Valid() || k.Error() != k.String() {
			t.Errorf("kind %d: name %q reads back as %v, %v", k, k, got, ok)
		}
		if c := k.Code(); c < 400 || c > 599 {
			t.Errorf("%v has the code %d", k, c)
		}
	}
	for _, a := range acceptances {
		if got, ok := ParseAcceptance(a.String()); !ok || got != a || a.Error() != a.String() {
			t.Errorf("acceptance %d: name %q reads back as %v, %v", a, a, got, ok)
		}
	}
	if len(Kinds()) != 13 {
		t.Errorf("%d kinds, the contract has 13", len(Kinds()))
	}
	for _, s := range []string{"", "notfound", "NotFound ", "Kind(3)", "Accepted"} {
		if k, ok := ParseKind(s); ok {
			t.Errorf("ParseKind(%q) = %v", s, k)
		}
	}
	if k, a := Kind(0), Acceptance(9); k.Valid() || Kind(200).Valid() || k.String() != "Kind(0)" || a.String() != "Acceptance(9)" || k.Code() != 500 {
		t.Errorf("values out of range: %v, %v", k, a)
	}
}

// The zero value of acceptance claims nothing.
func TestZeroAcceptanceIsUnknown(t *testing.T) {
	if a := (&Error{}).Acceptance; a != Unknown {
		t.Errorf("zero acceptance is %v", a)
	}
}

func TestHeadersRoundTrip(t *testing.T) {
	for _, k := range Kinds() {
		for _, a := range acceptances {
			got := FromHeaders(New("handler", k, Unknown, "t", "what happened").Headers(a), "request", "channel")
			want := &Error{Op: "request", Kind: k, Acceptance: a, Target: "channel", Detail: "what happened", Remote: true}
			if got == nil || *got != *want {
				t.Errorf("%v, %v: got %+v", k, a, got)
			}
		}
	}
}

func TestHeadersText(t *testing.T) {
	for _, c := range []struct {
		name   string
		err    *Error
		expect string
	}{
		{"detail and cause", Wrap("x", Rejected, Accepted, "t", "no", io.EOF), "no: EOF"},
		{"cause only", Wrap("x", Rejected, Accepted, "t", "", io.EOF), "EOF"},
		{"neither", New("x", Rejected, Accepted, "t", ""), "Rejected"},
		{"lines and escapes", New("x", Rejected, Accepted, "t", "a\r\nNats-Fake: b\x1b[2J\u009b"), "a  Nats-Fake: b [2J "},
		{"not UTF-8", New("x", Rejected, Accepted, "t", "a\xffb"), "ab"},
		{"long", New("x", Rejected, Accepted, "t", strings.Repeat("ä", 300)), strings.Repeat("ä", 256)},
		{"long and cut within a character", New("x", Rejected, Accepted, "t", "x"+strings.Repeat("ä", 300)), "x" + strings.Repeat("ä", 255)},
	} {
		if got := c.err.Headers(Accepted)[HeaderServiceError][0]; got != c.expect {
			t.Errorf("%s: %q, want %q", c.name, got, c.expect)
		}
	}
}

func TestFromHeadersOfOthers(t *testing.T) {
	h := func(kv ...string) map[string][]string {
		m := map[string][]string{}
		for i := 0; i < len(kv); i += 2 {
			m[kv[i]] = append(m[kv[i]], kv[i+1])
		}
		return m
	}
	for _, c := range []struct {
		name string
		h    map[string][]string
		kind Kind // 0: no error reply
		acc  Acceptance
	}{
		{"nil", nil, 0, 0},
		{"ordinary reply", h("Fabric-Served-By", "n1", "Status", "503"), 0, 0},
		{"empty values", map[string][]string{HeaderKind: {}, HeaderServiceError: nil}, 0, 0},
		{"acceptance alone", h(HeaderAcceptance, "NotAccepted"), 0, 0},
		{"micro service", h(HeaderServiceError, "bad", HeaderServiceErrorCode, "500"), InternalFailure, Accepted},
		{"code alone", h(HeaderServiceErrorCode, "500"), InternalFailure, Accepted},
		{"unknown kind", h(HeaderKind, "Melted", HeaderAcceptance, "NotAccepted"), ProtocolError, NotAccepted},
		{"unknown acceptance", h(HeaderKind, "NotFound", HeaderAcceptance, "Perhaps"), NotFound, Unknown},
		{"the first value counts", h(HeaderKind, "NotFound", HeaderKind, "DataLost", HeaderAcceptance, "Unknown", HeaderAcceptance, "Accepted"), NotFound, Unknown},
	} {
		got := FromHeaders(c.h, "request", "x")
		if c.kind == 0 {
			if got != nil {
				t.Errorf("%s: %v", c.name, got)
			}
			continue
		}
		if got == nil || got.Kind != c.kind || got.Acceptance != c.acc || !got.Remote {
			t.Errorf("%s: %+v", c.name, got)
		}
	}
}

// Whatever a peer sends becomes one bounded line, a declared kind and a declared acceptance.
func FuzzFromHeaders(f *testing.F) {
	f.Add("text", "NotFound", "NotAccepted")
	f.Add("\x1b]0;title\a\n"+strings.Repeat("x", 600), "NotFound", "Accepted")
	f.Add("\x1b]0;title\a\n", "\u009b2J", "\xff")
	f.Add(strings.Repeat("€", 400), strings.Repeat("k", 4000), "Accepted")
	f.Fuzz(func(t *testing.T, text, kind, acc string) {
		e := FromHeaders(map[string][]string{HeaderServiceError: {text}, HeaderKind: {kind}, HeaderAcceptance: {acc}}, "request", "")
		if e == nil || !e.Kind.Valid() || e.Acceptance > Accepted {
			t.Fatalf("%+v", e)
		}
		if len(e.Detail) > maxWireDetail || !utf8.ValidString(e.Detail) || strings.ContainsFunc(e.Detail, unicode.IsControl) {
			t.Fatalf("detail %q", e.Detail)
		}
		again := FromHeaders(e.Headers(e.Acceptance), "request", "")
		if again.Kind != e.Kind || again.Acceptance != e.Acceptance {
			t.Fatalf("%+v became %+v", e, again)
		}
	})
}
