package imaged

import (
	"context"
	"io"

	"github.com/cayhq/cay/sandbox"
)

// Service has all operations on images. *Engine implements it on the store of this
// machine, *sandbox.Images over HTTP. Errors are *cay.Error; every method can return
// unauthenticated, and permission_denied if the token lacks a right.
//
// Progress functions are called one at a time and not after the method has returned; nil
// means no progress is reported.
type Service interface {
	// List returns the images of the installation and of the caller's team.
	List(ctx context.Context) ([]sandbox.Image, error)
	// Get returns the image that a reference or digest names. Errors: not_found, also for
	// an image of another team.
	Get(ctx context.Context, ref string) (*sandbox.Image, error)
	// Pull fetches an image from a registry, for the caller's team, or, with an admin
	// token, for all teams. Errors: invalid, not_found, unavailable, no_space, too_large,
	// quota_exceeded.
	Pull(ctx context.Context, ref string, progress func(sandbox.ImageProgress)) (*sandbox.Image, error)
	// Build makes one of the images cay knows how to make: "debian", or a runtime such as
	// "node24"; they belong to the installation. An existing image is rebuilt with an
	// admin token only. Errors: not_found, unavailable, no_space, not_supported (a tool
	// is missing on the host).
	Build(ctx context.Context, name string, progress func(sandbox.ImageProgress)) (*sandbox.Image, error)
	// BuildDefault makes the default image anew, with Debian packages added. Admin tokens
	// only. Errors: as for Build; invalid (a name), not_found (no such package),
	// conflict (made at the same time with other packages).
	BuildDefault(ctx context.Context, packages []string, progress func(sandbox.ImageProgress)) (*sandbox.Image, error)
	// Import reads an OCI or Docker archive or a tarball of a root file system
	// and names it ref, as Pull does. If ref is empty, the archive is one of Export, and its
	// images keep their names and digests: each is a step with the phase "imported", and the
	// last is returned. Errors: invalid, permission_denied (an image that cay builds, without
	// an admin token), not_supported, no_space, too_large, quota_exceeded.
	Import(ctx context.Context, ref string, r io.Reader, progress func(sandbox.ImageProgress)) (*sandbox.Image, error)
	// FromSnapshot makes an image of the files of a snapshot and of the images below
	// them; it belongs to the same owner as with Pull. Errors: invalid, not_found (the
	// snapshot, or its image), conflict (damaged), not_supported (a file that a layer
	// cannot have), no_space, too_large, quota_exceeded.
	FromSnapshot(ctx context.Context, p sandbox.ImageSnapshotParams, progress func(sandbox.ImageProgress)) (*sandbox.Image, error)
	// Export reads images as an archive of "docker save", each with a single layer. Close
	// must be called. Errors: invalid, not_found, also for an image of another team,
	// not_supported (a file whose name a layer cannot have), no_space.
	Export(ctx context.Context, refs []string) (io.ReadCloser, error)
	// Push sends an image to the registry that its name says, with a single layer. The
	// step before the last has the phase "pushed". Errors: invalid, not_found,
	// permission_denied (also by the registry), not_supported, unavailable, no_space.
	Push(ctx context.Context, p sandbox.ImagePushParams, progress func(sandbox.ImageProgress)) (*sandbox.Image, error)
	// Tag gives another name to the image that a reference or digest names: for the
	// caller's team, or, with an admin token and an image of the installation, for all
	// teams. If the name exists, it names the new image afterwards. Errors: invalid (the
	// name), not_found, no_space, quota_exceeded.
	Tag(ctx context.Context, ref, name string) (*sandbox.Image, error)
	// Remove removes a reference of the caller's team, with an admin token one of the
	// installation; the content is removed when no sandbox needs it. Errors: not_found.
	Remove(ctx context.Context, ref string) error
	// GC removes content that no reference and no sandbox needs. Admin tokens only.
	GC(ctx context.Context, p sandbox.ImageGCParams) (*sandbox.ImageGC, error)
}

var (
	_ Service = (*Engine)(nil)
	_ Service = (*sandbox.Images)(nil)
)
