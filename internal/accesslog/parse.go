package accesslog

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Error says why a line is malformed.
type Error struct {
	// Field is the field at which reading stopped: "client", "time", "request", "status", ...
	Field string
	// Offset is where in the line the field begins, in bytes.
	Offset int
	// Reason says what was expected.
	Reason string
}

func (e *Error) Error() string {
	return fmt.Sprintf("malformed access log line: %s at byte %d: %s", e.Field, e.Offset, e.Reason)
}

// timeLayout is how a server writes the time between the brackets.
const timeLayout = "02/Jan/2006:15:04:05 -0700"

// Parse reads one line, with or without its line end. A line that is not well formed gives a *Error and a zero Entry.
func Parse(line string) (Entry, error) {
	s := scanner{line: strings.TrimSuffix(strings.TrimSuffix(line, "\n"), "\r")}
	var e Entry
	e.Client = s.word("client")
	e.Identity = dash(s.word("identity"))
	e.User = dash(s.until("user", " ["))
	e.Time = s.time("time")
	e.Request = s.quoted("request")
	e.Status = int(s.number("status", 100, 599))
	e.Size = s.size("size")
	e.Referrer = dash(s.quoted("referrer"))
	e.Agent = dash(s.quoted("user agent"))
	s.end()
	if s.err != nil {
		return Entry{}, s.err
	}
	if method, rest, ok := strings.Cut(e.Request, " "); ok {
		if target, protocol, ok := strings.Cut(rest, " "); ok && !strings.Contains(protocol, " ") {
			e.Method, e.Target, e.Protocol = method, target, protocol
		}
	}
	return e, nil
}

// dash turns the log's sign for "nothing" into nothing.
func dash(s string) string {
	if s == "-" {
		return ""
	}
	return s
}

// scanner reads fields one after the other. The first failure stays, and later reads return nothing.
type scanner struct {
	line string
	at   int
	err  error
}

func (s *scanner) fail(field, reason string) {
	if s.err == nil {
		s.err = &Error{Field: field, Offset: s.at, Reason: reason}
	}
	s.at = len(s.line)
}

// space takes the one space that stands before every field but the first.
func (s *scanner) space(field string) {
	if s.err != nil || s.at == 0 {
		return
	}
	if s.at >= len(s.line) {
		s.fail(field, "the line ends before it")
		return
	}
	if s.line[s.at] != ' ' {
		s.fail(field, "one space must stand before it")
		return
	}
	s.at++
}

func (s *scanner) word(field string) string {
	s.space(field)
	rest := s.line[s.at:]
	end := strings.IndexByte(rest, ' ')
	if end < 0 {
		end = len(rest)
	}
	if end == 0 {
		s.fail(field, "it is empty")
		return ""
	}
	s.at += end
	return rest[:end]
}

// until reads up to stop, which begins with the space before the next field. User names may hold spaces.
func (s *scanner) until(field, stop string) string {
	s.space(field)
	rest := s.line[s.at:]
	end := strings.Index(rest, stop)
	if end <= 0 {
		s.fail(field, "it is empty or nothing follows it")
		return ""
	}
	s.at += end
	return rest[:end]
}

func (s *scanner) time(field string) time.Time {
	s.space(field)
	rest := s.line[s.at:]
	end := strings.IndexByte(rest, ']')
	if end < 0 || rest[0] != '[' {
		s.fail(field, "it must stand between [ and ]")
		return time.Time{}
	}
	t, err := time.Parse(timeLayout, rest[1:end])
	if err != nil {
		s.fail(field, "it must look like [17/May/2015:10:05:03 +0000]")
		return time.Time{}
	}
	s.at += end + 1
	return t
}

func (s *scanner) quoted(field string) string {
	s.space(field)
	rest := s.line[s.at:]
	if rest == "" || rest[0] != '"' {
		s.fail(field, "it must begin with a quote")
		return ""
	}
	for i := 1; i < len(rest); i++ {
		switch rest[i] {
		case '\\':
			i++
		case '"':
			s.at += i + 1
			return rest[1:i]
		}
	}
	s.fail(field, "its closing quote is missing")
	return ""
}

func (s *scanner) number(field string, lo, hi int64) int64 {
	at := s.at
	w := s.word(field)
	if s.err != nil {
		return 0
	}
	n, err := strconv.ParseInt(w, 10, 64)
	if err != nil || n < lo || n > hi || w[0] == '+' {
		s.at = at + 1
		s.fail(field, fmt.Sprintf("it must be a number of %d to %d", lo, hi))
		return 0
	}
	return n
}

func (s *scanner) size(field string) int64 {
	if strings.HasPrefix(s.line[s.at:], " - ") {
		s.at += 2
		return 0
	}
	return s.number(field, 0, 1<<62)
}

func (s *scanner) end() {
	if s.err == nil && s.at != len(s.line) {
		s.fail("end of line", "nothing may follow the user agent")
	}
}
