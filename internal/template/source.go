package template

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
)

// maxLinks is how many links a copied path may lead through.
const maxLinks = 40

// copyFrom copies from an image or a snapshot, through a sandbox made of it.
func (u *build) copyFrom(ctx context.Context, box *sandbox.Sandbox, s Step) (err error) {
	from := Template{From: s.Source, Output: Layer}
	from.SetNetwork(sandbox.Network{Mode: sandbox.DenyAll})
	v := &build{Builder: u.Builder, t: &from}
	source, err := v.create(ctx, nil)
	if err != nil {
		return err
	}
	defer v.remove(ctx, source.ID)
	for _, src := range s.Copy {
		if err := u.copyOne(ctx, source, box, s, src); err != nil {
			return fmt.Errorf("copy %q: %w", src, err)
		}
	}
	return nil
}

// copyOne copies a file, or the content of a directory, from a sandbox to another one.
func (u *build) copyOne(ctx context.Context, source, box *sandbox.Sandbox, s Step, src string) error {
	info, err := u.target(ctx, source, path.Clean(src))
	if err != nil {
		return err
	}
	dir, name := path.Clean(s.to()), ""
	if info.Type != sandbox.TypeDir {
		into := strings.HasSuffix(s.to(), "/")
		if !into {
			if into, err = u.isDir(ctx, box, dir); err != nil {
				return err
			}
		}
		if name = path.Base(path.Clean(src)); !into {
			dir, name = path.Dir(dir), path.Base(dir)
		}
	}
	return u.unpack(ctx, box, dir, s.User, func(ctx context.Context, w io.Writer) error {
		r, err := u.Sandboxes.Archive(ctx, source.ID, info.Path, sandbox.Tar)
		if err != nil {
			return err
		}
		defer r.Close()
		return repack(r, w, name, s.Mode)
	})
}

// target resolves a path of a sandbox until it is not a link.
func (u *build) target(ctx context.Context, box *sandbox.Sandbox, p string) (*sandbox.FileInfo, error) {
	for range maxLinks {
		info, err := u.Sandboxes.Stat(ctx, box.ID, p, false)
		if err != nil || info.Type != sandbox.TypeSymlink {
			if err == nil {
				info.Path = p
			}
			return info, err
		}
		if path.IsAbs(info.Target) {
			p = path.Clean(info.Target)
		} else {
			p = path.Join(path.Dir(p), info.Target)
		}
	}
	return nil, cay.Errorf(cay.Invalid, "more than %d links lead to it", maxLinks)
}

// repack renames the members of an archive, whose common root is replaced by name: if
// name is empty, the root itself is left out.
func repack(r io.Reader, w io.Writer, name string, mode *fs.FileMode) error {
	tr, tw := tar.NewReader(r), tar.NewWriter(w)
	rename := func(member string) string {
		_, rest, _ := strings.Cut(strings.TrimPrefix(member, "/"), "/")
		return path.Join(name, rest)
	}
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return tw.Close()
		}
		if err != nil {
			return fmt.Errorf("read the archive of the source: %w", err)
		}
		to := rename(h.Name)
		if to == "" || to == "." {
			continue
		}
		if h.Typeflag == tar.TypeDir {
			to += "/"
		}
		if h.Name = to; h.Typeflag == tar.TypeLink {
			h.Linkname = rename(h.Linkname)
		}
		if mode != nil && h.Typeflag != tar.TypeSymlink {
			h.Mode = int64(mode.Perm())
		}
		if err := tw.WriteHeader(h); err != nil {
			return err
		}
		if _, err := io.Copy(tw, tr); err != nil {
			return err
		}
	}
}
