package guest

import (
	"context"
	"net/http"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
)

const (
	// MaxQuiesceGrace bounds QuiesceRequest.Grace.
	MaxQuiesceGrace = 10 * time.Minute
	// MaxKilledShown is how many processes Quiesced names.
	MaxKilledShown = 64
)

// QuiesceRequest says how to quiesce a guest.
type QuiesceRequest struct {
	// Grace is how long processes have to end by themselves: 0 to
	// MaxQuiesceGrace.
	Grace sandbox.Duration `json:"grace_ms"`
}

// Quiesced is how quiescing a guest went.
type Quiesced struct {
	// Killed counts the processes that did not end by themselves; Named lists at most
	// MaxKilledShown of them.
	Killed int       `json:"killed"`
	Named  []Process `json:"named,omitempty"`
}

// Process is a process of a guest.
type Process struct {
	PID     int    `json:"pid"`
	Command string `json:"command"` // the arguments, cut
}

// Quiesce ends all processes of a guest, so that its files can be saved: the processes
// get SIGTERM, processes on a terminal also SIGHUP, and after grace SIGKILL. Then all
// written data is synced. The guest still answers afterwards, with the final states and
// the output of all commands, but starts no commands (conflict), until Unquiesce or
// Identify. The caller must end its own file transfers.
//
// Calling it again ends the remaining processes. The guest goes on when ctx ends. Errors:
// invalid; unavailable if some processes do not end.
func (c *Client) Quiesce(ctx context.Context, grace time.Duration) (Quiesced, error) {
	if grace < 0 || grace > MaxQuiesceGrace {
		return Quiesced{}, cay.Errorf(cay.Invalid, "grace %v is not within 0 to %v", grace, MaxQuiesceGrace)
	}
	var q Quiesced
	body := encode(QuiesceRequest{Grace: sandbox.Duration(grace)})
	if err := c.call(ctx, request{method: http.MethodPost, path: "/quiesce", body: body, repeat: true, slow: true}, &q); err != nil {
		return Quiesced{}, err
	}
	q.Killed, q.Named = max(q.Killed, 0), q.Named[:min(len(q.Named), MaxKilledShown)]
	for i := range q.Named {
		q.Named[i].Command = printable(q.Named[i].Command)
	}
	return q, nil
}

// Unquiesce lets a guest start commands again, for a sandbox that is to go on after all.
// It has no effect on a guest that was not quiesced.
func (c *Client) Unquiesce(ctx context.Context) error {
	return c.call(ctx, request{method: http.MethodDelete, path: "/quiesce", repeat: true}, nil)
}
