package image

import (
	"context"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/cayhq/cay"
)

// maxIndexDepth is how deep indexes of images may be nested.
const maxIndexDepth = 4

// openLayout reads an OCI layout: index.json, and blobs by their digest.
// https://github.com/opencontainers/image-spec/blob/main/image-layout.md
func (s *Store) openLayout(open func(string) (io.ReadCloser, error)) (*source, error) {
	b, err := readSmall(open, "index.json")
	if err != nil {
		return nil, err
	}
	index, err := parse[v1.IndexManifest](b, "index")
	if err != nil {
		return nil, err
	}
	desc, err := s.pickManifest(open, index, 0)
	if err != nil {
		return nil, err
	}
	b, err = readBlob(open, desc)
	if err != nil {
		return nil, err
	}
	manifest, err := parse[v1.Manifest](b, "manifest")
	if err != nil {
		return nil, err
	}
	b, err = readBlob(open, manifest.Config)
	if err != nil {
		return nil, err
	}
	config, err := parse[v1.ConfigFile](b, "configuration")
	if err != nil {
		return nil, err
	}
	var layers []layer
	for _, d := range manifest.Layers {
		layers = append(layers, layer{name: d.Digest.String(), open: func(context.Context) (io.ReadCloser, error) {
			return openBlob(open, d)
		}})
	}
	return s.newSource(config, layers)
}

// pickManifest finds the manifest for this architecture in an index.
func (s *Store) pickManifest(open func(string) (io.ReadCloser, error), index *v1.IndexManifest, depth int) (v1.Descriptor, error) {
	if depth == maxIndexDepth {
		return v1.Descriptor{}, cay.Errorf(cay.Invalid, "the indexes of the image are nested more than %d deep", maxIndexDepth)
	}
	var others []string
	for _, d := range index.Manifests {
		p := d.Platform
		switch {
		case d.MediaType.IsIndex():
			b, err := readBlob(open, d)
			if err != nil {
				return v1.Descriptor{}, err
			}
			nested, err := parse[v1.IndexManifest](b, "index")
			if err != nil {
				return v1.Descriptor{}, err
			}
			found, err := s.pickManifest(open, nested, depth+1)
			if cay.CodeOf(err) != cay.NotSupported {
				return found, err
			}
		case !d.MediaType.IsImage():
		case p == nil || p.OS == "linux" && p.Architecture == s.opts.Arch:
			return d, nil
		case p.OS != "unknown": // which attestations have
			others = append(others, p.String())
		}
	}
	return v1.Descriptor{}, s.wrongPlatform(strings.Join(others, ", "))
}

// readBlob reads a small blob of a layout.
func readBlob(open func(string) (io.ReadCloser, error), d v1.Descriptor) ([]byte, error) {
	if d.Size > maxConfig {
		return nil, cay.Errorf(cay.TooLarge, "the blob %s of the image has %d bytes, more than %d", d.Digest, d.Size, maxConfig)
	}
	r, err := openBlob(open, d)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(r)
}

// openBlob opens a blob of a layout; reading it to its end verifies it.
func openBlob(open func(string) (io.ReadCloser, error), d v1.Descriptor) (io.ReadCloser, error) {
	want := blobDigest{d.Digest.Algorithm, d.Digest.Hex}
	sum, err := want.hash()
	if err != nil {
		return nil, err
	}
	// The digest must be valid hex, so that the path stays inside blobs/.
	if _, err := hex.DecodeString(d.Digest.Hex); err != nil || len(d.Digest.Hex) != 2*sum.Size() {
		return nil, cay.Errorf(cay.Invalid, "the image has the damaged digest %q", d.Digest)
	}
	r, err := open(fmt.Sprintf("blobs/%s/%s", d.Digest.Algorithm, d.Digest.Hex))
	if err != nil {
		return nil, cay.Errorf(cay.Invalid, "the image has no blob %s: %w", d.Digest, err)
	}
	return &verifyReader{r, sum, want, d.Size}, nil
}

// verifyReader fails at the end of the content if the digest or the size is wrong.
type verifyReader struct {
	io.ReadCloser
	sum  hash.Hash
	want blobDigest
	left int64
}

func (v *verifyReader) Read(p []byte) (int, error) {
	n, err := v.ReadCloser.Read(p)
	v.sum.Write(p[:n])
	v.left -= int64(n)
	if v.left < 0 || err == io.EOF && (v.left > 0 || hex.EncodeToString(v.sum.Sum(nil)) != v.want.hex) {
		return 0, cay.Errorf(cay.Invalid, "the blob %s of the image does not have the content or the size it should", v.want)
	}
	return n, err
}
