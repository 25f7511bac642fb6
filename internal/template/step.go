package template

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
)

// step carries out a step.
func (u *build) step(ctx context.Context, box *sandbox.Sandbox, i int) error {
	s := u.t.Steps[i]
	if len(s.Run) == 0 {
		for _, c := range u.copies[i] {
			if err := u.copy(ctx, box, s, c); err != nil {
				return u.stepError(i, err)
			}
		}
		return nil
	}
	err := u.run(ctx, box, s.String(), sandbox.CommandParams{
		Argv: s.Run, Env: merge(u.t.Env, s.Env), User: s.User, WorkDir: s.WorkDir, Timeout: sandbox.Duration(s.Timeout),
	})
	var failed *StepError
	if errors.As(err, &failed) {
		failed.Step = i + 1
	}
	if err != nil {
		return u.stepError(i, err)
	}
	return nil
}

// run runs a program to its end. Errors: *StepError if that is a failure.
func (u *build) run(ctx context.Context, box *sandbox.Sandbox, text string, p sandbox.CommandParams) error {
	out, err := u.Sandboxes.Exec(ctx, box.ID, p)
	if err != nil {
		return err
	}
	defer out.Close() // at its end, or given up with the sandbox
	exit, last, err := u.follow(out, nil)
	if err != nil {
		return err
	}
	if exit.Code != 0 || exit.TimedOut {
		return &StepError{Text: text, Exit: *exit, Output: last}
	}
	return nil
}

// follow passes on what a program writes until it exits. last is the end of that.
func (u *build) follow(out sandbox.Output, look func([]byte)) (exit *sandbox.Exit, last []byte, err error) {
	for {
		e, err := out.Next()
		if err != nil || e.Exit != nil {
			last = last[max(0, len(last)-tailSize):]
		}
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = cay.Errorf(cay.Internal, "the output of a command ended without its exit")
			}
			return nil, last, err
		}
		if e.Exit != nil {
			return e.Exit, last, nil
		}
		if len(e.Data) == 0 {
			continue
		}
		u.event(Event{Output: e.Data})
		if look != nil {
			look(e.Data)
		}
		last = append(last, e.Data...)
		if n := len(last) - tailSize; n > tailSize { // now and then, not for every byte
			last = append(last[:0], last[n:]...)
		}
	}
}

// copy packs files while the sandbox unpacks them.
func (u *build) copy(ctx context.Context, box *sandbox.Sandbox, s Step, c copied) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r, w := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		err := pack(ctx, w, u.root, c.Files)
		w.CloseWithError(err)
		packed <- err
	}()
	err := u.Sandboxes.Extract(ctx, box.ID, c.Dir, r, sandbox.ExtractParams{Format: sandbox.Tar, User: s.User})
	cancel()
	r.CloseWithError(errUnread) // ends pack, if it still runs
	perr := <-packed
	if perr != nil && !errors.Is(perr, errUnread) && !errors.Is(perr, context.Canceled) {
		return perr // what was sent was cut off for that
	}
	if err != nil {
		return fmt.Errorf("copy to %s: %w", c.Dir, err)
	}
	return nil
}

// errUnread ends the packing of what nobody reads any more.
var errUnread = errors.New("the sandbox reads no more")
