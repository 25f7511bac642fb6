package wire

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"syscall"
	"time"

	"github.com/cayhq/cay"
)

// maxAnswer bounds a JSON answer, in bytes.
const maxAnswer = 64 << 20

// Conn sends requests to one daemon. It is safe for concurrent use and needs no
// Close.
type Conn struct {
	base, token, team string
	http              *http.Client
}

// URL is the daemon's address without a slash at the end.
func (c *Conn) URL() string { return c.base }

// Token returns the secret that the connection sends; empty if there is none.
func (c *Conn) Token() string { return c.token }

// Request is one call of the API.
type Request struct {
	Method string
	Path   string // escaped, begins with "/"
	Query  url.Values
	Header http.Header
	JSON   any       // sent as the body, unless nil
	Body   io.Reader // sent as the body when JSON is nil
	Length int64     // of Body: 0 unknown, -1 empty
	// Repeat says that sending the request twice does no harm. GET is always
	// safe.
	Repeat bool
	// Accept lists further statuses that count as success.
	Accept []int
}

// Call sends r and decodes the JSON answer into out, unless out is nil.
func (c *Conn) Call(ctx context.Context, r Request, out any) error {
	resp, err := c.Do(ctx, r)
	if err != nil {
		return err
	}
	defer drain(resp.Body)
	if out == nil {
		return nil
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxAnswer)).Decode(out); err != nil {
		if cerr := contextError(ctx, err); cerr != nil {
			return cerr
		}
		return cay.Errorf(cay.Unavailable, "the answer of %s broke off or is not JSON: %w", c.base, err)
	}
	return nil
}

// Do sends r. The answer has a status of success, and the caller must close its
// body; any other answer is returned as the error in it, a *cay.Error. A
// request is retried once if it did not reach the daemon, or if it may be
// repeated and met a broken connection or unavailable.
func (c *Conn) Do(ctx context.Context, r Request) (*http.Response, error) {
	var data []byte
	if r.JSON != nil {
		var err error
		if data, err = json.Marshal(r.JSON); err != nil {
			return nil, cay.Errorf(cay.Invalid, "encode the request: %w", err)
		}
	}
	for attempt := 1; ; attempt++ {
		body := r.Body
		if r.JSON != nil {
			body = bytes.NewReader(data)
		}
		src := newBodySource(ctx, body, r.Length)
		resp, err := c.send(ctx, r, src, int64(len(data)))
		if err == nil {
			resp.Body = releasing{resp.Body, src}
			return resp, nil
		}
		src.release()
		if attempt == 2 || ctx.Err() != nil || !r.again(err, src.touched() && r.JSON == nil) {
			return nil, err
		}
		if !pause(ctx, err) {
			return nil, err
		}
	}
}

// again reports whether a retry of r is safe and may help.
func (r *Request) again(err error, bodyUsed bool) bool {
	if bodyUsed {
		return false
	}
	if errors.Is(err, syscall.ECONNREFUSED) {
		return true
	}
	return (r.Repeat || r.Method == http.MethodGet) && cay.CodeOf(err) == cay.Unavailable
}

// pause waits before the second attempt, and returns false when ctx ends first.
func pause(ctx context.Context, err error) bool {
	d := 200 * time.Millisecond
	var e *cay.Error
	if errors.As(err, &e) && e.RetryAfter > 0 {
		d = min(e.RetryAfter, 5*time.Second)
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (c *Conn) send(ctx context.Context, r Request, src *bodySource, jsonLen int64) (*http.Response, error) {
	u := c.base + r.Path
	if len(r.Query) > 0 {
		u += "?" + r.Query.Encode()
	}
	var body io.Reader
	if src.r != nil && r.Length >= 0 {
		body = src
	}
	req, err := http.NewRequestWithContext(ctx, r.Method, u, body)
	if err != nil {
		return nil, cay.Errorf(cay.Invalid, "make the request: %w", err)
	}
	switch {
	case r.JSON != nil:
		req.ContentLength = jsonLen
		req.Header.Set("Content-Type", TypeJSON)
	case body != nil:
		req.ContentLength = r.Length
		if r.Length == 0 {
			req.ContentLength = -1
		}
		req.Header.Set("Content-Type", TypeBytes)
	}
	for k, v := range r.Header {
		req.Header[k] = v
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	if c.team != "" {
		req.Header.Set(HeaderTeam, c.team)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, c.transportError(ctx, src, err)
	}
	if resp.StatusCode/100 != 2 && !slices.Contains(r.Accept, resp.StatusCode) {
		defer drain(resp.Body)
		return nil, c.answerError(resp)
	}
	return resp, nil
}

// transportError explains why there is no answer.
func (c *Conn) transportError(ctx context.Context, src *bodySource, err error) error {
	if cause := src.failure(); cause != nil {
		return cause
	}
	if cerr := contextError(ctx, err); cerr != nil {
		return cerr
	}
	var dial *net.OpError
	if errors.As(err, &dial) && dial.Op == "dial" {
		return cay.Errorf(cay.Unavailable, "cannot reach cay at %s: %w", c.base, errors.Unwrap(err)).
			WithHint("start it with `cay serve`, or set CAY_URL to where it runs")
	}
	return cay.Errorf(cay.Unavailable, "the connection to cay at %s broke: %w", c.base, err)
}

// answerError rebuilds the error in an answer. A proxy may have answered
// instead of the daemon, in another shape.
func (c *Conn) answerError(resp *http.Response) error {
	var body ErrorBody
	b, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err == nil && json.Unmarshal(b, &body) == nil && body.Error != nil && body.Error.Code != "" {
		return body.Error.Err()
	}
	if resp.StatusCode/100 == 3 {
		return cay.Errorf(cay.Invalid, "%s answers with a redirect to %q", c.base, resp.Header.Get("Location")).
			WithHint("set CAY_URL to the daemon's own address")
	}
	switch resp.StatusCode {
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return cay.Errorf(cay.Unavailable, "%s answered %q: %w", c.base, resp.Status, errNotOurs)
	}
	return cay.Errorf(cay.Internal, "%s answered %q: %w", c.base, resp.Status, errNotOurs)
}

var errNotOurs = errors.New("this is not an answer of cay")

// Away reports whether err says that the daemon gave no answer: it could not be reached,
// the connection broke, or a proxy answered in its place. An unavailable that the daemon
// itself answered is no such error.
func Away(err error) bool {
	e, ok := errors.AsType[*cay.Error](err)
	return ok && e.Code == cay.Unavailable && errors.Unwrap(e) != nil
}

// contextError returns the end of ctx as a coded error, nil if ctx has not
// ended and err is not an error of a context.
func contextError(ctx context.Context, err error) error {
	if err := ContextError(ctx); err != nil {
		return err
	}
	if errors.Is(err, context.DeadlineExceeded) { // of the HTTP client
		return cay.Errorf(cay.DeadlineExceeded, "the time given was not enough: %w", context.DeadlineExceeded)
	}
	return nil
}

// StreamError explains why reading an answer's body failed.
func (c *Conn) StreamError(ctx context.Context, err error) error {
	if cerr := contextError(ctx, err); cerr != nil {
		return cerr
	}
	return cay.Errorf(cay.Unavailable, "the connection to cay at %s broke: %w", c.base, err)
}

// drain lets the connection be reused if little is left to read.
func drain(body io.ReadCloser) {
	_, _ = io.CopyN(io.Discard, body, 64<<10) // whatever fails, Close decides
	body.Close()
}
