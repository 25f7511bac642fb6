package sandboxd_test

import (
	"sync"
	"testing"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/sandboxd"
	"github.com/cayhq/cay/internal/sandboxd/sandboxtest"
	"github.com/cayhq/cay/sandbox"
)

// A call restricted to a running session does not read the database: it succeeds even if
// the session's row is missing.
func TestSessionRef_WithoutDatabase(t *testing.T) {
	t.Parallel()
	h, _ := startFake(t)
	ctx := defaultCaller(t)
	s := checktest.Must(h.Create(ctx, sandbox.CreateParams{}))(t)
	if _, err := h.Config.DB.Exec(ctx, `DELETE FROM sandbox_sessions WHERE id = ?`, s.SessionID); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Stat(ctx, s.SessionID, "/", false); err != nil {
		t.Errorf("a call about the session: %v", err)
	}
	_, err := h.Get(ctx, s.SessionID)
	checktest.Code(t, err, cay.NotFound)
	_, err = h.Stat(sandboxtest.As(t.Context(), sandboxtest.TeamB), s.SessionID, "/", false)
	checktest.Code(t, err, cay.NotFound)
}

// While a session is being saved at its end, calls restricted to it end with it; calls
// about its sandbox wait for the next session.
func TestSessionRef_WhileStopping(t *testing.T) {
	t.Parallel()
	h, _ := startFake(t)
	ctx := defaultCaller(t)
	s := checktest.Must(h.Create(ctx, sandbox.CreateParams{Name: "kept"}))(t)
	saving, goOn := make(chan struct{}), make(chan struct{})
	once := sync.OnceFunc(func() {
		close(saving)
		<-goOn
	})
	h.Reached(func(point string) {
		if point == "disk-saved" {
			once()
		}
	})
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := h.Stop(ctx, s.SessionID); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
	<-saving
	if got := checktest.Must(h.GetSession(ctx, s.SessionID))(t); got.Status != sandbox.Stopping {
		t.Errorf("it is %s while it is being saved", got.Status)
	}
	_, err := h.Stat(ctx, s.SessionID, "/", false)
	checktest.Code(t, err, cay.Stopped)
	_, err = h.Extend(ctx, s.SessionID, minutes(1))
	checktest.Code(t, err, cay.Stopped)
	_, err = h.Resume(ctx, s.SessionID, sandbox.ResumeParams{})
	checktest.Code(t, err, cay.Stopped)
	wg.Go(func() {
		if _, err := h.Stat(ctx, s.ID, "/", false); err != nil {
			t.Errorf("a call about the sandbox: %v", err)
		}
	})
	close(goOn)
	wg.Wait()
	if got := checktest.Must(h.Get(ctx, s.SessionID))(t); got.Status != sandbox.Running || got.SessionID == s.SessionID {
		t.Errorf("afterwards it is %+v", got)
	}
}

// The stop of a session that has ended does not end the next session, however late the
// stop learns of the end.
func TestSessionRef_LateStop(t *testing.T) {
	t.Parallel()
	h, _ := startFake(t)
	ctx := defaultCaller(t)
	s := checktest.Must(h.Create(ctx, sandbox.CreateParams{Name: "kept"}))(t)
	var wg sync.WaitGroup
	for range 20 {
		session := checktest.Must(h.Get(ctx, s.ID))(t).SessionID
		for range 4 {
			wg.Go(func() {
				if _, err := h.Stop(ctx, session); err != nil {
					t.Errorf("stop: %v", err)
				}
			})
		}
		wg.Go(func() {
			if _, err := h.Resume(ctx, s.ID, sandbox.ResumeParams{}); err != nil && cay.CodeOf(err) != cay.Stopped {
				t.Errorf("resume: %v", err)
			}
		})
		wg.Wait()
		got := checktest.Must(h.Resume(ctx, s.ID, sandbox.ResumeParams{}))(t)
		if got.SessionID == session {
			t.Fatalf("session %s was not stopped", session)
		}
		wantStatus(t, checktest.Must(h.Stop(ctx, session))(t), sandbox.Running, "")
	}
}

// A session's id names the same session after a restart of the daemon.
func TestSessionRef_AfterRestart(t *testing.T) {
	t.Parallel()
	h, _ := startFake(t)
	ctx := defaultCaller(t)
	s := checktest.Must(h.Create(ctx, sandbox.CreateParams{Name: "kept"}))(t)
	checktest.Must(h.Stop(ctx, s.ID))(t)
	later := checktest.Must(h.Resume(ctx, s.ID, sandbox.ResumeParams{}))(t)
	h.Restart(t)
	if _, err := h.Stat(ctx, later.SessionID, "/", false); err != nil {
		t.Errorf("a call about the session that runs: %v", err)
	}
	_, err := h.Stat(ctx, s.SessionID, "/", false)
	checktest.Code(t, err, cay.Stopped)
	wantStatus(t, checktest.Must(h.Get(ctx, s.SessionID))(t), sandbox.Running, "")
}

// A sandbox that is not persistent and is started anew uses the current image of its
// reference if the old image is gone; a persistent sandbox needs the old image.
func TestResumeAnew_ImageGone(t *testing.T) {
	t.Parallel()
	images := &unknownImages{unknown: map[string]bool{}}
	h, _ := startFake(t, func(c *sandboxd.Config) { images.ImageSource, c.Images = c.Images, images })
	ctx := defaultCaller(t)
	create := func(p sandbox.CreateParams) *sandbox.Sandbox {
		s := checktest.Must(h.Create(ctx, p))(t)
		checktest.Must(h.Stop(ctx, s.ID))(t)
		return s
	}
	s, kept := create(sandbox.CreateParams{}), create(sandbox.CreateParams{Name: "kept"})
	if needed := checktest.Must(h.NeedsImage(ctx, s.Digest))(t); !needed {
		t.Error("nobody needs the image of a persistent sandbox")
	}
	h.Images.Rebuild()
	images.forget(s.Digest)
	again := checktest.Must(h.Resume(ctx, s.ID, sandbox.ResumeParams{Fresh: true}))(t)
	if again.Digest == s.Digest || again.Status != sandbox.Running {
		t.Errorf("started anew it is %+v", again)
	}
	_, err := h.Resume(ctx, kept.ID, sandbox.ResumeParams{Fresh: true})
	checktest.Code(t, err, cay.NotFound)
}
