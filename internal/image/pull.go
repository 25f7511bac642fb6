package image

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
)

const maxConfig = 4 << 20 // bytes of an image's configuration

// Pull fetches an image from its OCI registry. If the owner or the installation already
// has the image that the reference now stands for, Pull only gives it that name. A later
// pull resumes an interrupted one, except for owners with a quota. Concurrent requests
// for the same reference share the work, also across processes. Errors: invalid (the
// reference, or a damaged image), not_found, permission_denied (by the registry),
// not_supported (no linux image of this architecture), too_large, quota_exceeded,
// unavailable, no_space.
func (s *Store) Pull(ctx context.Context, ref string, progress func(sandbox.ImageProgress)) (*sandbox.Image, error) {
	canonical, err := s.canonicalOutside(ref)
	if err != nil {
		return nil, err
	}
	l, err := s.pull(ctx, canonical, progress, time.Now())
	if err != nil {
		return nil, err
	}
	defer l.Release()
	return &l.Image, nil
}

// canonicalOutside is canonical for names of images that come from outside.
func (s *Store) canonicalOutside(ref string) (string, error) {
	canonical, err := s.canonical(ref)
	if err != nil {
		return "", err
	}
	if _, ok := recipes[canonical]; ok {
		return "", cay.Errorf(cay.Invalid, "%q is the name of an image that cay builds", canonical).
			WithHint("build it with cay image build %s, or write the full reference, such as docker.io/library/%s", canonical, canonical)
	}
	if _, ok := parseDigest(canonical); ok {
		return "", cay.Errorf(cay.Invalid, "%q is a digest without the name of an image", ref)
	}
	return canonical, nil
}

// pull pulls ref, a canonical reference, unless it was pulled since.
func (s *Store) pull(ctx context.Context, ref string, progress func(sandbox.ImageProgress), since time.Time) (*Lease, error) {
	return s.make(ctx, ref, progress, since, func(ctx context.Context, st *staging, report func(sandbox.ImageProgress)) (*Lease, error) {
		parsed, err := s.parseRef(ref)
		if err != nil {
			return nil, err
		}
		report(sandbox.ImageProgress{Phase: "resolve", Item: ref})
		img, err := s.resolveRemote(ctx, parsed)
		if err != nil {
			return nil, err
		}
		if l, err := s.adopt(ctx, st, ref, img.digest); l != nil || err != nil {
			return l, err
		}
		client, err := s.registryClient(ctx, parsed.Context())
		if err != nil {
			return nil, s.registryError(ctx, parsed, err)
		}
		if err := s.checkRoom(img.manifest.Layers); err != nil {
			return nil, err
		}
		if err := s.countDownload(ctx, st, img.manifest.Layers); err != nil {
			return nil, err
		}
		dl := s.newLayerDownloads(client, parsed.Context(), img.manifest.Layers, report)
		src, err := s.newSource(img.config, dl.layers())
		if err != nil {
			return nil, err
		}
		dl.start(ctx)
		l, err := s.flatten(ctx, st, src, ref, record{Source: SourceOCI, Origin: img.digest}, report)
		// A failed pull is resumed later, unless the disk is full. Downloads of an owner
		// with a quota are removed, because the quota has no space for them.
		dl.stop(err == nil || s.owner.Bytes > 0 || cay.CodeOf(diskError(err)) == cay.NoSpace)
		return l, err
	})
}

// remoteImage is an image as the registry describes it.
type remoteImage struct {
	digest   string
	manifest *v1.Manifest
	config   *v1.ConfigFile
}

// resolveRemote gets the manifest and configuration of the image that a reference names
// for this architecture from its registry. Both are verified.
func (s *Store) resolveRemote(ctx context.Context, ref name.Reference) (*remoteImage, error) {
	desc, err := remote.Get(ref, remote.WithContext(ctx), remote.WithTransport(s.opts.PullTransport),
		remote.WithAuthFromKeychain(s.opts.Keychain), remote.WithPlatform(v1.Platform{OS: "linux", Architecture: s.opts.Arch}))
	if err != nil {
		return nil, s.registryError(ctx, ref, err)
	}
	if desc.MediaType.IsSchema1() {
		return nil, cay.Errorf(cay.NotSupported, "%s is an image of Docker's first format, which is no longer in use", ref)
	}
	img, err := desc.Image()
	if err != nil {
		if desc.MediaType.IsIndex() && !isRegistryError(err) {
			return nil, s.wrongPlatform("other platforms")
		}
		return nil, s.registryError(ctx, ref, err)
	}
	manifest, err := img.Manifest()
	if err != nil {
		return nil, s.registryError(ctx, ref, err)
	}
	if n := len(manifest.Layers); n > s.opts.Limits.Layers {
		return nil, cay.Errorf(cay.TooLarge, "%s has %d layers, more than %d", ref, n, s.opts.Limits.Layers)
	}
	if n := manifest.Config.Size; n > maxConfig {
		return nil, cay.Errorf(cay.TooLarge, "the configuration of %s has %d bytes, more than %d", ref, n, maxConfig)
	}
	if !manifest.Config.MediaType.IsConfig() {
		return nil, cay.Errorf(cay.Invalid, "%s is not an image to run but of the type %q", ref, manifest.Config.MediaType)
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, s.registryError(ctx, ref, err)
	}
	digest, err := img.Digest()
	if err != nil {
		return nil, s.registryError(ctx, ref, err)
	}
	return &remoteImage{digest.String(), manifest, config}, nil
}

// adopt gives the name ref to an image of the store that was made from the same manifest,
// if s's owner, or the installation, has a name for such an image. Neither a manifest nor
// a registry's answer to HEAD proves that a team has the layers: a team could make its
// own registry serve another team's manifest, and would read layers that it never had. So
// an owner without a name for an image downloads all layers.
func (s *Store) adopt(ctx context.Context, st *staging, ref, origin string) (*Lease, error) {
	records, err := s.records()
	if err != nil {
		return nil, err
	}
	visible, err := s.refs()
	if err != nil {
		return nil, err
	}
	for _, r := range records {
		if _, ok := visible[r.Digest]; !ok || r.Origin != origin {
			continue
		}
		l, err := s.lease(ctx, ref, r.Digest)
		if cay.CodeOf(err) == cay.NotFound {
			continue // being removed
		}
		if err != nil {
			return nil, err
		}
		if err := s.adoptAs(ctx, st, ref, l); err != nil {
			l.Release()
			return nil, err
		}
		return l, nil
	}
	return nil, nil
}

// Tag gives another name to an image that s sees. Errors: not_found, invalid (name),
// quota_exceeded, no_space.
func (s *Store) Tag(ctx context.Context, ref, name string) (img *sandbox.Image, err error) {
	return s.importWith(ctx, name, nil, func(ctx context.Context, st *staging, name string, _ func(sandbox.ImageProgress)) (*Lease, error) {
		l, err := s.Acquire(ctx, ref)
		if err != nil {
			return nil, err
		}
		if err := s.adoptAs(ctx, st, name, l); err != nil {
			l.Release()
			return nil, err
		}
		return l, nil
	})
}

// adoptAs gives a leased image a name, and adds the name to the lease's image.
func (s *Store) adoptAs(ctx context.Context, st *staging, ref string, l *Lease) error {
	done, err := s.charge(ctx, digestOf(l), l.Image.SizeBytes)
	if err != nil {
		return err
	}
	defer done()
	if err := s.writeJSON(st, s.refPath(ref), refRecord{ref, digestOf(l)}); err != nil {
		return err
	}
	s.opts.Changed()
	img, err := s.describe(digestOf(l))
	if err != nil {
		return err
	}
	l.Image = *img
	return nil
}

// registryClient returns a client that is logged in to pull from a repository.
func (s *Store) registryClient(ctx context.Context, repo name.Repository) (*http.Client, error) {
	auth, err := authn.Resolve(ctx, s.opts.Keychain, repo)
	if err != nil {
		return nil, err
	}
	rt, err := transport.NewWithContext(ctx, repo.Registry, auth, s.opts.PullTransport, []string{repo.Scope(transport.PullScope)})
	if err != nil {
		return nil, err
	}
	return &http.Client{Transport: rt}, nil
}

func isRegistryError(err error) bool {
	var e *transport.Error
	return errors.As(err, &e)
}

// registryError gives an error of a registry its code.
func (s *Store) registryError(ctx context.Context, ref name.Reference, err error) error {
	var e *transport.Error
	host := ref.Context().RegistryStr()
	status := 0
	if errors.As(err, &e) {
		status = e.StatusCode
	}
	switch status {
	case http.StatusNotFound:
		return cay.Errorf(cay.NotFound, "the registry has no image %s", ref)
	case http.StatusUnauthorized, http.StatusForbidden:
		return cay.Errorf(cay.PermissionDenied, "the registry %s does not give out %s: %w", host, ref, outcomeOf(err)).
			WithHint("check the spelling; if the image is private, log in with docker login or podman login on the machine of the daemon")
	}
	s.log.WarnContext(ctx, "a registry could not be asked", "registry", host, "error", err)
	failed := cay.Errorf(cay.Unavailable, "registry %s: %w", host, outcomeOf(err))
	if coded := (*cay.Error)(nil); errors.As(err, &coded) && coded.Hint != "" {
		return failed.WithHint("%s", coded.Hint)
	}
	return failed
}
