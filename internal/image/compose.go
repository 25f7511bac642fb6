package image

import (
	"context"
	"fmt"
	"io"
	"os"
	"path"

	"github.com/cayhq/cay/internal/image/rootfs"
	"github.com/cayhq/cay/sandbox"
)

// Composition is an image composed of images in the store and a layer over them.
type Composition struct {
	// Base is the digest of the image the layer lies over.
	Base string
	// Runtime is the name of the runtime that was mounted beside the base, and
	// RuntimeDigest the digest of its image. The runtime becomes part of the image.
	// Empty: no runtime.
	Runtime, RuntimeDigest string
	// Layer writes the changes to the base, as a layer of an OCI image.
	Layer  func(ctx context.Context, w io.Writer) error
	Config sandbox.ImageConfig
	// Origin says from what the image was made, for people.
	Origin string
}

// machineFiles are the files that a machine writes for itself when it starts. With them a
// machine started from the image would take itself for the machine that made the layer.
var machineFiles = []string{"etc/cay/identity.json", "etc/machine-id"}

// Compose puts an image into the store under a name. Errors: invalid, not_found (an image
// that the composition names), too_large, quota_exceeded, no_space; any error of c.Layer.
func (s *Store) Compose(ctx context.Context, ref string, c Composition, progress func(sandbox.ImageProgress)) (*sandbox.Image, error) {
	return s.importWith(ctx, ref, progress, func(ctx context.Context, st *staging, name string, report func(sandbox.ImageProgress)) (*Lease, error) {
		tree, free, err := s.newTree(st)
		if err != nil {
			return nil, err
		}
		defer free()
		report(sandbox.ImageProgress{Phase: "unpack", Item: c.Base})
		closeBase, err := s.addImage(ctx, tree, c.Base, "")
		if err != nil {
			return nil, err
		}
		defer closeBase()
		if err := s.addLayer(ctx, tree, c.Layer); err != nil {
			return nil, fmt.Errorf("read the layer: %w", err)
		}
		for _, name := range machineFiles {
			if err := tree.Remove(name); err != nil {
				return nil, err
			}
		}
		if err := finishRoot(tree); err != nil {
			return nil, err
		}
		if c.Runtime != "" {
			closeRuntime, err := s.addImage(ctx, tree, c.RuntimeDigest, RuntimeDir(path.Base(c.Runtime)))
			if err != nil {
				return nil, err
			}
			defer closeRuntime()
		}
		report(sandbox.ImageProgress{Phase: "build", Item: name})
		return s.commit(ctx, st, tree, name, record{Source: SourceSnapshot, Arch: s.opts.Arch, Origin: c.Origin, Config: c.Config})
	})
}

// addImage adds an image to a tree at dir. The image is in use until done is called.
func (s *Store) addImage(ctx context.Context, tree *rootfs.Tree, digest, dir string) (done func(), err error) {
	d, ok := parseDigest(digest)
	if !ok {
		return nil, fmt.Errorf("%q is no digest of an image", digest)
	}
	lease, err := s.lease(ctx, digest, d)
	if err != nil {
		return nil, err
	}
	f, err := os.Open(lease.Path)
	if err != nil {
		lease.Release()
		return nil, err
	}
	done = func() { f.Close(); lease.Release() }
	info, err := f.Stat()
	if err == nil {
		err = tree.AddImage(ctx, f, info.Size(), dir)
	}
	if err != nil {
		done()
		return nil, fmt.Errorf("image %s: %w", digest, err)
	}
	return done, nil
}

// addLayer adds to a tree the layer that the function layer writes.
func (s *Store) addLayer(ctx context.Context, tree *rootfs.Tree, layer func(context.Context, io.Writer) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r, w := io.Pipe()
	written := make(chan error, 1)
	go func() {
		err := layer(ctx, w)
		w.CloseWithError(err) // nil is the end
		written <- err
	}()
	err := tree.Apply(ctx, r)
	if err == nil {
		_, err = io.Copy(io.Discard, r) // the archive's padding
	}
	cancel()
	r.CloseWithError(err)
	if werr := <-written; err == nil {
		err = werr
	}
	return err
}
