package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/workflow"
)

// apps returns the apps of other languages that the daemon wakes. Errors: not_supported with
// a program's own database.
func (f *workflowFlags) apps(a *app) (*workflow.Apps, error) {
	if f.db != "" || os.Getenv("CAY_WORKFLOW_DB") != "" {
		return nil, cay.Errorf(cay.NotSupported, "a database of a program's own has no deployments: its runs are in Go").
			WithHint("leave --db and CAY_WORKFLOW_DB out to ask the daemon")
	}
	o := a.options()
	return workflow.DialApps(workflow.RemoteOptions{URL: o.URL, Token: o.Token, Team: o.Team, Project: f.project})
}

func newWorkflowDeployments(a *app, f *workflowFlags) *cobra.Command {
	c := &cobra.Command{
		Use: "deployments", Short: "List the builds of apps that the daemon wakes",
		Long: "List the builds of apps that are written with the Workflow SDK in JavaScript: where each\nanswers, and why nothing is delivered to it.",
		Args: none, ValidArgsFunction: cobra.NoFileCompletions,
	}
	return a.verb(c, func(ctx context.Context, _ []string) error {
		apps, err := f.apps(a)
		if err != nil {
			return err
		}
		all, err := apps.Deployments(ctx)
		if err != nil {
			return err
		}
		if all == nil {
			all = []workflow.Deployment{}
		}
		return a.show(all, func(w io.Writer) {
			t := newTable("ID", "ADDRESS", "SEEN", "STATE")
			for i := range all {
				t.row(all[i].ID, all[i].URL, agoText(all[i].SeenAt), deploymentState(&all[i]))
			}
			t.print(w)
		})
	})
}

// deploymentState describes the state of a deployment for people.
func deploymentState(d *workflow.Deployment) string {
	switch {
	case d.Error != "":
		return d.Error
	case d.URL == "":
		return "no app has registered"
	case d.Draining:
		return "draining"
	}
	return "ready"
}

// deliveryText describes the message in the queue that a run of another language waits for,
// "" if there is none.
func (f *workflowFlags) deliveryText(ctx context.Context, a *app, run *workflow.RunInfo) (string, error) {
	if !run.Kind.External() || run.Status.Terminal() {
		return "", nil
	}
	apps, err := f.apps(a)
	if err != nil {
		return "", err
	}
	waiting, err := apps.Deliveries(ctx, run.ID)
	if err != nil || len(waiting) == 0 {
		return "", err
	}
	switch d := &waiting[0]; {
	case d.Error != "":
		return d.Error, nil
	case !d.LeasedUntil.IsZero():
		return "the app works on it", nil
	case time.Until(d.Due) > time.Second:
		return fmt.Sprintf("the app is woken in %s", time.Until(d.Due).Round(time.Second)), nil
	}
	return "about to be delivered to the app", nil
}
