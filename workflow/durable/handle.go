package durable

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
	"github.com/cayhq/cay/workflow"
)

// Handle is a sandbox in a workflow: a serialisable value. See sandbox.Handle for the
// methods; methods that end a sandbox may be repeated.
//
// Errors are those of package sandbox, wrapped in a *workflow.StepError: errors.Is(err,
// &cay.Error{Code: cay.Stopped}) works. If a Context is cancelled or has timed out, they
// are workflow.ErrCancelled or workflow.ErrTimeout.
type Handle struct {
	ID   string `json:"id"`
	Name string `json:"name,omitempty"`
}

// Sandbox returns a Handle of an existing sandbox, by id or name. It is not a step.
func Sandbox(ref string) *Handle { return &Handle{ID: ref} }

// tagRun is the tag that workflows give their sandboxes: the id of the run.
const tagRun = "workflow.run"

// Create makes a sandbox and returns when the sandbox can run commands. If the sandbox
// can have another tag, Create adds the tag "workflow.run" with the run's id.
// p.IdempotencyKey is replaced by the step's own key. Once begun, Create is not
// interrupted by ctx; see the package comment.
func Create(ctx workflow.Context, p sandbox.CreateParams) (*Handle, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	p.Tags = tagged(ctx, p.Tags)
	h, err := do(workflow.WithoutCancel(ctx), "create", func(ctx context.Context, c *sandbox.Client) (Handle, error) {
		p := p // the attempt's copy
		p.IdempotencyKey = keyed(ctx)
		s, err := c.Create(ctx, p)
		if err != nil {
			return Handle{}, err
		}
		if s.Status == sandbox.Pending || s.Status == sandbox.Resuming { // an earlier attempt's sandbox, which is not running yet
			return Handle{}, cay.Errorf(cay.Unavailable, "sandbox %q is still being created", s.Name)
		}
		return Handle{ID: s.ID, Name: s.Name}, nil
	}, workflow.Timeout(attempt))
	if err != nil {
		return nil, err
	}
	return &h, nil
}

// tagged returns tags with an added tag that names the run.
func tagged(ctx workflow.Context, tags map[string]string) map[string]string {
	const most = 16 // tags of a sandbox
	if _, ok := tags[tagRun]; ok || len(tags) >= most {
		return tags
	}
	with := map[string]string{tagRun: ctx.Info().RunID}
	for k, v := range tags {
		with[k] = v
	}
	return with
}

// DeleteOn adds the deletion of the sandbox to the saga.
func (h *Handle) DeleteOn(s *workflow.Saga) {
	s.Add("delete sandbox "+h.ID, h.Delete)
}

// Get returns the sandbox as it was when the step was done, without the values of
// its environment variables.
func (h *Handle) Get(ctx workflow.Context) (*sandbox.Sandbox, error) {
	return h.read(ctx, "get", func(ctx context.Context, box *sandbox.Handle) (*sandbox.Sandbox, error) { return box.Get(ctx) })
}

// Stop ends the sandbox and returns when all its processes have ended. Stopping an ended
// sandbox does nothing.
func (h *Handle) Stop(ctx workflow.Context) (*sandbox.Sandbox, error) {
	return h.read(ctx, "stop", func(ctx context.Context, box *sandbox.Handle) (*sandbox.Sandbox, error) {
		s, err := box.Stop(ctx)
		if is(err, cay.Stopped) {
			return box.Get(ctx)
		}
		return s, err
	})
}

// Delete stops the sandbox and deletes it. Deleting a deleted sandbox is no error.
func (h *Handle) Delete(ctx workflow.Context) error {
	return h.act(ctx, "delete", func(ctx context.Context, box *sandbox.Handle) error {
		if err := box.Delete(ctx); !is(err, cay.NotFound) {
			return err
		}
		return nil
	})
}

// Hibernate saves the sandbox with its processes and frees its memory and CPU: for a
// workflow that is about to wait.
func (h *Handle) Hibernate(ctx workflow.Context) (*sandbox.Sandbox, error) {
	return h.read(ctx, "hibernate", func(ctx context.Context, box *sandbox.Handle) (*sandbox.Sandbox, error) { return box.Hibernate(ctx) })
}

// Resume makes the sandbox run, from any state. Calls that need a persistent or
// hibernated sandbox to run resume it by themselves.
func (h *Handle) Resume(ctx workflow.Context) (*sandbox.Sandbox, error) {
	return h.read(ctx, "resume", func(ctx context.Context, box *sandbox.Handle) (*sandbox.Sandbox, error) { return box.Resume(ctx) })
}

// Extend moves the end of the sandbox by d. If an attempt moved the end and its answer
// was lost, the next attempt moves the end again.
func (h *Handle) Extend(ctx workflow.Context, d time.Duration) (*sandbox.Sandbox, error) {
	return h.read(ctx, "extend", func(ctx context.Context, box *sandbox.Handle) (*sandbox.Sandbox, error) { return box.Extend(ctx, d) })
}

// SetNetwork replaces the egress policy.
func (h *Handle) SetNetwork(ctx workflow.Context, n sandbox.Network) error {
	return h.act(ctx, "set-network", func(ctx context.Context, box *sandbox.Handle) error { return box.SetNetwork(ctx, n) })
}

// Fork copies the sandbox. It is idempotent like Create: missing names are derived from
// the step's key.
func (h *Handle) Fork(ctx workflow.Context, p sandbox.ForkParams) ([]*Handle, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return do(workflow.WithoutCancel(ctx), "fork", func(ctx context.Context, c *sandbox.Client) ([]*Handle, error) {
		p, given := p, len(p.Names) > 0 // the attempt's copy
		if !given {
			key := keyed(ctx)
			for i := range max(p.Count, 1) {
				p.Names = append(p.Names, fmt.Sprintf("fork-%s-%d", key, i+1))
			}
		}
		f, err := c.Fork(ctx, h.ID, p)
		if is(err, cay.AlreadyExists) && !given {
			return found(ctx, c, p.Names)
		}
		if err != nil {
			return nil, err
		}
		var copies []*Handle
		for _, s := range f.Sandboxes {
			copies = append(copies, &Handle{ID: s.ID, Name: s.Name})
		}
		return copies, nil
	}, workflow.Timeout(attempt))
}

// found returns the sandboxes that an earlier attempt has made.
func found(ctx context.Context, c *sandbox.Client, names []string) ([]*Handle, error) {
	var all []*Handle
	for _, name := range names {
		s, err := c.Get(ctx, name)
		if err != nil {
			return nil, err
		}
		all = append(all, &Handle{ID: s.ID, Name: s.Name})
	}
	return all, nil
}

// keyed returns a unique name for the object that a step makes, the same for each
// attempt.
func keyed(ctx context.Context) string {
	sum := sha256.Sum256([]byte(workflow.StepInfo(ctx).IdempotencyKey))
	return hex.EncodeToString(sum[:12])
}

// read runs a step that returns the sandbox.
func (h *Handle) read(ctx workflow.Context, name string, f func(context.Context, *sandbox.Handle) (*sandbox.Sandbox, error)) (*sandbox.Sandbox, error) {
	return do(ctx, name, func(ctx context.Context, c *sandbox.Client) (*sandbox.Sandbox, error) {
		s, err := f(ctx, c.Sandbox(h.ID))
		if err != nil {
			return nil, err
		}
		return logged(s), nil
	})
}

// act runs a step without a result.
func (h *Handle) act(ctx workflow.Context, name string, f func(context.Context, *sandbox.Handle) error) error {
	_, err := do(ctx, name, func(ctx context.Context, c *sandbox.Client) (none, error) {
		return none{}, f(ctx, c.Sandbox(h.ID))
	})
	return err
}

// logged returns a copy of a sandbox for the log, without the values of its environment
// variables.
func logged(s *sandbox.Sandbox) *sandbox.Sandbox {
	c := *s
	c.Env = masked(s.Env)
	if s.Next != nil {
		next := *s.Next
		next.Env = masked(next.Env)
		c.Next = &next
	}
	return &c
}

// masked returns the names of variables, without their values.
func masked(env map[string]string) map[string]string {
	if env == nil {
		return nil
	}
	names := make(map[string]string, len(env))
	for k := range env {
		names[k] = ""
	}
	return names
}
