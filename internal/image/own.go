package image

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"io"
	"regexp"
	"slices"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/image/rootfs"
	"github.com/cayhq/cay/sandbox"
)

// ownName is the member of an archive that names the images of cay in the archive. Other
// programs ignore the member.
const ownName = "cay.json"

// ownManifest is the content of that member.
//
// An archive has no file systems, but layers, from which Import makes the file systems
// anew. The result has the same digest as the exported image, because rootfs writes the
// same tree to the same bytes. So a hostile archive can bring no file system that cay would
// not write itself, and the digest proves that the image is the exported image.
type ownManifest struct {
	Version int        `json:"version"`
	Images  []ownImage `json:"images"`
}

const ownVersion = 1

type ownImage struct {
	Ref    string        `json:"ref"` // canonical
	Digest rootfs.Digest `json:"digest"`
	Source string        `json:"source"`
	Origin string        `json:"origin,omitempty"` // of an image that cay has built
	// Packages were added to the default image; with the recipe they make the origin.
	Packages []string `json:"packages,omitempty"`
	Config   string   `json:"config"` // the member of the archive with its configuration
}

// add adds an exported image. An image that a digest names has no name to import it under.
func (m *ownManifest) add(s *Store, ref string, of sandbox.Image, packed v1.Image) error {
	m.Version = ownVersion
	if IsDigest(ref) {
		return nil
	}
	name, err := s.canonical(ref)
	if err != nil {
		return err
	}
	config, err := packed.ConfigName()
	if err != nil {
		return err
	}
	img := ownImage{Ref: name, Digest: rootfs.Digest(of.Digest), Source: of.Source, Config: config.String()}
	if IsBuilt(name) {
		var r record
		if err := readJSON(s.recordPath(img.Digest), &r); err != nil {
			return err
		}
		img.Origin, img.Packages = r.Origin, r.Packages
	}
	m.Images = append(m.Images, img)
	return nil
}

// write writes the member as the beginning of an archive.
func (m *ownManifest) write(w io.Writer) error {
	if len(m.Images) == 0 {
		return nil
	}
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	tw := tar.NewWriter(w)
	if err := tw.WriteHeader(&tar.Header{Name: ownName, Mode: 0o644, Size: int64(len(b)), Typeflag: tar.TypeReg}); err != nil {
		return err
	}
	_, err = tw.Write(b)
	return errors.Join(err, tw.Flush()) // more members follow
}

// readOwn returns the images of cay that an archive has. Errors: invalid, not_supported.
func readOwn(a *archive) ([]ownImage, error) {
	if !a.has(ownName) {
		return nil, cay.Errorf(cay.Invalid, "the archive does not say under which names cay had its images").
			WithHint("give the image a name with --ref")
	}
	b, err := readSmall(a.open, ownName)
	if err != nil {
		return nil, err
	}
	m, err := parse[ownManifest](b, ownName)
	if err != nil {
		return nil, err
	}
	if m.Version != ownVersion {
		return nil, cay.Errorf(cay.NotSupported, "the archive was made by another version of cay: its %s has version %d, and this cay knows %d", ownName, m.Version, ownVersion)
	}
	if n := len(m.Images); n == 0 || n > maxExport {
		return nil, cay.Errorf(cay.Invalid, "the archive has %d images, and not 1 to %d", n, maxExport)
	}
	return m.Images, nil
}

// importOwn imports all images of an archive of Export under their names. Built images
// become images of the installation, so that only s of the installation takes them. After
// each image progress gets a step with the phase "imported". It returns the last image.
func (s *Store) importOwn(ctx context.Context, r io.Reader, progress func(sandbox.ImageProgress)) (last *sandbox.Image, err error) {
	defer func() { err = workError(ctx, err) }()
	if progress == nil {
		progress = func(sandbox.ImageProgress) {}
	}
	st, err := s.newStaging()
	if err != nil {
		return nil, err
	}
	defer st.closeInto(&err)
	f, err := s.spoolArchive(ctx, st, r, progress)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	a, err := indexArchive(ctx, f, s.opts.Limits.Entries)
	if err != nil {
		return nil, err
	}
	images, err := readOwn(a)
	if err != nil {
		return nil, err
	}
	for _, img := range images { // all are checked before the first is imported
		if err := s.checkOwn(img); err != nil {
			return nil, err
		}
	}
	for _, img := range images {
		if last, err = s.importOne(ctx, a, img, progress); err != nil {
			return nil, err
		}
		progress(sandbox.ImageProgress{Phase: "imported", Item: img.Ref})
	}
	return last, nil
}

var recipeOrigin = regexp.MustCompile(`^recipe:[0-9a-f]{32}$`)

// checkOwn checks the description of an image. Errors: invalid, permission_denied.
func (s *Store) checkOwn(img ownImage) error {
	name, err := s.canonical(img.Ref)
	if err != nil {
		return err
	}
	if _, ok := parseDigest(string(img.Digest)); !ok || name != img.Ref || IsDigest(name) {
		return cay.Errorf(cay.Invalid, "the archive has an image %.100q with the digest %.100q", img.Ref, img.Digest)
	}
	recipe, built := recipes[name]
	switch {
	case built && s.owned():
		return cay.Errorf(cay.PermissionDenied, "the archive has the image %q, from which all teams start: only an admin token may bring it", name)
	case built && (img.Source != recipe.source || !recipeOrigin.MatchString(img.Origin)):
		return cay.Errorf(cay.Invalid, "the archive has an image %q that cay has not built", name)
	case len(img.Packages) > 0 && name != DefaultRef:
		return cay.Errorf(cay.Invalid, "the archive has an image %q with added packages, which only %q has", name, DefaultRef)
	}
	return checkPackages(img.Packages)
}

// importOne imports one image of an archive.
func (s *Store) importOne(ctx context.Context, a *archive, img ownImage, progress func(sandbox.ImageProgress)) (*sandbox.Image, error) {
	return s.importAs(ctx, img.Ref, progress, func(ctx context.Context, st *staging, name string, report func(sandbox.ImageProgress)) (*Lease, error) {
		docker := a.dockerManifest()
		i := slices.IndexFunc(docker, func(d dockerImage) bool { return d.Config == img.Config })
		if i < 0 {
			return nil, cay.Errorf(cay.Invalid, "the archive lacks the image %s", name)
		}
		src, err := s.openDockerImage(a, docker[i])
		if err != nil {
			return nil, err
		}
		r := record{Source: SourceImport, want: img.Digest}
		if IsBuilt(name) {
			r.Source, r.Origin, r.Packages = img.Source, img.Origin, img.Packages
		} else if img.Source == SourceRuntime {
			r.Source = SourceRuntime // it is no root file system, under whatever name
		}
		return s.flatten(ctx, st, src, name, r, report)
	})
}
