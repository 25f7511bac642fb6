package gateway

import (
	"context"

	"github.com/cayhq/cay/internal/wire"
)

// RequestBody is the part of a request's bodies that the gateway kept.
type RequestBody struct {
	ID string `json:"id"` // of the request
	// Request is the client's request and Answer the answer to the client; nil if not
	// kept.
	Request *Body `json:"request,omitempty"`
	Answer  *Body `json:"answer,omitempty"`
}

// Body is the kept part of a body: its beginning, without redacted parts.
type Body struct {
	ContentType string `json:"content_type"`
	Text        string `json:"text"`
	Size        int64  `json:"size"`          // in bytes, of the whole original body
	Cut         bool   `json:"cut,omitempty"` // Text is only the beginning
	// Assembled says that Text is not the stream, but the concatenated texts of its
	// events, because a redacted part was spread over several events.
	Assembled bool `json:"assembled,omitempty"`
	// Omitted is the reason why Text is empty.
	Omitted string `json:"omitted,omitempty"`
}

// The states of a request's bodies in Request.Capture.
const (
	CaptureKept    = "kept"
	CaptureDropped = "dropped" // they were to be kept, but space ran out
	// The bodies are not there, or never were: deleted, expired, evicted as the oldest
	// when space ran out, or not yet written when the daemon died.
	CaptureGone = "gone"
)

// GetRequestBody returns the kept bodies of a request. They are available shortly after
// the request has ended; the gateway keeps no bodies unless the daemon's settings say so.
// Errors: not_found, also if no body of the request is kept.
func (c *Client) GetRequestBody(ctx context.Context, id string) (*RequestBody, error) {
	return call[RequestBody](ctx, c, wire.Request{Method: "GET", Path: path("requests", id) + "/body"})
}

// DeleteRequestBody deletes the kept bodies of a request; the request's record stays.
// Errors: as for GetRequestBody.
func (c *Client) DeleteRequestBody(ctx context.Context, id string) error {
	return c.do(ctx, wire.Request{Method: "DELETE", Path: path("requests", id) + "/body"})
}
