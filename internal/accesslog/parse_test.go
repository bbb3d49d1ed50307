package accesslog

import (
	"bufio"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const good = `198.18.0.1 - - [17/May/2015:10:05:03 +0000] "GET /a?b=c HTTP/1.1" 200 203023 "http://site.example/" "Mozilla/5.0 (X11)"`

func TestParse(t *testing.T) {
	e, err := Parse(good + "\r\n")
	if err != nil {
		t.Fatal(err)
	}
	want := Entry{
		Client: "198.18.0.1", Time: time.Date(2015, 5, 17, 10, 5, 3, 0, time.UTC), Request: "GET /a?b=c HTTP/1.1",
		Method: "GET", Target: "/a?b=c", Protocol: "HTTP/1.1", Status: 200, Size: 203023,
		Referrer: "http://site.example/", Agent: "Mozilla/5.0 (X11)",
	}
	if !e.Time.Equal(want.Time) {
		t.Errorf("time is %v, want %v", e.Time, want.Time)
	}
	e.Time = want.Time
	if e != want {
		t.Errorf("got  %+v\nwant %+v", e, want)
	}
}

func TestParseUnusual(t *testing.T) {
	for name, c := range map[string]struct {
		line  string
		check func(Entry) bool
	}{
		"no size":                {strings.Replace(good, "203023", "-", 1), func(e Entry) bool { return e.Size == 0 && e.Status == 200 }},
		"user with a space":      {strings.Replace(good, "- - [", "id Jane Doe [", 1), func(e Entry) bool { return e.Identity == "id" && e.User == "Jane Doe" }},
		"escaped quote":          {strings.Replace(good, "(X11)", `\"X\"`, 1), func(e Entry) bool { return e.Agent == `Mozilla/5.0 \"X\"` }},
		"no agent":               {strings.Replace(good, "Mozilla/5.0 (X11)", "-", 1), func(e Entry) bool { return e.Agent == "" }},
		"request of one word":    {strings.Replace(good, "GET /a?b=c HTTP/1.1", `\x16\x03`, 1), func(e Entry) bool { return e.Method == "" && e.Request == `\x16\x03` }},
		"request of four words":  {strings.Replace(good, "/a?b=c", "/a b", 1), func(e Entry) bool { return e.Method == "" && e.Request == "GET /a b HTTP/1.1" }},
		"empty request":          {strings.Replace(good, "GET /a?b=c HTTP/1.1", "", 1), func(e Entry) bool { return e.Request == "" }},
		"host name, other clock": {strings.Replace(strings.Replace(good, "198.18.0.1", "a.example", 1), "+0000", "-0730", 1), func(e Entry) bool { return e.Client == "a.example" && e.Time.UTC().Hour() == 17 }},
	} {
		t.Run(name, func(t *testing.T) {
			e, err := Parse(c.line)
			if err != nil || !c.check(e) {
				t.Fatalf("Parse(%s) = %+v, %v", c.line, e, err)
			}
		})
	}
}

func TestParseMalformed(t *testing.T) {
	for name, c := range map[string]struct{ line, field string }{
		"empty":              {"", "client"},
		"only a client":      {"198.18.0.1", "identity"},
		"two spaces":         {strings.Replace(good, " -", "  -", 1), "identity"},
		"no time":            {"a - - x", "user"},
		"bad month":          {strings.Replace(good, "May", "Mai", 1), "time"},
		"time without end":   {`a - - [17/May/2015`, "time"},
		"cut in the agent":   {good[:len(good)-1], "user agent"},
		"cut before agent":   {good[:strings.Index(good, ` "Mozilla`)], "user agent"},
		"cut in the request": {good[:strings.Index(good, "/a?b")], "request"},
		"status of letters":  {strings.Replace(good, " 200 ", " OK ", 1), "status"},
		"status too large":   {strings.Replace(good, " 200 ", " 999 ", 1), "status"},
		"negative size":      {strings.Replace(good, "203023", "-5", 1), "size"},
		"size too large":     {strings.Replace(good, "203023", "99999999999999999999", 1), "size"},
		"no space after":     {strings.Replace(good, `" 200`, `"200`, 1), "status"},
		"something follows":  {good + " more", "end of line"},
	} {
		t.Run(name, func(t *testing.T) {
			e, err := Parse(c.line)
			var malformed *Error
			if !errors.As(err, &malformed) || malformed.Field != c.field {
				t.Fatalf("Parse(%s) = %v, want an error at field %q", c.line, err, c.field)
			}
			if e != (Entry{}) {
				t.Errorf("a half-read entry was returned: %+v", e)
			}
			if malformed.Offset < 0 || malformed.Offset > len(c.line) {
				t.Errorf("offset %d is outside the line", malformed.Offset)
			}
		})
	}
}

func TestClass(t *testing.T) {
	for status, want := range map[int]Class{101: Information, 206: Success, 304: Redirection, 416: ClientError, 500: ServerError} {
		if got := (Entry{Status: status}).Class(); got != want {
			t.Errorf("class of %d is %s, want %s", status, got, want)
		}
	}
}

// The real log, counted independently of this parser.
func TestRealLog(t *testing.T) {
	f, err := os.Open("../../examples/data/access.log")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	got, malformed, lines := map[int]int{}, 0, 0
	for sc := bufio.NewScanner(f); sc.Scan(); lines++ {
		e, err := Parse(sc.Text())
		if err != nil {
			malformed++
			continue
		}
		got[e.Status]++
		if e.Method == "" {
			t.Errorf("line %d: request %q has not three parts", lines+1, e.Request)
		}
	}
	want := map[int]int{200: 9125, 304: 445, 404: 213, 301: 164, 206: 45, 500: 3, 403: 2, 416: 2}
	if lines != 10_000 || malformed != 1 || len(got) != len(want) {
		t.Errorf("%d lines, %d malformed, %d status codes; want 10000, 1, %d", lines, malformed, len(got), len(want))
	}
	for status, n := range want {
		if got[status] != n {
			t.Errorf("status %d: %d lines, want %d", status, got[status], n)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(good)
	f.Add(`a - - [`)
	f.Add(`a b c [17/May/2015:10:05:03 +0000] "\`)
	f.Fuzz(func(t *testing.T, line string) {
		e, err := Parse(line)
		if (err == nil) == (e == Entry{}) {
			t.Fatalf("Parse(%q) = %+v, %v", line, e, err)
		}
	})
}

func BenchmarkParse(b *testing.B) {
	b.ReportAllocs()
	b.SetBytes(int64(len(good)))
	for b.Loop() {
		if _, err := Parse(good); err != nil {
			b.Fatal(err)
		}
	}
}
