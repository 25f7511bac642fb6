package torture

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/handover"
)

// upgrading is the replacement of a process by one of another build.
type upgrading struct {
	At   int32 `json:"at"`   // the number of the event at which it begins
	To   build `json:"to"`   // the programs of the new process
	Dies int32 `json:"dies"` // the number of the new process's event at which it is killed
}

// notes is the file in life.Notes.
const notes = "known.json"

// note reports what is known, and leaves it for a process that takes over.
func (p *process) note(k Known) error {
	if p.Notes != "" {
		text, err := json.Marshal(k)
		if err != nil {
			return err
		}
		path := filepath.Join(p.Notes, notes)
		if err := os.WriteFile(path+".new", text, 0o600); err != nil {
			return err
		}
		if err := os.Rename(path+".new", path); err != nil {
			return err
		}
	}
	return p.say(report{Known: k})
}

// takeOver waits until the old process has stopped, or has died, and reads its notes.
func (p *process) takeOver(ctx context.Context) error {
	if err := p.from.Await(ctx, p.Installation.Dir, cay.Version()); err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(p.Notes, notes))
	if errors.Is(err, os.ErrNotExist) {
		return nil // the old process had nothing to say
	}
	if err != nil {
		return err
	}
	return json.Unmarshal(text, &p.Known)
}

// handOver starts the new process at the event of the upgrade, and then ends the engine, in
// the midst of whatever it does. The caller calls next when it has no calls under way: next
// returns the new process, which waits to begin, or nil if the event has not come.
func (p *process) handOver(ctx context.Context, closeEngine func()) (next func() (*handover.Successor, error)) {
	var s *handover.Successor
	var err error
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		select {
		case <-p.upgrade:
		case <-stop:
			return
		}
		if s, err = p.startSuccessor(ctx); err == nil {
			closeEngine()
		}
	}()
	return func() (*handover.Successor, error) {
		close(stop)
		<-done
		return s, err
	}
}

func (p *process) startSuccessor(ctx context.Context) (*handover.Successor, error) {
	l := p.life
	l.Installation.build, l.Dies, l.Upgrade, l.Seed = p.Upgrade.To, p.Upgrade.Dies, nil, p.Seed+1
	text, err := json.Marshal(l)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return handover.Start(ctx, handover.Program{
		Path: self, Env: append(os.Environ(), lifeEnv+"="+string(text)), Stdout: p.out, Stderr: p.log,
	}, p.Installation.Dir, nil)
}

// closed reports whether a call has ended because its engine did.
func closed(err error) bool {
	code := cay.CodeOf(err)
	return err == nil || code == cay.Unavailable || code == cay.Canceled
}
