package guest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/cayhq/cay"
)

// Client is the daemon's side of one sandbox. Its methods are the methods of
// sandboxd.Commands and sandboxd.Files without the sandbox's ref; errors are *cay.Error,
// unavailable if the guest gives no proper answer. Client may be used concurrently.
type Client struct {
	http  *http.Transport
	token atomic.Pointer[string] // see bearer; changed by Identify
	// protocol is Health.Protocol + 1; 0: the guest was not asked yet.
	protocol atomic.Int64
	heard    atomic.Int64 // see Heard

	// StandsStill reports whether the guest cannot answer now, because it is paused. Set
	// before use; nil: never.
	StandsStill func() bool
	// Silence is how long a guest may send nothing while the client waits for an answer
	// that takes it no time, on a host with free CPUs; see await. Set before use;
	// NewClient sets 10 s.
	Silence time.Duration
	// CPUWait returns the total time in which some task on the host had to wait for a
	// CPU, since an arbitrary moment. Set before use; nil: no task ever waits.
	CPUWait func() time.Duration
}

// NewClient returns a Client that reaches a guest through dial, and authenticates with
// token. It opens no connection before its first use.
func NewClient(dial func(ctx context.Context) (net.Conn, error), token string) *Client {
	shown := bearer(token)
	c := &Client{Silence: 10 * time.Second}
	c.http = &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			ctx, came, end := c.await(ctx)
			defer end()
			defer came()
			conn, err := dial(ctx)
			if err != nil {
				return nil, contextErr(ctx, err)
			}
			return &trackedConn{Conn: conn, heard: &c.heard, closed: make(chan struct{})}, nil
		},
		// Few idle connections are needed: a sandbox's calls come one after another.
		MaxIdleConnsPerHost:    8,
		IdleConnTimeout:        time.Minute, // less than the agent's, so the agent never hangs up first
		DisableCompression:     true,
		MaxResponseHeaderBytes: 64 << 10,
		WriteBufferSize:        32 << 10,
	}
	c.token.Store(&shown)
	return c
}

func (c *Client) cpuWait() time.Duration {
	if c.CPUWait == nil {
		return 0
	}
	return c.CPUWait()
}

// bearer returns the Authorization header with a token.
func bearer(token string) string { return "Bearer " + token }

// CloseIdleConnections closes connections that are not in use.
func (c *Client) CloseIdleConnections() { c.http.CloseIdleConnections() }

// Health asks the guest how it is.
func (c *Client) Health(ctx context.Context) (Health, error) {
	var h Health
	if err := c.get(ctx, "/health", nil, &h); err != nil {
		return Health{}, err
	}
	c.protocol.Store(int64(max(h.Protocol, 0)) + 1)
	h.BootID, h.Trust = printable(h.BootID), h.Trust.printable()
	h.Sandbox, h.Problem = printable(h.Sandbox), printable(h.Problem)
	h.Processes, h.Commands, h.DiskBytes = max(h.Processes, 0), max(h.Commands, 0), max(h.DiskBytes, 0)
	return h, nil
}

// needs checks whether the guest's protocol has at least the given version; what names
// the feature in the error. Errors: not_supported.
func (c *Client) needs(ctx context.Context, version int, what string) error {
	known, err := c.knows(ctx, version)
	if err == nil && !known {
		return cay.Errorf(cay.NotSupported, "the sandbox was started by an earlier build of cay, which knows no %s", what).
			WithHint("stop it and start it again")
	}
	return err
}

// knows reports whether the guest's protocol has at least the given version.
func (c *Client) knows(ctx context.Context, version int) (bool, error) {
	if c.protocol.Load() == 0 {
		if _, err := c.Health(ctx); err != nil {
			return false, err
		}
	}
	return c.protocol.Load() > int64(version), nil
}

// request is one call to the guest.
type request struct {
	method string
	path   string
	query  url.Values
	// body has the bytes to send; stream is used instead for a body that can be sent once
	// only. Both may be nil.
	body   []byte
	stream *body
	// repeat says that the request may be sent twice.
	repeat bool
	// slow says that the answer may legitimately come late; follows says that only the
	// head of the answer is awaited; see await.
	slow, follows bool
	// token is shown instead of the client's; see bearer.
	token string
}

// get asks for an unary answer and decodes it into out.
func (c *Client) get(ctx context.Context, path string, query url.Values, out any) error {
	return c.call(ctx, request{method: http.MethodGet, path: path, query: query, repeat: true}, out)
}

// getFew is get for an answer of at most values values, whose texts have no commas. It
// limits the values, because a guest can encode many values in few bytes.
func (c *Client) getFew(ctx context.Context, path string, query url.Values, values int, out any) error {
	var data json.RawMessage
	if err := c.call(ctx, request{method: http.MethodGet, path: path, query: query, repeat: true, slow: true}, &data); err != nil {
		return err
	}
	if bytes.Count(data, []byte{','}) > values {
		return unavailable(&protocolError{"an answer of more values than were asked for"})
	}
	return decodeAnswer(data, out)
}

// call makes a request and decodes its answer into out, unless out is nil.
func (c *Client) call(ctx context.Context, r request, out any) error {
	resp, err := c.do(ctx, r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	data, err := readAll(resp.Body, MaxJSON)
	if err != nil && r.repeat && ctx.Err() == nil && !isProtocol(err) {
		// The answer broke off. Once more, on another connection.
		r.repeat = false
		return c.call(ctx, r, out)
	}
	if err != nil {
		return unavailable(contextErr(ctx, err))
	}
	if out == nil {
		return nil
	}
	return decodeAnswer(data, out)
}

func decodeAnswer(data []byte, out any) error {
	if err := json.Unmarshal(data, out); err != nil {
		return unavailable(&protocolError{"an answer that does not decode: " + printable(err.Error())})
	}
	return nil
}

// do makes a request and returns a successful answer. If the connection breaks before the
// answer and the request may be repeated, do repeats the request once on a new
// connection.
func (c *Client) do(ctx context.Context, r request) (*http.Response, error) {
	came, end := func() {}, func() {}
	if !r.slow {
		ctx, came, end = c.await(ctx)
	}
	resp, err := c.roundTrip(ctx, r)
	if err != nil && r.repeat && r.stream == nil && ctx.Err() == nil && !isDial(err) {
		c.CloseIdleConnections()
		resp, err = c.roundTrip(ctx, r)
	}
	if err != nil {
		err = unavailable(contextErr(ctx, err))
		came()
		end()
		return nil, err
	}
	if r.follows {
		came()
	}
	resp.Body = endingBody{resp.Body, func() { came(); end() }}
	if resp.StatusCode < 300 {
		return resp, nil
	}
	defer resp.Body.Close()
	data, err := readAll(resp.Body, maxErrorBody)
	if err != nil {
		return nil, unavailable(contextErr(ctx, err))
	}
	if resp.StatusCode == http.StatusUnauthorized {
		return nil, cay.Errorf(cay.Unavailable, "the sandbox does not answer: %w", errWrongToken)
	}
	return nil, decodeError(data)
}

// errWrongToken is why a guest refused a request.
var errWrongToken = errors.New("it takes another token")

func (c *Client) roundTrip(ctx context.Context, r request) (*http.Response, error) {
	u := url.URL{Scheme: "http", Host: "guest", Path: r.path, RawQuery: r.query.Encode()}
	req := (&http.Request{Method: r.method, URL: &u, Host: u.Host, Header: http.Header{}}).WithContext(ctx)
	token := r.token
	if token == "" {
		token = *c.token.Load()
	}
	req.Header["Authorization"] = []string{token}
	req.Header["User-Agent"] = []string{""} // an empty value keeps net/http from sending its own
	switch {
	case r.stream != nil:
		req = r.stream.attach(req)
	case len(r.body) > 0: // an empty body that is not nil would have no known length
		req.Body, req.ContentLength = io.NopCloser(bytes.NewReader(r.body)), int64(len(r.body))
		req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(r.body)), nil }
	}
	resp, err := c.http.RoundTrip(req)
	if err != nil && r.stream != nil {
		if readErr := r.stream.failure(); readErr != nil {
			return nil, cay.Errorf(codeOfRead(readErr), "read what to send: %w", readErr)
		}
	}
	return resp, err
}

// codeOfRead returns the code of an error of the caller's own reader; a plain read error
// means that the caller gave up.
func codeOfRead(err error) cay.Code {
	if code := cay.CodeOf(err); code != cay.Internal {
		return code
	}
	return cay.Canceled
}

func readAll(r io.Reader, limit int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > limit {
		return nil, &protocolError{fmt.Sprintf("an answer of more than %d bytes", limit)}
	}
	return data, nil
}

// contextErr returns the reason why ctx ended, or err if ctx has not ended.
func contextErr(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

func isProtocol(err error) bool {
	_, ok := errors.AsType[*protocolError](err)
	return ok
}

// isDial reports whether dialling failed, so that an immediate retry would fail, too.
func isDial(err error) bool {
	if e, ok := errors.AsType[*net.OpError](err); ok {
		return e.Op == "dial"
	}
	_, ok := errors.AsType[*cay.Error](err)
	return ok
}

func encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic("guest: a request does not marshal: " + err.Error())
	}
	return b
}
