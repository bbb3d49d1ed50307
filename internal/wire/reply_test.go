package wire

import (
	"math"
	"strings"
	"testing"
	"time"
)

const prefix = "fab.m.node.n1.7.r3"

func TestReplyRoundTrip(t *testing.T) {
	for _, b := range []ReplyBlob{
		{},
		{Token: 1, Flags: FlagNotice},
		{Token: math.MaxUint64, Deadline: time.UnixMilli(1), Flags: FlagNotice | FlagOneWay},
		{Token: 35, Deadline: time.UnixMilli(1_780_000_000_123)},
		{Token: 36, Deadline: time.UnixMilli(math.MaxInt64), Flags: 255},
	} {
		subject := string(AppendReply([]byte("x"), prefix, b))
		subject, ok := strings.CutPrefix(subject, "x"+prefix+".")
		if !ok || strings.ContainsAny(subject, ". *>\t") {
			t.Errorf("%+v: the blob %q is not one token behind the prefix", b, subject)
		}
		subject = prefix + "." + subject
		if got, ok := ParseReply(subject); !ok || got != b {
			t.Errorf("%+v came back as %+v, %v", b, got, ok)
		}
		for notice, s := range map[bool]string{false: subject, true: subject + NoticeSuffix} {
			if token, n, ok := ParseAnswer(s, len(prefix)); !ok || token != b.Token || n != notice {
				t.Errorf("answer on %s: token %d, notice %v, %v", s, token, n, ok)
			}
		}
	}
}

// A deadline keeps its milliseconds and loses what is finer, so that a receiver never judges later than the caller
// meant.
func TestReplyDeadlineIsRoundedDown(t *testing.T) {
	at := time.Unix(1_780_000_000, 123_999_999)
	got, ok := ParseReply(string(AppendReply(nil, prefix, ReplyBlob{Deadline: at})))
	if !ok || !got.Deadline.Equal(at.Truncate(time.Millisecond)) {
		t.Errorf("%v, %v", got.Deadline, ok)
	}
}

func TestParseReplyRefusesOthers(t *testing.T) {
	for _, s := range []string{
		"", ".", "fab.", "_INBOX.abc.def", "_INBOX.abc.1--0", "fab.m.x", "fab.m.-", "fab.m.--", "fab.m.1-", "fab.m.-1-0", "fab.m.1-2", "fab.m.1--",
		"fab.m.1--74" /* flags 256 */, "fab.m.1--x!", "fab.m.!--0", "fab.m.1-!-0", "fab.m.1-0-0", "fab.m.1--5-0",
		"fab.m.3w5e11264sgsg--0" /* 2^64 */, "fab.m.1-1y2p0ij32e8e8-0", /* 2^63 */
	} {
		if b, ok := ParseReply(s); ok {
			t.Errorf("ParseReply(%q) = %+v", s, b)
		}
	}
}

func TestParseAnswerRefusesOthers(t *testing.T) {
	for _, s := range []string{"", prefix, prefix + ".", prefix + "..a", prefix + ".a", prefix + ".x.1--0", prefix + ".1--0.b", prefix + ".1--0.a.a"} {
		if token, notice, ok := ParseAnswer(s, len(prefix)); ok {
			t.Errorf("ParseAnswer(%q) = %d, %v", s, token, notice)
		}
	}
}

// A subject comes from anyone on the network: it is refused or read, without a panic, and what was read can be
// written again and means the same.
func FuzzParse(f *testing.F) {
	f.Add(prefix + ".1-mrq0n6f0-3")
	f.Add(prefix + ".zz--0.a")
	f.Add("fab.--")
	f.Add(prefix + ".1-+5-+1")
	f.Fuzz(func(t *testing.T, s string) {
		if b, ok := ParseReply(s); ok {
			if again, ok := ParseReply(string(AppendReply(nil, prefix, b))); !ok || again != b {
				t.Fatalf("%q means %+v, which was written and read as %+v", s, b, again)
			}
		}
		for _, n := range []int{0, len(prefix), len(s)} {
			if token, notice, ok := ParseAnswer(s, n); ok {
				b := string(AppendReply(nil, prefix, ReplyBlob{Token: token}))
				if notice {
					b += NoticeSuffix
				}
				if tok, no, ok := ParseAnswer(b, len(prefix)); !ok || tok != token || no != notice {
					t.Fatalf("%q: token %d, notice %v came back as %d, %v, %v", s, token, notice, tok, no, ok)
				}
			}
		}
	})
}

// A request with this reply subject needs no allocation beyond the subject itself, at either end.
func TestReplyAllocates(t *testing.T) {
	buf := make([]byte, 0, 256)
	blob := ReplyBlob{Token: math.MaxUint64, Deadline: time.UnixMilli(1_780_000_000_123), Flags: 3}
	subject := string(AppendReply(nil, prefix, blob))
	for name, f := range map[string]func(){
		"AppendReply":                    func() { buf = AppendReply(buf[:0], prefix, blob) },
		"ParseReply":                     func() { ParseReply(subject) },
		"ParseReply of a plain client's": func() { ParseReply("_INBOX.cJoDMKkVnOdoTlqyBLvxyz.cJoDMKkV") },
		"ParseAnswer":                    func() { ParseAnswer(subject, len(prefix)) },
	} {
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s allocates %v times", name, n)
		}
	}
}

func BenchmarkAppendReply(b *testing.B) {
	blob := ReplyBlob{Token: 123456789, Deadline: time.UnixMilli(1_780_000_000_123), Flags: FlagNotice}
	var buf []byte
	b.ReportAllocs()
	for b.Loop() {
		buf = AppendReply(buf[:0], prefix, blob)
	}
}

func BenchmarkParseReply(b *testing.B) {
	subject := string(AppendReply(nil, prefix, ReplyBlob{Token: 123456789, Deadline: time.UnixMilli(1_780_000_000_123), Flags: FlagNotice}))
	b.ReportAllocs()
	for b.Loop() {
		ParseReply(subject)
	}
}

func TestAnswerable(t *testing.T) {
	for reply, want := range map[string]bool{
		"": true, "_INBOX.abc": true, "_INBOX_session.abc.0": true, "fabric": true, "my.inbox": true,
		prefix + ".1--0": true, "fab.m.client.c.r1.1--0": true,
		"$KV.FABRIC_m_LOCATION.actor.alice": false, "$JS.API.STREAM.DELETE.KV_FABRIC_m_NODES": false, "$SYS.REQ.SERVER.PING": false,
		"fab.m.admin.release": false, "fab.m.ch.work": false, "fab.m.relay.first.x": false, "fab.m.chg.nodes.desc.n1": false,
		"fab.m.node.n1.7.obj.msg.actor.a": false, "fab.m.node.n1.7.ses.bind.a": false, "fab.m.node.n1.7.ch.r3": false,
		"fab.m.node.n1.7.hello": false, "fab.m.node.n1.7.relay.x": false, "fab.m.node.r1.r7": false, "fab.m": false, "fab.": false,
	} {
		if got := Answerable(reply); got != want {
			t.Errorf("%q: %v", reply, got)
		}
	}
}
