package daemon

import (
	"context"

	"github.com/cayhq/cay/internal/compat/vercelworkflow"
	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/internal/workflowd"
	"github.com/cayhq/cay/internal/workflowd/queue"
)

// The engines implement the facade's interfaces.
var (
	_ vercelworkflow.Runs  = (*workflowd.External)(nil)
	_ vercelworkflow.Queue = (*queue.Queue)(nil)
)

// messageParts deliver messages to apps that are written with Vercel's Workflow SDK.
type messageParts struct {
	queue  *queue.Queue
	pusher *vercelworkflow.Pusher
}

// openMessages opens the queue in the database of workflows. Nothing is delivered before begin.
func (d *Daemon) openMessages(ctx context.Context, store queue.Store) (*messageParts, error) {
	p := &messageParts{pusher: vercelworkflow.NewPusher()}
	var err error
	p.queue, err = queue.Open(ctx, queue.Config{Store: store, Logger: d.log})
	if err != nil {
		p.pusher.Close()
		return nil, err
	}
	p.pusher.Pulls = vercelworkflow.NewPulls(p.queue, d.ending, d.log)
	return p, nil
}

// begin starts the delivery: apps that get a message call the API. admit reports whether
// a message may be sent.
func (p *messageParts) begin(admit func(ctx context.Context, m *queue.Message) error) {
	p.pusher.Admit = admit
	p.queue.SetPusher(p.pusher)
}

func (p *messageParts) close() error {
	err := p.queue.Close()
	p.pusher.Pulls.Close()
	p.pusher.Close()
	return err
}

// vercelWorkflows returns the dependencies of the protocol of Vercel's Workflow SDK.
func (d *Daemon) vercelWorkflows() vercelworkflow.Config {
	return vercelworkflow.Config{
		Runs:       func(project string) vercelworkflow.Runs { return d.workflows.External(project, history.JavaScript) },
		Queue:      d.messages.queue,
		Check:      d.messages.pusher.Check,
		Priorities: d.workflows.Priorities,
		Pulls:      d.messages.pusher.Pulls,
		Project:    d.workflowRoutes.Project,
	}
}
