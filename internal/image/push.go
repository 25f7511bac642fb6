package image

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
)

// PushParams says where an image goes, and who sends it.
type PushParams struct {
	Ref  string // an image of the store, and its name in the registry
	Auth authn.AuthConfig
	// Own allows credentials of this machine if Auth is empty: Options.Keychain.
	Own bool
}

// pushStall is how long a registry may take no data.
const pushStall = 2 * time.Minute

// Push sends an image to the registry that its name says, as an image with one layer. The
// last step before "done" is "pushed", with the digest and the size of its manifest there.
// Errors: invalid (the name), not_found, permission_denied (by the registry),
// not_supported, unavailable, no_space.
func (s *Store) Push(ctx context.Context, p PushParams, progress func(sandbox.ImageProgress)) (_ *sandbox.Image, err error) {
	defer func() { err = workError(ctx, err) }()
	if progress == nil {
		progress = func(sandbox.ImageProgress) {}
	}
	canonical, err := s.canonicalOutside(p.Ref)
	if err != nil {
		return nil, err
	}
	ref, err := s.parseRef(canonical)
	if err != nil {
		return nil, err
	}
	if _, ok := ref.(name.Tag); !ok {
		return nil, cay.Errorf(cay.Invalid, "%s has a digest: the registry finds out the digest by itself", ref)
	}
	l, err := s.Acquire(ctx, p.Ref)
	if err != nil {
		return nil, err
	}
	defer l.Release()
	st, err := s.newStaging()
	if err != nil {
		return nil, err
	}
	defer st.closeInto(&err)
	progress(sandbox.ImageProgress{Phase: "pack", Item: canonical})
	img, packed, err := s.pack(ctx, st, l)
	if err != nil {
		return nil, err
	}
	auth := authn.Anonymous
	switch {
	case p.Auth != (authn.AuthConfig{}):
		auth = authn.FromConfig(p.Auth)
	case p.Own:
		if auth, err = authn.Resolve(ctx, s.opts.Keychain, ref.Context()); err != nil {
			return nil, pushError(s.registryError(ctx, ref, err), ref, err)
		}
	}
	if err := s.upload(ctx, ref, img, packed, auth, progress); err != nil {
		return nil, pushError(s.registryError(ctx, ref, err), ref, err)
	}
	digest, err := img.Digest()
	if err != nil {
		return nil, err
	}
	size, err := img.Size()
	if err != nil {
		return nil, err
	}
	progress(sandbox.ImageProgress{Phase: "pushed", Item: digest.String(), Total: size})
	progress(sandbox.ImageProgress{Phase: "done", Item: canonical, Image: &l.Image})
	return &l.Image, nil
}

// upload sends an image, whose only layer is packed, to a registry.
func (s *Store) upload(ctx context.Context, ref name.Reference, img v1.Image, packed *packedLayer, auth authn.Authenticator, progress func(sandbox.ImageProgress)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stalled := time.AfterFunc(pushStall, func() { cancel(errStalled) })
	defer stalled.Stop()
	var mu sync.Mutex // guards announced and done
	var announced int64
	done := false
	packed.onRead = func(n int64) {
		mu.Lock()
		defer mu.Unlock()
		if done { // a connection that was given up
			return
		}
		stalled.Reset(pushStall)
		if n-announced >= 4<<20 || n < announced || n == packed.size {
			announced = n
			progress(sandbox.ImageProgress{Phase: "upload", Item: packed.digest.String(), Current: n, Total: packed.size})
		}
	}
	err := remote.Write(ref, img, remote.WithContext(ctx), remote.WithTransport(s.opts.PullTransport), remote.WithAuth(auth))
	mu.Lock()
	done = true
	mu.Unlock()
	if cause := context.Cause(ctx); err != nil && cause != nil {
		return cause
	}
	return err
}

// pushError gives the refusal of a registry the words for a push.
func pushError(other error, ref name.Reference, err error) error {
	var e *transport.Error
	if !errors.As(err, &e) || e.StatusCode != http.StatusUnauthorized && e.StatusCode != http.StatusForbidden {
		return other
	}
	return cay.Errorf(cay.PermissionDenied, "the registry %s does not take %s: %w", ref.Context().RegistryStr(), ref, outcomeOf(err)).
		WithHint("send credentials: log in with docker login or podman login")
}
