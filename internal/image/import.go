package image

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
)

// Import puts an archive read from r into the store under a name. The archive may be an
// OCI archive (an OCI layout in a tar), the output of "docker save", or a tar of a root
// file system; plain, or compressed by gzip, zstd or xz. Import detects the format.
// Without a name it takes all images of an archive that Export has made, each under the
// name and with the digest that it had; see importOwn. Errors: invalid, not_supported (no
// linux image of this architecture), too_large, quota_exceeded, no_space.
func (s *Store) Import(ctx context.Context, ref string, r io.Reader, progress func(sandbox.ImageProgress)) (*sandbox.Image, error) {
	if ref == "" {
		return s.importOwn(ctx, r, progress)
	}
	return s.importWith(ctx, ref, progress, func(ctx context.Context, st *staging, name string, report func(sandbox.ImageProgress)) (*Lease, error) {
		f, err := s.spoolArchive(ctx, st, r, report)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		a, err := indexArchive(ctx, f, s.opts.Limits.Entries)
		if err != nil {
			return nil, err
		}
		var src *source
		switch images := a.dockerManifest(); {
		// Newer versions of "docker save" write an OCI layout, too, which does not say
		// which of several images has a name.
		case a.has("oci-layout") && a.has("index.json") && len(images) < 2:
			src, err = s.openLayout(a.open)
		case len(images) > 0:
			src, err = s.openDocker(a, name)
		default:
			return s.importRoot(ctx, st, f, name, report)
		}
		if err != nil {
			return nil, err
		}
		return s.flatten(ctx, st, src, name, record{Source: SourceImport}, report)
	})
}

// ImportDir puts the image of an OCI layout directory into the store under a
// name. Errors: as Import.
func (s *Store) ImportDir(ctx context.Context, ref, dir string, progress func(sandbox.ImageProgress)) (*sandbox.Image, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, cay.Errorf(cay.Invalid, "cannot open the OCI layout: %w", err)
	}
	defer root.Close()
	return s.importWith(ctx, ref, progress, func(ctx context.Context, st *staging, name string, report func(sandbox.ImageProgress)) (*Lease, error) {
		src, err := s.openLayout(func(name string) (io.ReadCloser, error) { return root.Open(name) })
		if err != nil {
			return nil, err
		}
		return s.flatten(ctx, st, src, name, record{Source: SourceImport}, report)
	})
}

func (s *Store) importWith(ctx context.Context, ref string, progress func(sandbox.ImageProgress),
	work func(context.Context, *staging, string, func(sandbox.ImageProgress)) (*Lease, error)) (img *sandbox.Image, err error) {
	defer func() { err = workError(ctx, err) }()
	if progress == nil {
		progress = func(sandbox.ImageProgress) {}
	}
	name, err := s.canonicalOutside(ref)
	if err != nil {
		return nil, err
	}
	return s.importAs(ctx, name, progress, work)
}

// importAs stages the work on an image whose name is canonical.
func (s *Store) importAs(ctx context.Context, name string, progress func(sandbox.ImageProgress),
	work func(context.Context, *staging, string, func(sandbox.ImageProgress)) (*Lease, error)) (img *sandbox.Image, err error) {
	st, err := s.newStaging()
	if err != nil {
		return nil, err
	}
	defer st.closeInto(&err)
	l, err := work(ctx, st, name, progress)
	if err != nil {
		return nil, err
	}
	defer l.Release()
	progress(sandbox.ImageProgress{Phase: "done", Item: name, Current: l.Image.SizeBytes, Total: l.Image.SizeBytes, Image: &l.Image})
	return &l.Image, nil
}

// importRoot makes an image from a tar of a root file system.
func (s *Store) importRoot(ctx context.Context, st *staging, f *os.File, name string, report func(sandbox.ImageProgress)) (*Lease, error) {
	tree, free, err := s.newTree(st)
	if err != nil {
		return nil, err
	}
	defer free()
	report(sandbox.ImageProgress{Phase: "unpack", Item: name})
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	if err := tree.Apply(ctx, f); err != nil {
		return nil, err
	}
	if err := finishRoot(tree); err != nil {
		return nil, err
	}
	report(sandbox.ImageProgress{Phase: "build", Item: name})
	return s.commit(ctx, st, tree, name, record{Source: SourceImport, Arch: s.opts.Arch})
}

// spoolArchive writes the uncompressed archive to a working file, because its members are
// needed in another order.
func (s *Store) spoolArchive(ctx context.Context, st *staging, r io.Reader, report func(sandbox.ImageProgress)) (*os.File, error) {
	plain, err := decompress(&countingReader{ctx: ctx, r: r, report: report})
	if err != nil {
		return nil, err
	}
	defer plain.Close()
	limits, err := s.limits()
	if err != nil {
		return nil, err
	}
	f, err := st.create("archive")
	if err != nil {
		return nil, err
	}
	limited := newLimitReader(plain, limits)
	if _, err := io.Copy(f, limited); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// countingReader reports how much of an archive was read, every few MB.
type countingReader struct {
	ctx          context.Context
	r            io.Reader
	report       func(sandbox.ImageProgress)
	n, announced int64
}

func (c *countingReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := c.r.Read(p)
	c.n += int64(n)
	if c.n-c.announced >= 4<<20 {
		c.announced = c.n
		c.report(sandbox.ImageProgress{Phase: "download", Item: "archive", Current: c.n})
	}
	return n, err
}

// archive is a tar whose members can be opened by name.
type archive struct {
	f       *os.File
	members map[string]member
}

type member struct {
	off, size int64
	link      string // of a link: another member
}

func indexArchive(ctx context.Context, f *os.File, max int) (*archive, error) {
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	a := &archive{f, map[string]member{}}
	tr := tar.NewReader(f)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return a, ctx.Err()
		}
		if err != nil && !errors.Is(err, tar.ErrInsecurePath) {
			return nil, cay.Errorf(cay.Invalid, "not an image: neither an OCI or docker archive nor a tar of a root file system: %w", err)
		}
		if len(a.members) >= max {
			return nil, cay.Errorf(cay.TooLarge, "the archive has more than %d members", max)
		}
		name := path.Clean("/" + h.Name)[1:]
		switch h.Typeflag {
		case tar.TypeReg:
			// The reader is at the member's first byte: it reads no further than needed.
			off, err := f.Seek(0, io.SeekCurrent)
			if err != nil {
				return nil, err
			}
			a.members[name] = member{off: off, size: h.Size}
		case tar.TypeSymlink: // older "docker save" links equal layers
			a.members[name] = member{link: path.Join("/", path.Dir(name), h.Linkname)[1:]}
		case tar.TypeLink:
			a.members[name] = member{link: path.Clean("/" + h.Linkname)[1:]}
		}
	}
}

func (a *archive) has(name string) bool {
	_, ok := a.members[name]
	return ok
}

func (a *archive) open(name string) (io.ReadCloser, error) {
	m, ok := a.members[path.Clean("/" + name)[1:]]
	if ok && m.link != "" {
		m, ok = a.members[m.link]
	}
	if !ok || m.link != "" {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	return io.NopCloser(io.NewSectionReader(a.f, m.off, m.size)), nil
}

// dockerImage is an element of the manifest.json of "docker save".
type dockerImage struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// dockerManifest returns the images of a docker archive, nil for other archives.
func (a *archive) dockerManifest() []dockerImage {
	var images []dockerImage
	b, err := readSmall(a.open, "manifest.json")
	if err != nil || json.Unmarshal(b, &images) != nil || len(images) == 0 || images[0].Config == "" {
		return nil
	}
	return images
}

func (s *Store) openDocker(a *archive, ref string) (*source, error) {
	images := a.dockerManifest()
	i := 0
	if len(images) > 1 {
		i = slices.IndexFunc(images, func(d dockerImage) bool {
			return slices.ContainsFunc(d.RepoTags, func(tag string) bool {
				c, err := s.canonical(tag)
				return err == nil && c == ref
			})
		})
		if i < 0 {
			return nil, cay.Errorf(cay.Invalid, "the archive has %d images and none of them is named %s", len(images), ref).
				WithHint("import it under the name of the image you want, or save only that one")
		}
	}
	return s.openDockerImage(a, images[i])
}

func (s *Store) openDockerImage(a *archive, image dockerImage) (*source, error) {
	b, err := readSmall(a.open, image.Config)
	if err != nil {
		return nil, err
	}
	config, err := parse[v1.ConfigFile](b, "configuration")
	if err != nil {
		return nil, err
	}
	var layers []layer
	for _, name := range image.Layers {
		layers = append(layers, layer{name: name, open: func(context.Context) (io.ReadCloser, error) {
			r, err := a.open(name)
			if err != nil {
				return nil, cay.Errorf(cay.Invalid, "the archive has no layer %q: %w", name, err)
			}
			return r, nil
		}})
	}
	return s.newSource(config, layers)
}

// readSmall reads a JSON member, of at most maxConfig bytes.
func readSmall(open func(string) (io.ReadCloser, error), name string) ([]byte, error) {
	r, err := open(name)
	if err != nil {
		return nil, cay.Errorf(cay.Invalid, "the image has no %s: %w", name, err)
	}
	defer r.Close()
	b, err := io.ReadAll(io.LimitReader(r, maxConfig+1))
	if err != nil {
		return nil, err
	}
	if len(b) > maxConfig {
		return nil, cay.Errorf(cay.TooLarge, "the image's %s has more than %d bytes", name, maxConfig)
	}
	return b, nil
}

func parse[T any](b []byte, what string) (*T, error) {
	var v T
	if err := json.NewDecoder(bytes.NewReader(b)).Decode(&v); err != nil {
		return nil, cay.Errorf(cay.Invalid, "the image's %s is damaged: %w", what, err)
	}
	return &v, nil
}
