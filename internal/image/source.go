package image

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/image/rootfs"
	"github.com/cayhq/cay/sandbox"
)

// source is an OCI image from any origin: a configuration and layers.
type source struct {
	config *v1.ConfigFile
	layers []layer // the lowest first
}

// layer is an archive of a source.
type layer struct {
	name   string  // for messages
	diffID v1.Hash // of the uncompressed bytes
	// open returns the stored bytes. It checks them when they are read to the end, unless
	// they were checked before.
	open func(context.Context) (io.ReadCloser, error)
}

// newSource pairs the layers of a manifest with the checksums in its config.
func (s *Store) newSource(config *v1.ConfigFile, layers []layer) (*source, error) {
	if n := len(layers); n > s.opts.Limits.Layers {
		return nil, cay.Errorf(cay.TooLarge, "the image has %d layers, more than %d", n, s.opts.Limits.Layers)
	}
	if len(layers) != len(config.RootFS.DiffIDs) {
		return nil, cay.Errorf(cay.Invalid, "the image has %d layers but %d checksums of layers",
			len(layers), len(config.RootFS.DiffIDs))
	}
	if config.OS != "" && config.OS != "linux" || config.Architecture != "" && config.Architecture != s.opts.Arch {
		return nil, s.wrongPlatform(config.OS + "/" + config.Architecture)
	}
	for i := range layers {
		layers[i].diffID = config.RootFS.DiffIDs[i]
	}
	return &source{config, layers}, nil
}

func (s *Store) wrongPlatform(has string) error {
	return cay.Errorf(cay.NotSupported, "the image is not for linux/%s but for %s", s.opts.Arch, has).
		WithHint("choose an image made for linux/%s", s.opts.Arch)
}

// flatten merges the layers of an image and commits the result.
func (s *Store) flatten(ctx context.Context, st *staging, src *source, name string, r record, report func(sandbox.ImageProgress)) (*Lease, error) {
	tree, free, err := s.newTree(st)
	if err != nil {
		return nil, err
	}
	defer free()
	for i, l := range src.layers {
		report(sandbox.ImageProgress{Phase: "unpack", Item: l.name, Current: int64(i), Total: int64(len(src.layers))})
		if err := s.applyLayer(ctx, tree, l); err != nil {
			return nil, fmt.Errorf("layer %s: %w", l.name, err)
		}
	}
	if r.Source != SourceRuntime {
		if err := finishRoot(tree); err != nil {
			return nil, err
		}
	}
	report(sandbox.ImageProgress{Phase: "build", Item: name})
	r.Arch, r.Config = s.opts.Arch, imageConfig(src.config)
	return s.commit(ctx, st, tree, name, r)
}

func (s *Store) applyLayer(ctx context.Context, tree *rootfs.Tree, l layer) error {
	stored, err := l.open(ctx)
	if err != nil {
		return err
	}
	defer stored.Close()
	plain, err := decompress(stored)
	if err != nil {
		return err
	}
	defer plain.Close()
	sum, err := blobDigest{l.diffID.Algorithm, l.diffID.Hex}.hash()
	if err != nil {
		return err
	}
	// The owner's limit does not apply here: later layers may replace much of a layer.
	limited := newLimitReader(plain, rootfs.Limits{Entries: s.opts.Limits.Entries, Bytes: s.opts.Limits.Bytes})
	hashed := io.TeeReader(limited, sum)
	if err := tree.Apply(ctx, hashed); err != nil {
		return err
	}
	// The archive may be padded, and the checksums are over everything.
	for _, r := range []io.Reader{hashed, stored} {
		if _, err := io.Copy(io.Discard, r); err != nil {
			return err
		}
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != l.diffID.Hex {
		return cay.Errorf(cay.Invalid, "the layer %s does not have the content its image says: its checksum is %s, not %s", l.name, got, l.diffID.Hex)
	}
	return nil
}

// imageConfig keeps the parts of an image's configuration that sandboxes use, and that
// clients read. Volumes, health checks and the rest have no meaning here.
func imageConfig(f *v1.ConfigFile) sandbox.ImageConfig {
	c := sandbox.ImageConfig{
		User: f.Config.User, WorkDir: f.Config.WorkingDir,
		Entrypoint: f.Config.Entrypoint, Cmd: f.Config.Cmd, Labels: f.Config.Labels,
		ExposedPorts: slices.Sorted(maps.Keys(f.Config.ExposedPorts)),
	}
	for _, kv := range f.Config.Env {
		if i := strings.IndexByte(kv, '='); i > 0 && !strings.ContainsRune(kv, 0) {
			c.Env = append(c.Env, kv)
		}
	}
	return c
}

// decompress decodes gzip, zstd or xz, recognized by the first bytes; other data passes
// through. Data after the end of a compressed stream is an error.
func decompress(r io.Reader) (io.ReadCloser, error) {
	br := bufio.NewReaderSize(r, 128<<10)
	magic, err := br.Peek(6)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	bad := func(kind string, err error) error {
		return cay.Errorf(cay.Invalid, "damaged %s data: %w", kind, err)
	}
	switch {
	case bytes.HasPrefix(magic, []byte{0x1f, 0x8b}):
		z, err := gzip.NewReader(br)
		if err != nil {
			return nil, bad("gzip", err)
		}
		return codecReader{z, "gzip", z.Close}, nil
	case bytes.HasPrefix(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		z, err := zstd.NewReader(br, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(128<<20))
		if err != nil {
			return nil, bad("zstd", err)
		}
		return codecReader{z, "zstd", func() error { z.Close(); return nil }}, nil
	case bytes.HasPrefix(magic, []byte("\xfd7zXZ\x00")):
		z, err := xz.ReaderConfig{DictCap: 64 << 20}.NewReader(br)
		if err != nil {
			return nil, bad("xz", err)
		}
		return codecReader{z, "xz", func() error { return nil }}, nil
	}
	return io.NopCloser(br), nil
}

// codecReader marks format errors as the archive's fault, and passes on errors of reading
// the archive.
type codecReader struct {
	io.Reader
	kind  string
	close func() error
}

func (c codecReader) Close() error { return c.close() }

func (c codecReader) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	var coded *cay.Error
	if err != nil && err != io.EOF && !errors.As(err, &coded) &&
		!errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
		err = cay.Errorf(cay.Invalid, "damaged %s data: %w", c.kind, err)
	}
	return n, err
}

// limitReader fails, instead of ending, when there is more than it may read.
type limitReader struct {
	r    io.Reader
	left int64
	full error // nil: too_large
}

// newLimitReader reads an archive of files bounded by l.
func newLimitReader(r io.Reader, l rootfs.Limits) *limitReader {
	// A tar archive adds less than this to the bytes of its files.
	return &limitReader{r: r, left: l.Bytes + int64(l.Entries)*4096, full: l.Full}
}

func (l *limitReader) Read(p []byte) (int, error) {
	n, err := l.r.Read(p)
	if l.left -= int64(n); l.left >= 0 {
		return n, err
	}
	if l.full != nil {
		return 0, l.full
	}
	return 0, cay.Errorf(cay.TooLarge, "the image's archives are too large when uncompressed")
}
