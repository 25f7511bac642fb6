package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/workflowd/protocol"
	"github.com/cayhq/cay/workflow"
)

// maxShown bounds the runs whose last line is remembered to avoid printing it twice.
const maxShown = 10_000

// runFollower prints a list of runs as it changes.
type runFollower struct {
	*workflowListOptions
	a     *app
	shown map[string]int64 // events of each run when it was printed last
}

// watch prints runs, and then the changes of the list until ctx ends.
func (o *workflowListOptions) watch(ctx context.Context, a *app, b workflow.Backend, q workflow.Query) error {
	r, err := b.WatchRuns(ctx, q)
	if err != nil {
		return err
	}
	defer r.Close() // it was only read
	f := &runFollower{workflowListOptions: o, a: a, shown: make(map[string]int64)}
	for {
		changes, err := r.ReadChanges(ctx)
		if cay.CodeOf(err) == cay.Canceled && ctx.Err() != nil {
			return nil // an interrupt is the usual end
		}
		if err != nil {
			return err
		}
		for _, c := range changes {
			switch c.Type {
			case workflow.ChangeReady, workflow.ChangeMissed:
				err = f.printAll(ctx, b, q)
			case workflow.ChangeRun:
				err = f.print(protocol.RunChangeOf(&c))
			case workflow.ChangeDeleted:
				delete(f.shown, c.ID)
				err = f.print(protocol.RunChangeOf(&c))
			}
			if err != nil {
				return err
			}
		}
	}
}

// printAll prints the changed runs of the list, the newest last.
func (f *runFollower) printAll(ctx context.Context, b workflow.Backend, q workflow.Query) error {
	runs, _, err := f.list(ctx, b, q)
	for i := len(runs) - 1; i >= 0 && err == nil; i-- {
		err = f.print(&protocol.RunChange{Type: workflow.ChangeRun, ID: runs[i].ID, Run: &runs[i]})
	}
	return err
}

// print writes a change as a line.
func (f *runFollower) print(c *protocol.RunChange) error {
	if c.Run != nil {
		if f.shown[c.ID] == c.Run.Events {
			return nil
		}
		if len(f.shown) >= maxShown {
			clear(f.shown)
		}
		f.shown[c.ID] = c.Run.Events
	}
	if f.a.json {
		enc := json.NewEncoder(f.a.stdout)
		enc.SetEscapeHTML(false)
		return enc.Encode(c)
	}
	line := c.ID
	if !f.quiet {
		line = fmt.Sprintf("%s  %s  gone", time.Now().Format("15:04:05"), c.ID)
		if c.Run != nil {
			line = fmt.Sprintf("%s  %s  %-20s  %-9s  %5d  %s", c.Run.UpdatedAt.Local().Format("15:04:05"), c.ID, functionOf(c.Run.Workflow),
				runStatus(c.Run), c.Run.Events, tagsText(c.Run.Attributes))
		}
	}
	_, err := fmt.Fprintln(f.a.stdout, clean(strings.TrimRight(line, " ")))
	return err
}
