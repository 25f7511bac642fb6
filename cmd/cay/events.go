package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
)

const eventsHelp = `Show the changes of sandboxes as they happen, until interrupted: a sandbox was
created, changed its status or was deleted. With --json each change is a line, with
all that is known of the sandbox; the first line, of the type "ready", says that later
changes are shown.`

func newSandboxEvents(a *app) *cobra.Command {
	var p sandbox.ChangeParams
	c := &cobra.Command{
		Use: "events", Short: "Show changes of sandboxes as they happen", Long: eventsHelp,
		Args: none, ValidArgsFunction: cobra.NoFileCompletions,
	}
	c.Flags().StringVar(&p.ProjectID, "project", "", "those of this project, by id; \"*\" for all of the team")
	return a.verb(c, func(ctx context.Context, _ []string) error {
		e := &events{app: a, client: a.sandboxes(), params: p}
		return e.run(ctx)
	})
}

// events prints changes of sandboxes.
type events struct {
	app    *app
	client *sandbox.Client
	params sandbox.ChangeParams
	known  map[string]knownSandbox // by id
}

// knownSandbox has the printed state of a sandbox.
type knownSandbox struct{ name, status string }

func (e *events) run(ctx context.Context) error {
	w, err := e.client.WatchSandboxes(ctx, e.params)
	if err != nil {
		return err
	}
	defer w.Close()
	for {
		change, err := w.Next()
		switch {
		case errors.Is(err, io.EOF):
			return cay.Errorf(cay.Unavailable, "the daemon stops")
		case err != nil:
			return err
		}
		if change.Type == sandbox.Ready || change.Type == sandbox.Missed {
			if e.app.json {
				if err := e.app.printLine(change); err != nil {
					return err
				}
				continue
			}
			if change.Type == sandbox.Missed {
				e.app.warn("some changes came too fast to be shown")
			}
			if err := e.list(ctx); err != nil {
				return err
			}
			continue
		}
		if err := e.print(change); err != nil {
			return err
		}
	}
}

// list reads the states from which the changes start.
func (e *events) list(ctx context.Context) error {
	e.known = make(map[string]knownSandbox)
	items, _, err := pages(0, func(n int, cursor string) (*sandbox.Page[sandbox.Sandbox], error) {
		return e.client.List(ctx, sandbox.ListParams{ProjectID: e.params.ProjectID, Limit: n, Cursor: cursor})
	})
	for _, s := range items {
		e.known[s.ID] = knownSandbox{s.Name, statusText(&s)}
	}
	return err
}

func (e *events) print(change sandbox.Change) error {
	if e.app.json {
		return e.app.printLine(change)
	}
	was, had := e.known[change.ID]
	now := was
	switch {
	case change.Type == sandbox.Deleted:
		now.status = "deleted"
		delete(e.known, change.ID)
	case change.Sandbox != nil:
		now = knownSandbox{change.Sandbox.Name, statusText(change.Sandbox)}
		e.known[change.ID] = now
	}
	if had && now == was || !had && change.Type == sandbox.Deleted {
		return nil // another property has changed, or nothing is known of it
	}
	_, err := fmt.Fprintf(e.app.stdout, "%s   %s   %s\n", time.Now().Format(time.TimeOnly), clean(now.name), clean(now.status))
	return err
}
