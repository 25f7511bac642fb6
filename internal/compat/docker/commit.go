package docker

import (
	"context"
	"net/http"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
)

// commitExpiry bounds the life of a snapshot that an image was made of, if the next
// start of the container needs it; see forgetCommit.
const commitExpiry = sandbox.Duration(time.Hour)

// handleCommit makes an image of a container's files, with the configuration that the
// container was created with.
func (s *Server) handleCommit(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	c, err := s.find(r.Context(), q.Get("container"))
	if err != nil {
		return err
	}
	ref := q.Get("repo")
	switch {
	case c.box == nil:
		return failf(http.StatusConflict, "container %s is a proxy within cay, without files", c.Name)
	case ref == "":
		return failf(http.StatusBadRequest, "repo is missing: the name of the new image, which cay keeps no images without")
	case q.Get("changes") != "":
		return failf(http.StatusBadRequest, "cay refuses changes of the image's configuration in a commit; write them into a Dockerfile that begins with FROM %s", ref)
	}
	if tag := q.Get("tag"); tag != "" {
		ref += ":" + tag
	}
	var img *sandbox.Image
	err = s.changing(r.Context(), c, func(_ *live, c *container) error {
		snapshot, err := s.saved(r.Context(), c)
		if err != nil {
			return err
		}
		p := sandbox.ImageSnapshotParams{
			Snapshot: snapshot, Ref: ref, Entrypoint: c.Spec.Argv[:0:0], Cmd: c.Spec.Argv,
			User: c.Spec.User, WorkDir: c.Spec.WorkingDir, Labels: c.Spec.Labels, ExposedPorts: c.Spec.Exposed,
		}
		img, err = s.cfg.Images.FromSnapshot(r.Context(), p, func(sandbox.ImageProgress) {})
		if snapshot != c.box.SnapshotID {
			s.forgetCommit(r.Context(), snapshot)
		}
		return err
	})
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusCreated, map[string]string{"Id": img.Digest})
}

// saved returns a snapshot of a container's files: a new one while the container's
// sandbox runs, else the one of its end.
func (s *Server) saved(ctx context.Context, c *container) (id string, err error) {
	if c.box.Status.Final() {
		if c.box.SnapshotID == "" {
			return "", failf(http.StatusConflict, "the files of container %s were not kept when it ended", c.ID)
		}
		return c.box.SnapshotID, nil
	}
	expiry := commitExpiry
	snapshot, err := s.cfg.Sandboxes.CreateSnapshot(ctx, c.box.ID, sandbox.SnapshotParams{Expiration: &expiry})
	if err != nil {
		return "", err
	}
	return snapshot.ID, nil
}

// forgetCommit deletes a snapshot of which an image was made. A persistent sandbox
// needs its newest snapshot until it saves another one; then the snapshot expires.
func (s *Server) forgetCommit(ctx context.Context, snapshot string) {
	_, err := s.cfg.Sandboxes.DeleteSnapshot(context.WithoutCancel(ctx), snapshot, sandbox.DeleteSnapshotParams{})
	if code := cay.CodeOf(err); err != nil && code != cay.Conflict && code != cay.NotFound {
		s.cfg.Logger.WarnContext(ctx, "delete the snapshot of a commit", "snapshot", snapshot, "error", err)
	}
}
