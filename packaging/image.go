package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"io/fs"
	"strings"

	"github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// ociArchive writes an image with the program and little else, as an archive of an OCI
// layout: for "podman load", "skopeo copy oci-archive:", "ctr image import". The image has
// no base: the program is static, and has the authorities of the web inside.
func (r *release) ociArchive(w io.Writer, p *programs) error {
	var layer bytes.Buffer
	err := writeTar(&layer, []file{
		{path: "etc/passwd", mode: 0o644, data: []byte("root:x:0:0:root:/root:/sbin/nologin\nnobody:x:65534:65534:nobody:/:/sbin/nologin\n")},
		{path: "etc/group", mode: 0o644, data: []byte("root:x:0:\nnogroup:x:65534:\n")},
		{path: "proc", mode: fs.ModeDir | 0o755},
		{path: "root", mode: fs.ModeDir | 0o700},
		{path: "sys", mode: fs.ModeDir | 0o755},
		{path: "tmp", mode: fs.ModeDir | fs.ModeSticky | 0o777},
		{path: "usr/bin/cay", mode: 0o755, source: p.cay},
		{path: "var/lib/cay", mode: fs.ModeDir | 0o700},
	}, r.time)
	if err != nil {
		return err
	}
	packed, err := compress(layer.Bytes())
	if err != nil {
		return err
	}
	config, err := json.Marshal(r.containerConfig(p.arch, hash(layer.Bytes())))
	if err != nil {
		return err
	}
	manifest, err := json.Marshal(v1.Manifest{
		SchemaVersion: 2, MediaType: types.OCIManifestSchema1,
		Config: descriptor(types.OCIConfigJSON, config),
		Layers: []v1.Descriptor{descriptor(types.OCILayer, packed)},
	})
	if err != nil {
		return err
	}
	entry := descriptor(types.OCIManifestSchema1, manifest)
	entry.Platform = &v1.Platform{OS: "linux", Architecture: p.arch}
	entry.Annotations = map[string]string{"org.opencontainers.image.ref.name": "localhost/cay:" + imageTag(r.version)}
	index, err := json.Marshal(v1.IndexManifest{SchemaVersion: 2, MediaType: types.OCIImageIndex, Manifests: []v1.Descriptor{entry}})
	if err != nil {
		return err
	}
	all := []file{
		{path: "oci-layout", mode: 0o644, data: []byte(`{"imageLayoutVersion":"1.0.0"}`)},
		{path: "index.json", mode: 0o644, data: index},
	}
	for _, blob := range [][]byte{packed, config, manifest} {
		all = append(all, file{path: "blobs/sha256/" + hash(blob).Hex, mode: 0o644, data: blob})
	}
	return writeTar(w, all, r.time)
}

// containerConfig says how a container of the image runs.
func (r *release) containerConfig(arch string, layer v1.Hash) *v1.ConfigFile {
	at := v1.Time{Time: r.time}
	return &v1.ConfigFile{
		Architecture: arch, OS: "linux", Created: at,
		Config: v1.Config{
			Entrypoint: []string{"/usr/bin/cay"}, Cmd: []string{"serve"}, WorkingDir: "/", User: "0:0",
			Env:          []string{"PATH=/usr/bin", "HOME=/root", "CAY_DATA=/var/lib/cay"},
			Volumes:      map[string]struct{}{"/var/lib/cay": {}},
			ExposedPorts: map[string]struct{}{"7070/tcp": {}, "7071/tcp": {}},
			StopSignal:   "SIGTERM",
			Labels: map[string]string{
				"org.opencontainers.image.title": "cay", "org.opencontainers.image.version": r.version, "org.opencontainers.image.revision": r.commit,
				"org.opencontainers.image.licenses": "Apache-2.0",
			},
		},
		RootFS:  v1.RootFS{Type: "layers", DiffIDs: []v1.Hash{layer}},
		History: []v1.History{{Created: at, CreatedBy: "make dist"}},
	}
}

func descriptor(kind types.MediaType, data []byte) v1.Descriptor {
	return v1.Descriptor{MediaType: kind, Size: int64(len(data)), Digest: hash(data)}
}

func hash(data []byte) v1.Hash {
	sum := sha256.Sum256(data)
	return v1.Hash{Algorithm: "sha256", Hex: hex.EncodeToString(sum[:])}
}

// imageTag returns a version as a tag, which cannot have a plus sign or a tilde.
func imageTag(version string) string { return strings.NewReplacer("+", "-", "~", "-").Replace(version) }
