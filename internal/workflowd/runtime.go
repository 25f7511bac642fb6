package workflowd

import (
	"context"
	"strings"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/history"
	"github.com/cayhq/cay/internal/workflowd/admission"
	"github.com/cayhq/cay/internal/workflowd/protocol"
	"github.com/cayhq/cay/internal/workflowd/queue"
	"github.com/cayhq/cay/workflow"
)

// Runtime is the engine's interface to an external runtime. The engine needs it to act on
// the runtime's runs by itself, and to show payloads to people.
type Runtime interface {
	// Readable returns the JSON envelope of a payload, or the payload unchanged if it has
	// no readable form.
	Readable(payload []byte) []byte
	// Payload returns the runtime's form of a JSON envelope. Errors: invalid.
	Payload(envelope []byte) ([]byte, error)
	// Wake returns the message that makes an app go on with a run.
	Wake(r *history.Run) (queue.Message, error)
}

// Messages takes the messages that wake apps. *queue.Queue implements it.
type Messages interface {
	Prepare(m *queue.Message) error
	Added(messages []queue.Message)
	admission.Messages
}

// runtime returns the runtime of an external run. Errors: not_supported.
func (e *Engine) runtime(r *history.Run) (Runtime, error) {
	rt := e.cfg.Runtimes[r.Kind]
	if rt == nil || e.cfg.Messages == nil {
		return nil, cay.Errorf(cay.NotSupported, "run %s is of the runtime %q, which nothing here can wake", r.ID, r.Kind)
	}
	return rt, nil
}

// wake adds to an op the message that makes the app of an external run go on: the op's
// events and the message are stored in one commit. It does nothing for other runs.
func (e *Engine) wake(r *liveRun, o *op) error {
	row := &r.log.Run
	if !row.Kind.External() {
		return nil
	}
	rt, err := e.runtime(row)
	if err != nil {
		return err
	}
	m, err := rt.Wake(row)
	if err != nil {
		return err
	}
	m.Priority = e.door.Priority(row.Project, row.Workflow)
	if err := e.cfg.Messages.Prepare(&m); err != nil {
		return err
	}
	o.messages = []queue.Message{m}
	return nil
}

// rerunExternal starts a run of an external runtime that repeats another run, and wakes
// its app.
func (b *backend) rerunExternal(ctx context.Context, old *history.Run, created *history.Event, p workflow.RerunParams) (*workflow.RunInfo, error) {
	if p.Key != "" {
		return nil, cay.Errorf(cay.NotSupported, "runs of the runtime %q have no keys", old.Kind)
	}
	rt, err := b.e.runtime(old)
	if err != nil {
		return nil, err
	}
	attributes := map[string]string{rerunAttribute: old.ID}
	for k, v := range created.Attributes {
		if !strings.HasPrefix(k, "$") {
			attributes[k] = v
		}
	}
	build := old.Build
	if p.Build != "" {
		build = p.Build
	}
	c, err := b.e.newCreation(b.project, &workflow.NewRun{
		Workflow: old.Workflow, Input: created.Payload, Build: build, Attributes: attributes, Retention: protocol.Duration(created.Until),
	})
	if err != nil {
		return nil, err
	}
	c.run.Kind, c.run.Extra, c.created.Extra = old.Kind, old.Extra, created.Extra
	m, err := rt.Wake(&c.run)
	if err == nil {
		m.Priority = b.e.door.Priority(b.project, old.Workflow)
		err = b.e.cfg.Messages.Prepare(&m)
	}
	if err != nil {
		return nil, err
	}
	o := &op{run: c.run.ID, create: c, show: true, messages: []queue.Message{m}}
	if err := b.e.laneOf(c.run.ID, "").do(ctx, o); err != nil {
		return nil, err
	}
	return &o.after, nil
}
