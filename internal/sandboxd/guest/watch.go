package guest

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"

	"github.com/cayhq/cay/sandbox"
)

// Watch reports changes. See sandboxd.Files. If its connection breaks, Watch connects
// again and reports an OpOverflow, because changes may have been missed.
func (c *Client) Watch(ctx context.Context, path string, p sandbox.WatchParams) (sandbox.Watch, error) {
	q := url.Values{"path": {path}}
	if p.Recursive {
		q.Set("recursive", "1")
	}
	w := &watch{frames: c.frames(ctx), req: request{method: http.MethodGet, path: "/files/watch", query: q, repeat: true, slow: true}}
	if err := w.dial(w.req); err != nil {
		w.Close()
		return nil, err
	}
	return w, nil
}

type watch struct {
	*frames
	req  request
	done error
}

func (w *watch) Next() (sandbox.FileEvent, error) {
	if w.done != nil {
		return sandbox.FileEvent{}, w.done
	}
	f, err := w.next(w.req)
	if err == nil && f.Kind == 0 {
		return sandbox.FileEvent{Op: sandbox.OpOverflow}, nil
	}
	if err == nil {
		var ev sandbox.FileEvent
		if ev, err = fileEvent(f); err == nil {
			return ev, nil
		}
	}
	w.done = err
	w.Close()
	return sandbox.FileEvent{}, err
}

// fileEvent checks a frame of a watch and turns it into an event. It returns io.EOF when
// the agent is shutting down.
func fileEvent(f Frame) (sandbox.FileEvent, error) {
	bad := func(what string) (sandbox.FileEvent, error) {
		return sandbox.FileEvent{}, unavailable(&protocolError{"a watch with " + what})
	}
	switch f.Kind {
	case KindEnd:
		return sandbox.FileEvent{}, io.EOF
	case KindError:
		return sandbox.FileEvent{}, decodeError(f.Payload)
	case KindFileEvent:
	default:
		return bad("a frame that does not belong there")
	}
	var e FileEvent
	if json.Unmarshal(f.Payload, &e) != nil {
		return bad("an event that does not decode")
	}
	switch e.Op {
	case sandbox.OpOverflow:
	case sandbox.OpCreate, sandbox.OpWrite, sandbox.OpRemove, sandbox.OpRename, sandbox.OpChmod:
		if !validAbs(string(e.Path)) || len(e.From) > 0 && !validAbs(string(e.From)) {
			return bad("a path that is none")
		}
	default:
		return bad("an unknown operation")
	}
	return sandbox.FileEvent{Op: e.Op, Path: string(e.Path), From: string(e.From)}, nil
}
