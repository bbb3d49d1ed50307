package fabrictest

import (
	"bytes"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"
)

// frames cuts a stream and returns the pieces.
func frames(t testing.TB, r io.Reader) []frame {
	t.Helper()
	fr := newFrameReader(r)
	var out []frame
	for {
		f, err := fr.next()
		if len(f.raw) > 0 {
			out = append(out, f)
		}
		if err != nil {
			if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Fatalf("next: %v", err)
			}
			return out
		}
	}
}

func join(fs []frame) []byte {
	var b []byte
	for _, f := range fs {
		b = append(b, f.raw...)
	}
	return b
}

// splitReader returns at most n bytes a read.
type splitReader struct {
	r io.Reader
	n int
}

func (s splitReader) Read(p []byte) (int, error) {
	return s.r.Read(p[:min(len(p), s.n)])
}

func FuzzProtocol(f *testing.F) {
	for _, s := range []string{
		"PUB a.b 5\r\nhello\r\nPING\r\n",
		"pub\ta.b  inbox.1 0\r\n\r\n",
		"HPUB a r 12 17\r\nNATS/1.0\r\n\r\nhello\r\n",
		"CONNECT {\"name\":\"x\"}\r\nSUB a.> q 1\r\nUNSUB 1 5\r\nPONG\r\n",
		"INFO {}\r\nMSG a 1 2\r\n\r\n\r\nHMSG a 1 r 12 12\r\nNATS/1.0\r\n\r\n\r\n+OK\r\n-ERR 'x'\r\n",
		"MSG a 1 3\r\nabcdPING\r\n", // wrong length
		"PUB a -1\r\n", "PUB a 99999999999999999999\r\n", "HPUB a 9 5\r\nhello\r\n",
		"RS+ a b\r\n", "\x16\x03\x01", "\r\n", "PING", "PUB a 10\r\nabc",
	} {
		f.Add([]byte(s), 3)
	}
	f.Fuzz(func(t *testing.T, stream []byte, n int) {
		whole := frames(t, bytes.NewReader(stream))
		if got := join(whole); !bytes.Equal(got, stream) {
			t.Fatalf("put together: %q, want %q", got, stream)
		}
		// Where reads end changes nothing for what is understood.
		split := frames(t, splitReader{bytes.NewReader(stream), 1 + abs(n)%7})
		if got := join(split); !bytes.Equal(got, stream) {
			t.Fatalf("split and put together: %q, want %q", got, stream)
		}
		if !reflect.DeepEqual(understood(whole), understood(split)) {
			t.Fatalf("split: %v, want %v", understood(split), understood(whole))
		}
		// A message written again reads the same.
		for _, m := range understood(whole) {
			again := frames(t, bytes.NewReader(m.encode()))
			if len(again) != 1 {
				t.Fatalf("%q written again: %d frames", m.encode(), len(again))
			}
			got := again[0].msg
			if !bytes.Equal(got.Payload, m.Payload) || got.Subject != m.Subject || got.Reply != m.Reply || got.SID != m.SID {
				t.Fatalf("written again: %+v, want %+v", got, m)
			}
		}
	})
}

func understood(fs []frame) []Message {
	var out []Message
	for _, f := range fs {
		if f.msg.Verb != "" {
			out = append(out, f.msg)
		}
	}
	return out
}

func abs(n int) int {
	if n < 0 {
		return -(n + 1)
	}
	return n
}

func TestProtocolReadsMessages(t *testing.T) {
	stream := "PUB a.b in.1 5\r\nhello\r\n" +
		"HPUB c 12 14\r\nNATS/1.0\r\n\r\nhi\r\n" +
		"SUB x q 7\r\n" +
		"MSG d 3 r 0\r\n\r\n"
	want := []Message{
		{Verb: "PUB", Subject: "a.b", Reply: "in.1", Payload: []byte("hello")},
		{Verb: "HPUB", Subject: "c", Header: []byte("NATS/1.0\r\n\r\n"), Payload: []byte("hi")},
		{Verb: "SUB", Subject: "x", Queue: "q", SID: "7"},
		{Verb: "MSG", Subject: "d", SID: "3", Reply: "r", Payload: []byte{}},
	}
	got := understood(frames(t, iotest.OneByteReader(strings.NewReader(stream))))
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("got %+v\nwant %+v", got, want)
	}
	for i, m := range got {
		if again := m.encode(); !strings.Contains(stream, string(again)) {
			t.Errorf("message %d written again: %q", i, again)
		}
	}
}

func TestProtocolLargePayload(t *testing.T) {
	payload := strings.Repeat("x", 9<<20)
	fs := frames(t, strings.NewReader("PUB a 9437184\r\n"+payload+"\r\nPING\r\n"))
	if len(fs) != 2 || string(fs[0].msg.Payload) != payload || fs[1].msg.Verb != "PING" {
		t.Fatalf("%d frames", len(fs))
	}
}

func TestSubjectMatches(t *testing.T) {
	for _, c := range []struct {
		pattern, subject string
		want             bool
	}{
		{"a.b", "a.b", true}, {"a.b", "a.c", false}, {"a.*", "a.b", true}, {"a.*", "a.b.c", false},
		{"a.>", "a.b.c", true}, {"a.>", "a", false}, {">", "a", true}, {">", "", false},
		{"*.b", "a.b", true}, {"a", "a.b", false}, {"a.b", "a", false}, {"a.*.c", "a.b.c", true},
		{"$KV.b.>", "$KV.b.k", true}, {"a.>.b", "a.x.b", false},
	} {
		if got := subjectMatches(c.pattern, c.subject); got != c.want {
			t.Errorf("%q ~ %q: %v", c.pattern, c.subject, got)
		}
	}
}
