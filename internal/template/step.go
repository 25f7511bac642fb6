package template

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
)

// step carries out a step.
func (u *build) step(ctx context.Context, box *sandbox.Sandbox, i int) error {
	s := u.t.Steps[i]
	switch {
	case s.Mkdir != "":
		if err := u.Sandboxes.Mkdir(ctx, box.ID, s.Mkdir, sandbox.MkdirParams{Parents: true, User: "root"}); err != nil {
			return u.stepError(i, err)
		}
		return nil
	case s.Source != (From{}):
		if err := u.copyFrom(ctx, box, s); err != nil {
			return u.stepError(i, err)
		}
		return nil
	case len(s.Run) == 0:
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

// run runs a program to its end. Errors: *StepError if the program failed.
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

// follow passes a program's output on until the program exits. last is the end of
// the output.
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
	if c.Into != "" {
		name := path.Join(c.Dir, c.Files[0].Name)
		there, err := u.isDir(ctx, box, name)
		if err != nil {
			return err
		}
		if there {
			c.Dir, c.Files = name, []file{c.Files[0]}
			c.Files[0].Name = c.Into
		}
	}
	return u.unpack(ctx, box, c.Dir, s.User, func(ctx context.Context, w io.Writer) error { return pack(ctx, w, u.root, c.Files) })
}

// isDir reports whether a path of a sandbox leads to a directory.
func (u *build) isDir(ctx context.Context, box *sandbox.Sandbox, name string) (bool, error) {
	info, err := u.Sandboxes.Stat(ctx, box.ID, name, true)
	if cay.CodeOf(err) == cay.FileNotFound {
		return false, nil
	}
	return err == nil && info.Type == sandbox.TypeDir, err
}

// unpack lets a sandbox unpack below dir the tar archive that write writes.
func (u *build) unpack(ctx context.Context, box *sandbox.Sandbox, dir, user string, write func(context.Context, io.Writer) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r, w := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		err := write(ctx, w)
		w.CloseWithError(err)
		packed <- err
	}()
	err := u.Sandboxes.Extract(ctx, box.ID, dir, r, sandbox.ExtractParams{Format: sandbox.Tar, User: user})
	cancel()
	r.CloseWithError(errUnread) // ends write, if it still runs
	perr := <-packed
	if perr != nil && !errors.Is(perr, errUnread) && !errors.Is(perr, context.Canceled) {
		return perr // the sending failed for this reason
	}
	if err != nil {
		return fmt.Errorf("copy to %s: %w", dir, err)
	}
	return nil
}

// errUnread ends the packing when the sandbox has stopped reading.
var errUnread = errors.New("the sandbox reads no more")
