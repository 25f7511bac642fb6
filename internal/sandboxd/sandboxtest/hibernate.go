package sandboxtest

import (
	"testing"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/sandbox"
)

// testWokenFails checks that the files of a hibernation remain saved after the sandbox
// was resumed and failed. A sandbox that is not persistent has no saved files.
func testWokenFails(t *testing.T, cfg Config) {
	u := setupSaver(t, cfg)
	u.savesMemory()
	for _, persistent := range []*bool{yes, no} {
		s := u.create(sandbox.CreateParams{Persistent: persistent})
		u.sh(s.ID, "echo one > kept")
		if _, err := u.Hibernate(u.ctx, s.ID); err != nil {
			t.Fatal(err)
		}
		awake := u.resume(s.ID)
		u.sh(s.ID, "echo two > kept")
		ended := u.ending(s.ID)
		u.env.Kill(t, awake.SessionID, machine.Exit{Reason: sandbox.ReasonCrashed, Message: "so it goes"})
		wantStatus(t, ended(), sandbox.Failed, sandbox.ReasonCrashed)
		if !*persistent {
			if awake.SnapshotID != "" {
				t.Errorf("it left snapshot %s", awake.SnapshotID)
			}
			_, err := u.Resume(u.ctx, s.ID, sandbox.ResumeParams{})
			checktest.Code(t, err, cay.Stopped)
			continue
		}
		if got := u.sh(s.ID, "cat kept"); got != "one\n" {
			t.Errorf("its file is %q", got)
		}
		all := u.sessions(s.ID)
		snap := u.getSnapshot(awake.SnapshotID)
		if snap.Kind != sandbox.FilesystemSnapshot || !snap.Automatic || snap.SessionID != s.SessionID || all[2].SnapshotID != snap.ID {
			t.Errorf("it started from %+v, its sessions are %+v", snap, all)
		}
	}
}
