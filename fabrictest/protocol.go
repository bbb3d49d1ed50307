package fabrictest

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"strconv"
	"strings"
)

const (
	// maxMessage is the largest payload that is looked into; nats-server
	// accepts no larger one either.
	maxMessage = 64 << 20
	// maxControlLine bounds the line of an operation. INFO and CONNECT are the
	// long ones.
	maxControlLine = 1 << 20
	// chunk is how much is read at once of a stream that is not understood.
	chunk = 32 << 10
)

// frame is a piece of the stream that is passed on as a whole: an operation of
// the protocol, or bytes that are none (then msg.Verb is empty).
type frame struct {
	raw []byte
	msg Message
}

// frameReader cuts a stream into frames. Whatever comes in, the frames put
// together are the stream. From the first byte that is not the client protocol
// (TLS, WebSocket, the protocol between servers) it returns raw chunks.
type frameReader struct {
	r      *bufio.Reader
	opaque bool // the stream is no longer understood
}

func newFrameReader(r io.Reader) *frameReader {
	return &frameReader{r: bufio.NewReaderSize(r, chunk)}
}

// next returns the next frame. With an error, the frame holds what was read
// before it and may be empty.
func (fr *frameReader) next() (frame, error) {
	if fr.opaque {
		return fr.nextChunk()
	}
	line, err := fr.readLine()
	if err != nil {
		if errors.Is(err, errNotProtocol) {
			fr.opaque, err = true, nil
		}
		return frame{raw: line}, err
	}
	msg, headerSize, size, ok := parseLine(line)
	if !ok {
		fr.opaque = true
		return frame{raw: line}, nil
	}
	if !msg.hasPayload() {
		return frame{raw: line, msg: msg}, nil
	}

	// The room grows with what comes in, not with what is announced.
	buf := bytes.NewBuffer(make([]byte, 0, len(line)+min(size, chunk)+2+bytes.MinRead))
	buf.Write(line)
	_, err = io.CopyN(buf, fr.r, int64(size)+2)
	raw := buf.Bytes()
	if err != nil {
		return frame{raw: raw}, io.ErrUnexpectedEOF
	}
	body := raw[len(line) : len(line)+size]
	if !bytes.HasSuffix(raw, []byte("\r\n")) {
		fr.opaque = true
		return frame{raw: raw}, nil
	}
	if headerSize > 0 {
		msg.Header = body[:headerSize:headerSize]
	}
	msg.Payload = body[headerSize:size:size]
	return frame{raw: raw, msg: msg}, nil
}

var errNotProtocol = errors.New("not the NATS client protocol")

// readLine reads up to and with the newline. The line returned is a copy.
func (fr *frameReader) readLine() ([]byte, error) {
	first, err := fr.r.Peek(1)
	if err != nil {
		return nil, err
	}
	// Seen at once, not at the next newline: a TLS handshake would wait for ever.
	if strings.IndexByte("PpHhSsUuCcIiMm+-", first[0]) < 0 {
		return nil, errNotProtocol
	}
	var line []byte
	for {
		part, err := fr.r.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case err == nil:
			return line, nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return line, err
		case len(line) > maxControlLine:
			return line, errNotProtocol
		}
	}
}

func (fr *frameReader) nextChunk() (frame, error) {
	buf := make([]byte, chunk)
	n, err := fr.r.Read(buf)
	return frame{raw: buf[:n]}, err
}

// parseLine understands a control line. For messages it also returns the sizes
// of the header and of header and payload together.
func parseLine(line []byte) (msg Message, headerSize, size int, ok bool) {
	text := strings.TrimSuffix(strings.TrimSuffix(string(line), "\n"), "\r")
	verb, rest := text, ""
	if i := strings.IndexAny(text, " \t"); i >= 0 {
		verb, rest = text[:i], strings.Trim(text[i:], " \t")
	}
	msg.Verb = strings.ToUpper(verb)
	args := strings.Fields(rest)

	switch msg.Verb {
	case "PUB", "HPUB", "MSG", "HMSG":
		sizes := 1
		if msg.Verb[0] == 'H' {
			sizes = 2
		}
		names := 1 // subject
		if msg.Verb == "MSG" || msg.Verb == "HMSG" {
			names = 2 // and sid
		}
		switch len(args) {
		case names + sizes:
		case names + 1 + sizes:
			msg.Reply = args[names]
		default:
			return msg, 0, 0, false
		}
		msg.Subject = args[0]
		if names == 2 {
			msg.SID = args[1]
		}
		size, ok = parseSize(args[len(args)-1])
		if ok && sizes == 2 {
			headerSize, ok = parseSize(args[len(args)-2])
		}
		return msg, headerSize, size, ok && headerSize <= size
	case "SUB":
		switch len(args) {
		case 2:
			msg.Subject, msg.SID = args[0], args[1]
		case 3:
			msg.Subject, msg.Queue, msg.SID = args[0], args[1], args[2]
		default:
			return msg, 0, 0, false
		}
		return msg, 0, 0, true
	case "UNSUB":
		if len(args) == 0 || len(args) > 2 {
			return msg, 0, 0, false
		}
		msg.SID, msg.Args = args[0], strings.Join(args[1:], " ")
		return msg, 0, 0, true
	case "CONNECT", "INFO", "PING", "PONG", "+OK", "-ERR":
		msg.Args = rest
		return msg, 0, 0, true
	}
	return msg, 0, 0, false
}

func parseSize(s string) (int, bool) {
	n, err := strconv.Atoi(s)
	return n, err == nil && n >= 0 && n <= maxMessage
}
