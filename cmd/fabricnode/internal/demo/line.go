package demo

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"

	"natsfabric/internal/accesslog"
)

// Channel is the channel that the demo's nodes serve.
const Channel = "access-log"

// MaxInput bounds the input, in bytes.
const MaxInput = 256 << 20

// maxLine bounds a line. A longer one is cut, and counts as malformed then.
const maxLine = 64 << 10

// ReadLines splits a log into lines. An input without any, or above 256 MiB, is an error.
func ReadLines(r io.Reader) ([]string, error) {
	text, err := io.ReadAll(io.LimitReader(r, MaxInput+1))
	switch {
	case err != nil:
		return nil, err
	case len(text) > MaxInput:
		return nil, fmt.Errorf("the input is larger than %d MiB", MaxInput>>20)
	}
	var lines []string
	sc := bufio.NewScanner(bytes.NewReader(text))
	sc.Buffer(make([]byte, 0, maxLine), len(text)+1)
	for sc.Scan() {
		lines = append(lines, string(sc.Bytes()[:min(len(sc.Bytes()), maxLine)]))
	}
	if err := sc.Err(); err != nil {
		return nil, err
	}
	if len(lines) == 0 {
		return nil, errors.New("the input has no lines")
	}
	return lines, nil
}

// encodeLine is a request's payload: the line's number, a space, its text.
func encodeLine(number int, text string) []byte {
	b := make([]byte, 0, len(text)+12)
	b = strconv.AppendInt(b, int64(number), 10)
	b = append(b, ' ')
	return append(b, text...)
}

func decodeLine(data []byte) (number int, text string, err error) {
	head, rest, ok := bytes.Cut(data, []byte{' '})
	number, err = strconv.Atoi(string(head))
	if !ok || err != nil || number < 1 {
		return 0, "", errors.New("the payload must be a line number of 1 or more, a space, and the line's text")
	}
	return number, string(rest), nil
}

// Verdict is a member's reply: what it made of a line.
type Verdict struct {
	Node      string          `json:"node"`
	Malformed string          `json:"malformed,omitempty"` // why; empty for a good line
	Client    string          `json:"client,omitempty"`
	Status    int             `json:"status,omitempty"`
	Bytes     int64           `json:"bytes,omitempty"`
	Class     accesslog.Class `json:"class,omitempty"`
}

// classify is the work of a member.
func classify(node, text string) Verdict {
	e, err := accesslog.Parse(text)
	if err != nil {
		return Verdict{Node: node, Malformed: err.Error()}
	}
	return Verdict{Node: node, Client: e.Client, Status: e.Status, Bytes: e.Size, Class: e.Class()}
}

func decodeVerdict(data []byte) (Verdict, error) {
	var v Verdict
	err := json.Unmarshal(data, &v)
	if err == nil && v.Node == "" {
		err = errors.New("the reply names no node")
	}
	return v, err
}
