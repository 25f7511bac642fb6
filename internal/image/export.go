package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"math"
	"os"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/gzip"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/image/rootfs"
	"github.com/cayhq/cay/sandbox"
)

// maxExport is how many references one archive may have.
const maxExport = 100

// Export returns an archive with the images that references name, as "docker save" writes
// it and Import reads it. A member of its own, see ownManifest, lets Import make the same
// images under the same names. Each image has a single layer, whatever layers it was made of.
// Close frees the working files of the archive. Errors: invalid, not_found, not_supported
// (an image with a file that a layer cannot have), no_space.
func (s *Store) Export(ctx context.Context, refs []string) (_ io.ReadCloser, err error) {
	if len(refs) == 0 || len(refs) > maxExport {
		return nil, cay.Errorf(cay.Invalid, "an archive has 1 to %d images, not %d", maxExport, len(refs))
	}
	st, err := s.newStaging()
	if err != nil {
		return nil, err
	}
	e := &export{st: st}
	defer func() {
		if err != nil {
			err = errors.Join(workError(ctx, err), e.Close())
		}
	}()
	images := map[name.Reference]v1.Image{}
	packed := map[string]v1.Image{} // by digest
	var own ownManifest
	for _, ref := range refs {
		l, err := s.Acquire(ctx, ref)
		if err != nil {
			return nil, err
		}
		img := packed[l.Image.Digest]
		if img == nil {
			img, _, err = s.pack(ctx, st, l)
		}
		l.Release()
		if err != nil {
			return nil, err
		}
		packed[l.Image.Digest] = img
		tag, err := exportName(ref)
		if err != nil {
			return nil, err
		}
		images[tag] = img
		if err := own.add(s, ref, l.Image, img); err != nil {
			return nil, err
		}
	}
	var w *io.PipeWriter
	e.PipeReader, w = io.Pipe()
	e.done = make(chan struct{})
	go func() {
		defer close(e.done)
		err := own.write(w)
		if err == nil {
			err = tarball.MultiRefWrite(images, w)
		}
		w.CloseWithError(err) // nil is the end
	}()
	return e, nil
}

// exportName is the name of an image in an archive. An image that a digest names has none.
func exportName(ref string) (name.Reference, error) {
	if d, ok := parseDigest(ref); ok {
		ref = "image@" + string(d)
	}
	parsed, err := name.ParseReference(strings.TrimPrefix(ref, "docker.io/library/"))
	if err != nil {
		return nil, cay.Errorf(cay.Invalid, "%q is not an image reference: %w", ref, err)
	}
	return parsed, nil
}

// export is an archive that is being written while it is read.
type export struct {
	*io.PipeReader
	st   *staging
	done chan struct{} // closed when nothing is written any more; nil if nothing was
}

// Close implements io.Closer.
func (e *export) Close() error {
	if e.done != nil {
		e.PipeReader.Close() // never fails
		<-e.done
	}
	st := e.st
	if e.st = nil; st == nil {
		return nil
	}
	return st.close()
}

// pack makes an image with one layer of a leased image. Both are valid as long as st.
func (s *Store) pack(ctx context.Context, st *staging, l *Lease) (v1.Image, *packedLayer, error) {
	packed, err := packLayer(st, func(w io.Writer) error { return unpackImage(ctx, st, l, w) })
	if err != nil {
		return nil, nil, err
	}
	img, err := withConfig(packed, l.Image)
	return img, packed, err
}

// unpackImage writes the files of an image to w, as a tar archive.
func unpackImage(ctx context.Context, st *staging, l *Lease, w io.Writer) error {
	f, err := os.Open(l.Path)
	if err != nil {
		return err
	}
	defer f.Close() // it was only read
	spool, err := st.create("spool")
	if err != nil {
		return err
	}
	defer spool.Close() // it stays empty
	info, err := f.Stat()
	if err != nil {
		return err
	}
	// The image itself bounds the tree.
	tree := rootfs.New(spool, rootfs.Limits{Entries: math.MaxInt, Bytes: math.MaxInt64})
	if err := tree.AddImage(ctx, f, info.Size(), ""); err != nil {
		return fmt.Errorf("image %s: %w", l.Image.Digest, err)
	}
	return tree.WriteTar(ctx, w)
}

// withConfig makes an image of a layer, with the configuration of an image of the store.
func withConfig(packed v1.Layer, of sandbox.Image) (v1.Image, error) {
	created := v1.Time{Time: of.CreatedAt.UTC().Truncate(time.Second)}
	img, err := mutate.Append(empty.Image, mutate.Addendum{Layer: packed, History: v1.History{Created: created, CreatedBy: "cay"}})
	if err != nil {
		return nil, err
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Created = "linux", of.Arch, created
	config.Config = runConfig(of.Config)
	return mutate.ConfigFile(img, config)
}

// runConfig is the reverse of imageConfig.
func runConfig(c sandbox.ImageConfig) v1.Config {
	out := v1.Config{Env: c.Env, User: c.User, WorkingDir: c.WorkDir, Entrypoint: c.Entrypoint, Cmd: c.Cmd, Labels: c.Labels}
	if len(c.ExposedPorts) > 0 {
		out.ExposedPorts = map[string]struct{}{}
	}
	for _, port := range c.ExposedPorts {
		out.ExposedPorts[port] = struct{}{}
	}
	return out
}

// packedLayer is a layer in a file, compressed with gzip.
type packedLayer struct {
	path           string
	digest, diffID v1.Hash
	size           int64
	// onRead, unless nil, is called with the bytes that a reader of Compressed has read.
	onRead func(n int64)
}

// packLayer writes a layer to a working file.
func packLayer(st *staging, write func(io.Writer) error) (_ *packedLayer, err error) {
	f, err := st.create("layer")
	if err != nil {
		return nil, err
	}
	defer func() {
		if cerr := f.Close(); err == nil {
			err = diskError(cerr)
		}
	}()
	outer, inner := sha256.New(), sha256.New()
	z, err := gzip.NewWriterLevel(io.MultiWriter(f, outer), gzip.BestSpeed)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(write(io.MultiWriter(z, inner)), z.Close()); err != nil {
		return nil, diskError(err)
	}
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	return &packedLayer{path: f.Name(), digest: hashOf(outer), diffID: hashOf(inner), size: info.Size()}, nil
}

func hashOf(h hash.Hash) v1.Hash {
	return v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(h.Sum(nil))}
}

// Digest implements v1.Layer.
func (l *packedLayer) Digest() (v1.Hash, error) { return l.digest, nil }

// DiffID implements v1.Layer.
func (l *packedLayer) DiffID() (v1.Hash, error) { return l.diffID, nil }

// Size implements v1.Layer.
func (l *packedLayer) Size() (int64, error) { return l.size, nil }

// MediaType implements v1.Layer.
func (l *packedLayer) MediaType() (types.MediaType, error) { return types.DockerLayer, nil }

// Compressed implements v1.Layer.
func (l *packedLayer) Compressed() (io.ReadCloser, error) {
	f, err := os.Open(l.path)
	if err != nil {
		return nil, err
	}
	return &countedFile{f, 0, l.onRead}, nil
}

// countedFile is a file that tells how much of it was read. It shows nothing else of the
// file, because a program that sends a file itself does not read it.
type countedFile struct {
	file   *os.File
	n      int64
	onRead func(int64) // may be nil
}

// Read implements io.Reader.
func (f *countedFile) Read(p []byte) (int, error) {
	n, err := f.file.Read(p)
	if f.n += int64(n); n > 0 && f.onRead != nil {
		f.onRead(f.n)
	}
	return n, err
}

// Close implements io.Closer.
func (f *countedFile) Close() error { return f.file.Close() }

// Uncompressed implements v1.Layer.
func (l *packedLayer) Uncompressed() (io.ReadCloser, error) {
	f, err := os.Open(l.path)
	if err != nil {
		return nil, err
	}
	plain, err := decompress(f)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return struct {
		io.Reader
		io.Closer
	}{plain, f}, nil
}

var _ v1.Layer = (*packedLayer)(nil)
