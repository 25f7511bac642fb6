package sandbox

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/wire"
)

// StatsWatch reports readings of a running sandbox's counters.
type StatsWatch interface {
	// Next waits for the next reading: the first comes at once and is as new as possible,
	// then one comes every two seconds, even if nothing has changed. Readings that the
	// caller does not read in time are dropped. io.EOF when the session has ended.
	Next() (Stats, error)
	io.Closer
}

// CommandChange reports that a command was started or has exited.
type CommandChange struct {
	// Type is Ready or Changed. First come the existing commands, the oldest first, then
	// Ready, and then the changes.
	Type    ChangeType `json:"type"`
	Command *Command   `json:"command,omitempty"` // its current state, with Changed
}

// CommandWatch reports the commands of a sandbox's session as they start and exit.
type CommandWatch interface {
	// Next waits for the next change. A command can be reported twice without a change; a
	// command that starts and exits before the caller reads is reported once. io.EOF when
	// the session has ended; quota_exceeded if 1000 commands have changed that were not
	// read: watch anew.
	Next() (CommandChange, error)
	io.Closer
}

// WatchStats reads the counters of a running, or paused, sandbox repeatedly, until it is
// closed or ctx ends. All watches share one reading. Watching does not count as activity
// of the sandbox. Errors: sandbox_stopped, conflict (the sandbox has not started yet),
// quota_exceeded (64 watches).
func (c *Client) WatchStats(ctx context.Context, ref string) (StatsWatch, error) {
	s, err := c.follow(ctx, ref, "stats")
	if err != nil {
		return nil, err
	}
	return &statsWatch{watch{ctx: ctx, s: s}}, nil
}

// WatchCommands reports the commands of a running sandbox, until it is closed or ctx
// ends. Watching does not count as activity of the sandbox. Errors: sandbox_stopped,
// conflict (the sandbox does not run), quota_exceeded (64 watches).
func (c *Client) WatchCommands(ctx context.Context, ref string) (CommandWatch, error) {
	s, err := c.follow(ctx, ref, "commands")
	if err != nil {
		return nil, err
	}
	return &commandWatch{watch{ctx: ctx, s: s}}, nil
}

func (c *Client) follow(ctx context.Context, ref, what string) (*stream, error) {
	pth, err := endpoint(ref, what)
	if err != nil {
		return nil, err
	}
	return c.stream(ctx, wire.Request{Method: http.MethodGet, Path: pth, Query: url.Values{"follow": {"true"}}})
}

type statsWatch struct{ watch }

// Next implements StatsWatch.
func (w *statsWatch) Next() (Stats, error) {
	var msg struct {
		Stats
		Error *wire.Error `json:"error"`
	}
	if err := w.read(&msg); err != nil {
		return Stats{}, err
	}
	if msg.Error != nil {
		return Stats{}, msg.Error.Err()
	}
	return msg.Stats, nil
}

type commandWatch struct{ watch }

// Next implements CommandWatch.
func (w *commandWatch) Next() (CommandChange, error) {
	var msg struct {
		CommandChange
		Error *wire.Error `json:"error"`
	}
	if err := w.read(&msg); err != nil {
		return CommandChange{}, err
	}
	if msg.Error != nil {
		return CommandChange{}, msg.Error.Err()
	}
	return msg.CommandChange, nil
}

// read reads one line of JSON into v.
func (w *watch) read(v any) error {
	line, err := w.s.next()
	if err != nil {
		return w.why(err)
	}
	if err := json.Unmarshal(line, v); err != nil {
		return cay.Errorf(cay.Internal, "the daemon sent a line that cannot be read: %w", err)
	}
	return nil
}
