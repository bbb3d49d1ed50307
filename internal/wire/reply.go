package wire

import (
	"strconv"
	"strings"
	"time"
)

// Flags of a request, as they stand in its reply subject.
type Flags uint8

const (
	// FlagNotice asks for an early acceptance notice.
	FlagNotice Flags = 1 << iota
	// FlagOneWay marks a Send: the acceptance notice ends it and the handler's reply goes nowhere.
	FlagOneWay
)

// NoticeSuffix is appended to a reply subject to send the acceptance notice of a request. The notice's payload is
// the RID of the member that accepted.
const NoticeSuffix = ".a"

// ReplyBlob is what the last token of a fabric caller's reply subject says.
type ReplyBlob struct {
	// Token tells the caller's operations apart within one connection epoch.
	Token uint64
	// Deadline is the operation's deadline on the store's clock, with millisecond precision; the zero time means
	// that the caller does not know the store's clock yet.
	Deadline time.Time
	Flags    Flags
}

// AppendReply appends prefix + "." + blob to dst. The blob is <token>-<deadline>-<flags>, numbers in base 36,
// deadline in Unix milliseconds.
func AppendReply(dst []byte, prefix string, b ReplyBlob) []byte {
	dst = append(dst, prefix...)
	dst = append(dst, '.')
	dst = strconv.AppendUint(dst, b.Token, 36)
	dst = append(dst, '-')
	if !b.Deadline.IsZero() {
		dst = strconv.AppendInt(dst, b.Deadline.UnixMilli(), 36)
	}
	dst = append(dst, '-')
	return strconv.AppendUint(dst, uint64(b.Flags), 36)
}

// ParseReply reads the blob of a reply subject made by AppendReply. ok is false for any other reply subject, a
// plain client's included.
func ParseReply(reply string) (b ReplyBlob, ok bool) {
	if !strings.HasPrefix(reply, "fab.") {
		return b, false
	}
	return parseBlob(reply[strings.LastIndexByte(reply, '.')+1:])
}

// ParseAnswer reads the token of the subject on which an answer arrived, and whether it is an acceptance notice.
// prefixLen is the length of the caller's own prefix.
func ParseAnswer(subject string, prefixLen int) (token uint64, notice, ok bool) {
	if len(subject) <= prefixLen+1 {
		return 0, false, false
	}
	rest := subject[prefixLen+1:]
	if strings.HasSuffix(rest, NoticeSuffix) {
		rest, notice = rest[:len(rest)-len(NoticeSuffix)], true
	}
	b, ok := parseBlob(rest)
	return b.Token, notice, ok
}

// Answerable reports whether an answer may go to a reply subject: to any inbox, but not to a subject of the NATS server's
// own ($...), nor to one of a mesh that is no reply subject of a node's or a client's. A NATS server does not check reply
// subjects against permissions, so who may ask a node anything could otherwise have it write where only the node may: a
// record of the Location Store, for example.
func Answerable(reply string) bool {
	rest, own := strings.CutPrefix(reply, "fab.")
	if !own {
		return !strings.HasPrefix(reply, "$")
	}
	_, rest, _ = strings.Cut(rest, ".") // the mesh
	if strings.HasPrefix(rest, "client.") {
		return true
	}
	rest, ok := strings.CutPrefix(rest, "node.")
	for range 2 { // the RID and the lifecycle
		_, rest, _ = strings.Cut(rest, ".")
	}
	return ok && len(rest) > 1 && rest[0] == 'r' && '0' <= rest[1] && rest[1] <= '9'
}

func parseBlob(s string) (b ReplyBlob, ok bool) {
	i := strings.IndexByte(s, '-')
	j := strings.LastIndexByte(s, '-')
	if i < 1 || j <= i {
		return b, false
	}
	token, err := strconv.ParseUint(s[:i], 36, 64)
	if err != nil {
		return b, false
	}
	flags, err := strconv.ParseUint(s[j+1:], 36, 8)
	if err != nil {
		return b, false
	}
	b.Token, b.Flags = token, Flags(flags)
	if j > i+1 {
		ms, err := strconv.ParseInt(s[i+1:j], 36, 64)
		if err != nil || ms <= 0 {
			return ReplyBlob{}, false
		}
		b.Deadline = time.UnixMilli(ms)
	}
	return b, true
}
