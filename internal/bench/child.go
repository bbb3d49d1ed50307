package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"runtime/pprof"
	"slices"
	"time"
)

// request is what a parent asks of a child, and response its answer: one JSON object a line.
type request struct {
	Op   string          `json:"op"`
	Args json.RawMessage `json:"args"`
}

type response struct {
	Result json.RawMessage `json:"result,omitempty"`
	Error  string          `json:"error,omitempty"`
}

// role is what a child process is. Its methods are called by one goroutine.
type role interface {
	// do runs one operation; the first one is "start".
	do(ctx context.Context, op string, args json.RawMessage) (any, error)
	// close gives back what the role holds, however far start came.
	close(ctx context.Context) error
}

// roles are the processes that scenarios are made of.
var roles = map[string]func() role{
	"server":  func() role { return &serverRole{} },
	"member":  func() role { return &memberRole{} },
	"caller":  func() role { return &callerRole{} },
	"peer":    func() role { return &peerRole{} },
	"idler":   func() role { return &idlerRole{} },
	"monitor": func() role { return &monitorRole{} },
}

// closeTimeout bounds the orderly end of a child.
const closeTimeout = 5 * time.Second

// Child is the main function of a child process: it plays the named role for the parent at the other end of in and
// out, until in ends or ctx does. With profiles it writes a CPU profile of its life into that folder.
func Child(ctx context.Context, name, profiles string, in io.Reader, out io.Writer) (err error) {
	newRole := roles[name]
	if newRole == nil {
		return fmt.Errorf("role %q is not known: it must be one of %q", name, slices.Sorted(maps.Keys(roles)))
	}
	if profiles != "" {
		f, err := os.Create(filepath.Join(profiles, fmt.Sprintf("%s-%d.pprof", name, os.Getpid())))
		if err != nil {
			return err
		}
		defer f.Close()
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r := newRole()
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		err = errors.Join(err, r.close(ctx))
	}()

	requests := readRequests(ctx, cancel, in)
	enc := json.NewEncoder(out)
	for {
		select {
		case <-ctx.Done():
			return nil
		case req, ok := <-requests:
			if !ok {
				return nil
			}
			if err := enc.Encode(answer(ctx, r, req)); err != nil {
				return err
			}
		}
	}
}

// readRequests reads until in ends, which cancels what runs: the parent wants no answer any more. The goroutine ends
// with in.
func readRequests(ctx context.Context, cancel context.CancelFunc, in io.Reader) <-chan request {
	requests := make(chan request)
	go func() {
		defer cancel()
		defer close(requests)
		for dec := json.NewDecoder(in); ; {
			var req request
			if dec.Decode(&req) != nil {
				return
			}
			select {
			case requests <- req:
			case <-ctx.Done():
				return
			}
		}
	}()
	return requests
}

func answer(ctx context.Context, r role, req request) response {
	result, err := r.do(ctx, req.Op, req.Args)
	if err != nil {
		return response{Error: err.Error()}
	}
	b, err := json.Marshal(result)
	if err != nil {
		return response{Error: err.Error()}
	}
	return response{Result: b}
}

// decode reads the arguments of a request.
func decode[T any](raw json.RawMessage) (v T, err error) {
	err = json.Unmarshal(raw, &v)
	return v, err
}

func unknownOp(op string) error { return fmt.Errorf("operation %q is not known", op) }
