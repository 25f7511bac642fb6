package gvisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// The state after Pause and Resume is written into the machine's directory, because
// another daemon could not tell a paused machine from a slow one. In a sentry pauses
// nest; here they must not.
const (
	pauseFile = "pause"

	markRunning  = "running"
	markChanging = "changing" // asked for, and perhaps done
	markPaused   = "paused"
)

// markPause writes the known state. The file outlives the daemon, as the machine does,
// and need not survive a crash of the host.
func markPause(dir, mark string) error {
	if err := os.WriteFile(filepath.Join(dir, pauseFile), []byte(mark), 0o600); err != nil {
		return fmt.Errorf("note that the machine is %s: %w", mark, err)
	}
	return nil
}

// Paused implements machine.Instance.
func (in *instance) Paused() (paused, sure bool) {
	b, err := os.ReadFile(filepath.Join(in.r.dir(in.st.ID), pauseFile))
	paused = string(b) == markPaused
	return paused, err == nil && (paused || string(b) == markRunning)
}

// Pause implements machine.Instance.
func (in *instance) Pause(context.Context) error {
	if err := in.change(markRunning, markPaused, in.st.Sandbox.Pause); err != nil {
		return fmt.Errorf("pause sentry: %w", err)
	}
	return nil
}

// Resume implements machine.Instance.
func (in *instance) Resume(context.Context) error {
	if err := in.change(markPaused, markRunning, in.st.Sandbox.Resume); err != nil {
		return fmt.Errorf("resume sentry: %w", err)
	}
	return nil
}

func (in *instance) change(from, to string, do func(id string) error) error {
	in.pausing.Lock()
	defer in.pausing.Unlock()
	if paused, sure := in.Paused(); sure && paused == (to == markPaused) {
		return nil
	}
	dir := in.r.dir(in.st.ID)
	if err := markPause(dir, markChanging); err != nil {
		return err
	}
	if err := do(in.st.ID); err != nil {
		return errors.Join(err, markPause(dir, from))
	}
	if err := markPause(dir, to); err != nil {
		// The sentry has changed as requested. The file still says markChanging: state
		// unknown.
		in.r.log.Error("whether a machine is paused is not noted", "id", in.st.ID, "error", err)
	}
	return nil
}
