package gateway

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/wire"
)

const (
	// maxEvent bounds the size of an event; a record is a few kilobytes.
	maxEvent = 4 << 20
	// again is the first delay before a client reconnects, maxAgain the longest.
	again, maxAgain = 200 * time.Millisecond, 10 * time.Second
)

// follow yields requests until yield returns false, or an error ends it.
func (c *Client) follow(ctx context.Context, f RequestFilter, after string, yield func(Request, error) bool) {
	wait, connected := again, false
	for {
		begun, err := c.followOnce(ctx, f, &after, yield)
		if err == nil {
			return // yield has enough
		}
		connected = connected || begun
		// Only a client that was connected waits for the daemon to come back:
		// otherwise the address may be wrong.
		if !connected || cay.CodeOf(err) != cay.Unavailable || ctx.Err() != nil {
			yield(Request{}, err)
			return
		}
		if begun {
			wait = again
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			yield(Request{}, err)
			return
		}
		wait = min(2*wait, maxAgain)
	}
}

// followOnce yields the requests of one connection, and stores the id of the last
// request in after. begun says that the daemon answered.
func (c *Client) followOnce(ctx context.Context, f RequestFilter, after *string, yield func(Request, error) bool) (begun bool, err error) {
	conn, err := c.conn()
	if err != nil {
		return false, err
	}
	q := url.Values{}
	for name, v := range map[string]string{
		"project_id": f.ProjectID, "key_id": f.KeyID, "user": f.User, "tag": f.Tag, "model": f.Model, "session": f.Session, "provider": f.Provider, "status": string(f.Status),
	} {
		set(q, name, v)
	}
	h := http.Header{"Accept": {"text/event-stream"}}
	if *after != "" {
		h.Set("Last-Event-ID", *after)
	}
	resp, err := conn.Do(ctx, wire.Request{Method: "GET", Path: "/v1/gateway/requests/events", Query: q, Header: h})
	if err != nil {
		return false, err
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, maxEvent)
	event := ""
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), ":")
		value = strings.TrimPrefix(value, " ")
		switch name {
		case "": // the end of an event, or a comment
			event = ""
		case "event":
			event = value
		case "data":
			if event == "error" {
				var body wire.ErrorBody
				if err := json.Unmarshal([]byte(value), &body); err != nil || body.Error == nil {
					return true, conn.StreamError(ctx, err)
				}
				return true, body.Error.Err()
			}
			var r Request
			if err := json.Unmarshal([]byte(value), &r); err != nil {
				return true, conn.StreamError(ctx, err)
			}
			if !yield(r, nil) {
				return true, nil
			}
			*after = r.ID
		}
	}
	if err = lines.Err(); err == nil {
		err = io.ErrUnexpectedEOF // it ends when the daemon does
	}
	return true, conn.StreamError(ctx, err)
}
