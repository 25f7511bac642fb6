package image

import (
	"os"
	"slices"
	"time"

	"github.com/google/go-containerregistry/pkg/name"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/image/rootfs"
)

// parseRef parses the name of an image in an OCI registry.
func (s *Store) parseRef(ref string) (name.Reference, error) {
	parsed, err := name.ParseReference(ref)
	if err == nil && slices.Contains(s.opts.InsecureRegistries, parsed.Context().RegistryStr()) {
		parsed, err = name.ParseReference(ref, name.Insecure)
	}
	if err != nil {
		return nil, cay.Errorf(cay.Invalid, "%q is not an image reference: %w", ref, err).
			WithHint("references look like debian, alpine:3.22 or registry.example.com/team/app@sha256:...")
	}
	return parsed, nil
}

// refTime returns when a name was last given.
func (s *Store) refTime(ref string) (time.Time, bool) {
	info, err := os.Stat(s.refPath(ref))
	if err != nil {
		return time.Time{}, false
	}
	return info.ModTime(), true
}

func digestOf(l *Lease) rootfs.Digest { return rootfs.Digest(l.Image.Digest) }
