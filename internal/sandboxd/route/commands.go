package route

import (
	"context"
	"io"
	"math"
	"mime"
	"net/http"
	"strings"

	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/internal/cmdoutput"
	"github.com/cayhq/cay/internal/wire"
	"github.com/cayhq/cay/sandbox"
)

// accepts reports whether the request prefers the media type, by naming it.
func accepts(r *http.Request, media string) bool {
	for _, v := range r.Header.Values("Accept") {
		for part := range strings.SplitSeq(v, ",") {
			if m, _, err := mime.ParseMediaType(part); err == nil && m == media {
				return true
			}
		}
	}
	return false
}

// maxStartBody is how many bytes a request to start a command may have: argv of 2 MiB
// with the overhead of JSON, and the environment.
const maxStartBody = 4 << 20

func (h *routes) handleStart(w http.ResponseWriter, r *http.Request) error {
	q := api.ParseQuery(r)
	stream := q.Bool("stream") || accepts(r, wire.TypeLines)
	if err := q.Err(); err != nil {
		return err
	}
	var p sandbox.CommandParams
	if err := api.ReadLargeJSON(w, r, &p, maxStartBody); err != nil {
		return err
	}
	var err error
	if p.IdempotencyKey, err = idempotencyKey(r); err != nil {
		return err
	}
	if !stream {
		cmd, err := h.svc.Start(r.Context(), r.PathValue("ref"), p)
		if err != nil {
			return err
		}
		return api.WriteJSON(w, http.StatusCreated, cmd)
	}
	out, err := h.svc.Exec(r.Context(), r.PathValue("ref"), p)
	if err != nil {
		return err
	}
	return api.ServeLines(w, r, cmdoutput.Own(out), &eventEncoder{})
}

func (h *routes) handleListCommands(w http.ResponseWriter, r *http.Request) error {
	q := api.ParseQuery(r)
	follow := q.Bool("follow")
	if err := q.Err(); err != nil {
		return err
	}
	if follow {
		watch, err := h.svc.WatchCommands(r.Context(), r.PathValue("ref"))
		if err != nil {
			return err
		}
		return api.ServeLines(w, r, watch, api.JSONLines[sandbox.CommandChange]{})
	}
	cmds, err := h.svc.ListCommands(r.Context(), r.PathValue("ref"))
	if err != nil {
		return err
	}
	return writePage(w, &sandbox.Page[sandbox.Command]{Items: cmds})
}

func (h *routes) handleGetCommand(w http.ResponseWriter, r *http.Request) error {
	return h.answer(w, r, func() (any, error) {
		return h.svc.GetCommand(r.Context(), r.PathValue("ref"), r.PathValue("id"))
	})
}

func (h *routes) handleWait(w http.ResponseWriter, r *http.Request) error {
	if err := api.NoQuery(r); err != nil {
		return err
	}
	return api.ServeSlow(w, r, func(ctx context.Context) (any, error) {
		return h.svc.Wait(ctx, r.PathValue("ref"), r.PathValue("id"))
	})
}

func (h *routes) handleSignal(w http.ResponseWriter, r *http.Request) error {
	var p struct {
		Signal sandbox.Signal `json:"signal"`
	}
	return h.doneJSON(w, r, &p, func() error {
		return h.svc.Signal(r.Context(), r.PathValue("ref"), r.PathValue("id"), p.Signal)
	})
}

func (h *routes) handleResize(w http.ResponseWriter, r *http.Request) error {
	var size sandbox.WindowSize
	return h.doneJSON(w, r, &size, func() error {
		return h.svc.Resize(r.Context(), r.PathValue("ref"), r.PathValue("id"), size)
	})
}

func (h *routes) handleStdin(w http.ResponseWriter, r *http.Request) error {
	q := api.ParseQuery(r)
	closeAfter := q.Bool("close")
	if err := q.Err(); err != nil {
		return err
	}
	if r.ContentLength < 0 { // it may pause for any time
		var end func()
		r, end = api.EndWith(r, h.ending)
		defer end()
	}
	body, err := api.LiveBody(w, r)
	if err != nil {
		return err
	}
	if err := h.svc.WriteStdin(r.Context(), r.PathValue("ref"), r.PathValue("id"), body, closeAfter); err != nil {
		return err
	}
	return api.NoContent(w)
}

func (h *routes) handleOutput(w http.ResponseWriter, r *http.Request) error {
	q := api.ParseQuery(r)
	p := sandbox.OutputParams{
		Cursor: q.Int("cursor", 0, math.MaxInt64, 0),
		Follow: q.Bool("follow"),
	}
	raw := accepts(r, wire.TypeBytes)
	var stream string
	if raw {
		stream = q.Enum("stream", "", string(sandbox.Stdout), string(sandbox.Stderr))
	} else {
		p.Times = q.Bool("times")
	}
	if err := q.Err(); err != nil {
		return err
	}
	out, err := h.svc.Output(r.Context(), r.PathValue("ref"), r.PathValue("id"), p)
	if err != nil {
		return err
	}
	if !raw {
		return api.ServeLines(w, r, cmdoutput.Own(out), &eventEncoder{})
	}
	defer out.Close() // the stream is at its end, or given up
	setForeign(w.Header(), wire.TypeBytes)
	w.WriteHeader(http.StatusOK)
	buf, free := api.Buffer()
	defer free()
	return api.Copy(w, nil, &rawOutput{out: out, stream: sandbox.Stream(stream)}, buf)
}

// rawOutput reads the bytes of one stream of an Output, or of both.
type rawOutput struct {
	out    sandbox.Output
	stream sandbox.Stream // empty: both
	data   []byte
}

func (o *rawOutput) Read(p []byte) (int, error) {
	for len(o.data) == 0 {
		e, err := o.out.Next()
		if err != nil {
			return 0, err
		}
		if o.stream == "" || e.Stream == o.stream {
			o.data = e.Data
		}
	}
	n := copy(p, o.data)
	o.data = o.data[n:]
	return n, nil
}

var _ io.Reader = (*rawOutput)(nil)
