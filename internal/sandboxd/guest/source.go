package guest

import (
	"context"
	"net/http"

	"github.com/cayhq/cay/sandbox"
)

// SourceRequest is the source to fill a directory with.
type SourceRequest struct {
	Source sandbox.Source    `json:"source"`
	Env    map[string]string `json:"env,omitempty"` // of the programs that are run for it
	// Roots is PEM, of authorities that may sign the certificate of a tarball's server,
	// in addition to the image's authorities.
	Roots string `json:"roots,omitempty"`
}

// FetchSource makes the guest fetch a source, as its user, and put it into its directory, which
// is made if it is missing. FetchSource does not appear among the guest's commands. When ctx
// ends, the programs that it started are killed. Errors: invalid, executable_not_found
// (no git), unavailable (the server cannot be reached), and errors of files.
func (c *Client) FetchSource(ctx context.Context, req SourceRequest) error {
	return c.call(ctx, request{method: http.MethodPut, path: "/source", body: encode(req), slow: true}, nil)
}
