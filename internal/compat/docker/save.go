package docker

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"

	"github.com/cayhq/cay/sandbox"
)

// handleSaveAll answers with an archive of the images in the query.
func (s *Server) handleSaveAll(w http.ResponseWriter, r *http.Request) error {
	return s.saveImages(w, r, r.URL.Query()["names"])
}

// saveImages answers with an archive of images, as "docker save" writes it.
func (s *Server) saveImages(w http.ResponseWriter, r *http.Request, names []string) error {
	if len(names) == 0 {
		return failf(http.StatusBadRequest, "names is missing: the images of the archive")
	}
	var refs []string
	for _, n := range names {
		img, err := s.image(r.Context(), n)
		if err != nil {
			return err
		}
		if isSidecar(n) {
			return failf(http.StatusBadRequest, "%s is a proxy within cay, which has no files", n)
		}
		refs = append(refs, nameOf(img, n))
	}
	src, err := s.cfg.Images.Export(r.Context(), refs)
	if err != nil {
		return err
	}
	defer src.Close() // it was only read
	w.Header().Set("Content-Type", "application/x-tar")
	w.WriteHeader(http.StatusOK)
	if _, err := io.Copy(w, src); err != nil {
		panic(http.ErrAbortHandler) // so that a client does not take a part for the whole
	}
	return nil
}

// nameOf returns the name by which cay knows an image that ref names, or the image's digest.
func nameOf(img *sandbox.Image, ref string) string {
	for _, n := range img.Refs {
		// Images that cay makes have no tag but in this API.
		if sameImage(n, ref) || !strings.Contains(path.Base(n), ":") && sameImage(n+":latest", ref) {
			return n
		}
	}
	return img.Digest
}

// handlePush sends an image to a registry: that of a tag, or without a tag all images of
// the repository. It answers with a line for each step.
func (s *Server) handlePush(w http.ResponseWriter, r *http.Request, ref string) error {
	auth, err := registryAuth(r)
	if err != nil {
		return err
	}
	refs, err := s.pushed(r.Context(), ref, r.URL.Query().Get("tag"))
	if err != nil {
		return err
	}
	lines := &progress{w: w}
	for _, ref := range refs {
		var done sandbox.ImageProgress
		_, err := s.cfg.Images.Push(r.Context(), sandbox.ImagePushParams{Ref: ref, Auth: auth}, func(p sandbox.ImageProgress) {
			if p.Phase == "pushed" {
				done = p
			}
			lines.step(p)
		})
		if err != nil {
			return lines.fail(err)
		}
		_, tag, _ := strings.Cut(path.Base(ref), ":")
		if err := lines.status(fmt.Sprintf("%s: digest: %s size: %d", tag, done.Item, done.Total)); err != nil {
			return err
		}
		aux := map[string]any{"Tag": tag, "Digest": done.Item, "Size": done.Total}
		_ = lines.line(map[string]any{"progressDetail": struct{}{}, "aux": aux}) // remembered in gone
	}
	return nil
}

// pushed returns the references to push, with their tags.
func (s *Server) pushed(ctx context.Context, ref, tag string) ([]string, error) {
	if tag != "" {
		ref += ":" + tag
	}
	parsed, err := name.ParseReference(ref)
	if err != nil {
		return nil, failf(http.StatusBadRequest, "%.300q is not the name of an image: %v", ref, err)
	}
	if tag != "" || strings.Contains(path.Base(ref), ":") {
		if _, err := s.image(ctx, ref); err != nil {
			return nil, err
		}
		return []string{ref}, nil
	}
	all, err := s.cfg.Images.List(ctx)
	if err != nil {
		return nil, err
	}
	var refs []string
	for _, img := range all {
		for _, n := range img.Refs {
			have, err := name.NewTag(n)
			if err == nil && strings.Contains(path.Base(n), ":") && have.Context().Name() == parsed.Context().Name() {
				refs = append(refs, n)
			}
		}
	}
	if len(refs) == 0 {
		return nil, failf(http.StatusNotFound, "An image does not exist locally with the tag: %.300s", ref)
	}
	return refs, nil
}

// maxAuth bounds the header with credentials, in bytes.
const maxAuth = 64 << 10

// registryAuth reads the credentials that a client sends for a registry: JSON in base64.
func registryAuth(r *http.Request) (sandbox.RegistryAuth, error) {
	text := strings.TrimRight(r.Header.Get("X-Registry-Auth"), "=")
	if text == "" {
		return sandbox.RegistryAuth{}, nil
	}
	// Clients write both alphabets.
	b, err := base64.RawURLEncoding.DecodeString(strings.NewReplacer("+", "-", "/", "_").Replace(text))
	var c struct{ Username, Password, Auth, IdentityToken, RegistryToken string }
	if err == nil {
		err = json.Unmarshal(b, &c)
	}
	if err != nil || len(text) > maxAuth {
		return sandbox.RegistryAuth{}, failf(http.StatusBadRequest, "the header X-Registry-Auth is not JSON in base64")
	}
	if c.Username == "" && c.Auth != "" {
		plain, err := base64.StdEncoding.DecodeString(c.Auth)
		if err != nil {
			return sandbox.RegistryAuth{}, failf(http.StatusBadRequest, "auth in the header X-Registry-Auth is not base64")
		}
		c.Username, c.Password, _ = strings.Cut(string(plain), ":")
	}
	switch {
	case c.IdentityToken != "":
		return sandbox.RegistryAuth{IdentityToken: c.IdentityToken}, nil
	case c.RegistryToken != "":
		return sandbox.RegistryAuth{RegistryToken: c.RegistryToken}, nil
	}
	return sandbox.RegistryAuth{Username: c.Username, Password: c.Password}, nil
}
