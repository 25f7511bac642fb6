package docker

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"path"
	"runtime"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
)

// sameImage reports whether two references are the same, written out or not.
func sameImage(a, b string) bool { return a == b || canonical(a) == canonical(b) }

// canonical writes a reference out: "docker.io/library/debian:latest".
func canonical(ref string) string {
	r, err := name.ParseReference(ref)
	if err != nil {
		return ref
	}
	return r.Name()
}

// image returns the image that a reference, a digest, or the beginning of a digest
// names. Errors: 404.
func (s *Server) image(ctx context.Context, ref string) (*sandbox.Image, error) {
	if ref == "" {
		return nil, failf(http.StatusBadRequest, "the request names no image")
	}
	if isSidecar(ref) {
		return sidecarImage(ref), nil
	}
	img, err := s.cfg.Images.Get(ctx, ref)
	code := cay.CodeOf(err)
	if err == nil || code != cay.NotFound && code != cay.Invalid {
		return img, err
	}
	if bare, ok := strings.CutSuffix(ref, ":latest"); ok && !strings.Contains(bare, "/") {
		// An image that cay makes, which has no tag but in lists of this API.
		img, err := s.cfg.Images.Get(ctx, bare)
		if err == nil || cay.CodeOf(err) != cay.NotFound {
			return img, err
		}
	}
	if short := strings.TrimPrefix(ref, "sha256:"); len(short) >= 6 && isPrefix.MatchString(short) {
		all, err := s.cfg.Images.List(ctx)
		if err != nil {
			return nil, err
		}
		for _, img := range all {
			if strings.HasPrefix(img.Digest, "sha256:"+short) {
				return &img, nil
			}
		}
	}
	return nil, failf(http.StatusNotFound, "No such image: %.300s", ref)
}

// repoTags are the names of an image as the API writes them, with their tags, and
// those with digests.
func repoTags(img *sandbox.Image) (tags, digests []string) {
	tags, digests = []string{}, []string{}
	for _, ref := range img.Refs {
		switch {
		case strings.Contains(ref, "@"):
			digests = append(digests, ref)
		case strings.Contains(path.Base(ref), ":"):
			tags = append(tags, familiar(ref))
		default:
			tags = append(tags, familiar(ref)+":latest")
		}
	}
	return tags, digests
}

// familiar leaves out what everybody leaves out of the names of Docker's own registry.
func familiar(ref string) string {
	for _, prefix := range []string{"index.docker.io/", "docker.io/"} {
		if rest, ok := strings.CutPrefix(ref, prefix); ok {
			return strings.TrimPrefix(rest, "library/")
		}
	}
	return ref
}

func (s *Server) handleImages(w http.ResponseWriter, r *http.Request) error {
	f, err := readFilters(r.URL.Query().Get("filters"), "reference", "dangling")
	if err != nil {
		return err
	}
	all, err := s.cfg.Images.List(r.Context())
	if err != nil {
		return err
	}
	out := []any{}
	for _, img := range all {
		tags, digests := repoTags(&img)
		if !anyOf(f["reference"], func(pattern string) bool { return matchesAny(pattern, tags) }) {
			continue
		}
		if slices.Contains(f["dangling"], "true") || slices.Contains(f["dangling"], "1") {
			continue // images without a name are not listed
		}
		out = append(out, map[string]any{
			"Id": img.Digest, "ParentId": "", "RepoTags": tags, "RepoDigests": digests, "Created": img.CreatedAt.Unix(), "Size": img.SizeBytes,
			"SharedSize": -1, "Containers": -1, "Labels": orEmpty(img.Config.Labels),
		})
	}
	return writeJSON(w, http.StatusOK, out)
}

// matchesAny reports whether a pattern matches one of the names, with its tag or without.
func matchesAny(pattern string, names []string) bool {
	return slices.ContainsFunc(names, func(n string) bool {
		repository := n[:strings.LastIndexByte(n, ':')]
		for _, candidate := range []string{n, repository} {
			if ok, err := path.Match(pattern, candidate); ok && err == nil {
				return true
			}
		}
		return sameImage(pattern, n)
	})
}

func (s *Server) handleImage(w http.ResponseWriter, r *http.Request) error {
	if ref, ok := strings.CutSuffix(r.PathValue("name"), "/get"); ok {
		return s.saveImages(w, r, []string{ref})
	}
	ref, ok := strings.CutSuffix(r.PathValue("name"), "/json")
	if !ok {
		return failf(http.StatusNotImplemented, "of images cay has on this socket: list, inspect, pull, push, load, save, tag and removal; not %s", path.Base(ref))
	}
	img, err := s.image(r.Context(), ref)
	if err != nil {
		return err
	}
	tags, digests := repoTags(img)
	exposed := map[string]struct{}{}
	for _, port := range img.Config.ExposedPorts {
		exposed[port] = struct{}{}
	}
	return writeJSON(w, http.StatusOK, map[string]any{
		"Id": img.Digest, "RepoTags": tags, "RepoDigests": digests, "Parent": "", "Comment": "", "Author": "", "Created": stamp(img.CreatedAt),
		"Size": img.SizeBytes, "VirtualSize": img.SizeBytes, "Os": "linux", "Architecture": img.Arch, "DockerVersion": "",
		"Config": map[string]any{
			"Env": img.Config.Env, "Cmd": img.Config.Cmd, "Entrypoint": img.Config.Entrypoint, "User": img.Config.User, "WorkingDir": img.Config.WorkDir,
			"ExposedPorts": exposed, "Labels": orEmpty(img.Config.Labels), "Volumes": nil,
		},
		"RootFS":      map[string]any{"Type": "layers", "Layers": []string{img.Digest}},
		"GraphDriver": map[string]any{"Name": "cay", "Data": nil}, "Metadata": map[string]any{},
	})
}

func (s *Server) handleImagePost(w http.ResponseWriter, r *http.Request) error {
	if ref, ok := strings.CutSuffix(r.PathValue("name"), "/push"); ok {
		return s.handlePush(w, r, ref)
	}
	ref, ok := strings.CutSuffix(r.PathValue("name"), "/tag")
	if !ok {
		return failf(http.StatusNotImplemented, "cay has not (yet) on this socket: %s of images", path.Base(ref))
	}
	to := r.URL.Query().Get("repo")
	if to == "" {
		return failf(http.StatusBadRequest, "repo is missing: the new name of the image")
	}
	if tag := r.URL.Query().Get("tag"); tag != "" {
		to += ":" + tag
	}
	if isSidecar(ref) {
		return failf(http.StatusBadRequest, "%s is a proxy within cay, which has one name", ref)
	}
	img, err := s.image(r.Context(), ref)
	if err != nil {
		return err
	}
	if _, err := s.cfg.Images.Tag(r.Context(), img.Digest, to); err != nil {
		return err
	}
	w.WriteHeader(http.StatusCreated)
	return nil
}

func (s *Server) handleImageRemove(w http.ResponseWriter, r *http.Request) error {
	ref := r.PathValue("name")
	if err := s.cfg.Images.Remove(r.Context(), ref); cay.CodeOf(err) == cay.NotFound {
		return failf(http.StatusNotFound, "No such image: %.300s", ref)
	} else if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, []map[string]string{{"Untagged": ref}})
}

// handlePull answers with a line for each step, the first when the daemon has begun.
func (s *Server) handlePull(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	ref := q.Get("fromImage")
	if ref == "" || q.Get("fromSrc") != "" {
		return failf(http.StatusBadRequest, "cay pulls images by fromImage alone; \"cay image import\" reads archives")
	}
	switch tag := q.Get("tag"); {
	case strings.HasPrefix(tag, "sha256:"):
		ref += "@" + tag
	case tag != "":
		ref += ":" + tag
	}
	if p := q.Get("platform"); p != "" && p != "linux/"+runtime.GOARCH && p != "linux" {
		return failf(http.StatusBadRequest, "cay refuses platform %.50s: images are those of linux/%s, the machine's own", p, runtime.GOARCH)
	}
	lines := &progress{w: w}
	if isSidecar(ref) {
		return lines.status("Status: Image is up to date for " + ref)
	}
	img, err := s.cfg.Images.Pull(r.Context(), ref, func(p sandbox.ImageProgress) { lines.step(p) })
	if err != nil {
		// An image that was imported under that name is not in a registry.
		if have, e := s.cfg.Images.Get(r.Context(), ref); e == nil && have.Source != "oci" && cay.CodeOf(err) != cay.Invalid {
			return lines.status("Status: Image is up to date for " + ref + ": it was not pulled from a registry but made here")
		}
		return lines.fail(err)
	}
	return lines.status("Digest: "+img.Digest, "Status: Image is up to date for "+ref)
}

// progress writes lines of a pull.
type progress struct {
	w     http.ResponseWriter
	begun bool
	gone  error // of a client that left; the pull goes on until its context ends
}

func (p *progress) line(v any) error {
	if p.gone != nil {
		return p.gone
	}
	if !p.begun {
		p.begun = true
		p.w.Header().Set("Content-Type", "application/json")
		p.w.WriteHeader(http.StatusOK)
	}
	if p.gone = json.NewEncoder(p.w).Encode(v); p.gone == nil {
		p.gone = http.NewResponseController(p.w).Flush()
	}
	return p.gone
}

// step translates a step of a pull.
func (p *progress) step(st sandbox.ImageProgress) {
	what := map[string]string{"download": "Downloading", "unpack": "Extracting", "resolve": "Pulling", "pack": "Preparing", "upload": "Pushing"}[st.Phase]
	if what == "" {
		return
	}
	id := strings.TrimPrefix(st.Item, "sha256:")
	line := map[string]any{"status": what, "id": id[:min(12, len(id))], "progressDetail": map[string]int64{}}
	if st.Total > 0 {
		line["progressDetail"] = map[string]int64{"current": st.Current, "total": st.Total}
		line["progress"] = fmt.Sprintf("%d/%d MB", st.Current>>20, st.Total>>20)
	}
	_ = p.line(line) // remembered in gone
}

func (p *progress) status(lines ...string) error {
	for _, l := range lines {
		if p.line(map[string]string{"status": l}) != nil {
			return nil // the client left
		}
	}
	return nil
}

// fail ends with an error: as a line if there were others.
func (p *progress) fail(err error) error {
	if !p.begun {
		return err
	}
	_, message := shape(err)
	_ = p.line(map[string]any{"errorDetail": map[string]string{"message": message}, "error": message}) // the client left
	return nil
}
