package daemon_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/internal/testenv"
	"github.com/cayhq/cay/sandbox"
)

// The images of a team belong to the team: its sandboxes can use them, they
// count against its quota, and they stay until they are removed.
func TestImages_OfTeam(t *testing.T) {
	env := testenv.Start(t)
	ctx := t.Context()
	admin := func(team string) *account.Client {
		return &account.Client{URL: env.URL, Token: env.Token, Team: team}
	}
	client := func(team string, p account.CreateTokenParams) *sandbox.Client {
		t.Helper()
		made, err := admin(team).CreateToken(ctx, p)
		if err != nil {
			t.Fatal(err)
		}
		return sandbox.NewClient(sandbox.ClientOptions{URL: env.URL, Token: made.Secret})
	}
	var teams, projects []string
	for _, name := range []string{"a", "b"} {
		team, err := admin("").CreateTeam(ctx, account.CreateTeamParams{Name: name})
		if err != nil {
			t.Fatal(err)
		}
		project, err := admin(team.ID).CreateProject(ctx, account.CreateProjectParams{Name: "web"})
		if err != nil {
			t.Fatal(err)
		}
		teams, projects = append(teams, team.ID), append(projects, project.ID)
	}
	a, b := client(teams[0], account.CreateTokenParams{}), client(teams[1], account.CreateTokenParams{})
	worker := client(teams[0], account.CreateTokenParams{ProjectID: projects[0]})

	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	content := "of team " + teams[0]
	err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "whose", Mode: 0o644, Size: int64(len(content))})
	if err == nil {
		_, err = w.Write([]byte(content))
	}
	if err = errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	img, err := a.Images().Import(ctx, "whose:1", &archive, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // the store is shared with other tests
		if _, err := env.Client.Images().GC(context.Background(), sandbox.ImageGCParams{}); err != nil {
			t.Error(err)
		}
	})
	for _, ref := range []string{"whose:1", img.Digest} {
		if _, err := b.Images().Get(ctx, ref); cay.CodeOf(err) != cay.NotFound {
			t.Errorf("another team sees %s: %v", ref, err)
		}
	}
	if _, err := b.Create(ctx, sandbox.CreateParams{ProjectID: projects[1], Image: img.Digest}); cay.CodeOf(err) != cay.NotFound {
		t.Errorf("another team starts from %s: %v", img.Digest, err)
	}
	if _, err := worker.Images().Import(ctx, "other:1", strings.NewReader(""), nil); cay.CodeOf(err) != cay.PermissionDenied {
		t.Errorf("the token of a project brings an image: %v", err)
	}

	s, err := worker.Create(ctx, sandbox.CreateParams{Image: "whose:1", Persistent: new(true)})
	if err != nil {
		t.Fatal(err)
	}
	whose := func() {
		t.Helper()
		r, _, err := worker.ReadFile(ctx, s.ID, "/whose", sandbox.ReadParams{})
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		if got, err := io.ReadAll(r); err != nil || string(got) != content {
			t.Errorf("the sandbox has %q, %v", got, err)
		}
	}
	whose()
	if err := admin("").DeleteTeam(ctx, teams[0]); cay.CodeOf(err) != cay.Conflict || !strings.Contains(err.Error(), "1 image") {
		t.Errorf("a team with images is deleted: %v", err)
	}

	// The content of an image that a sandbox resumes from stays, without a name.
	if err := a.Images().Remove(ctx, "whose:1"); err != nil {
		t.Fatal(err)
	}
	if _, err := worker.Stop(ctx, s.ID); err != nil {
		t.Fatal(err)
	}
	report, err := env.Client.Images().GC(ctx, sandbox.ImageGCParams{DryRun: true})
	if err != nil || slices.ContainsFunc(report.Images, func(i sandbox.Image) bool { return i.Digest == img.Digest }) {
		t.Errorf("a collection would remove %+v, %v", report, err)
	}
	if _, err := worker.Resume(ctx, s.ID, sandbox.ResumeParams{}); err != nil {
		t.Fatal(err)
	}
	whose()
	if err := worker.Delete(ctx, s.ID); err != nil {
		t.Fatal(err)
	}
}
