package sandbox

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/wire"
)

// Images works with the images of a daemon. A team sees the installation's images,
// which all teams share, and its own images, which no other team sees. Images that
// an admin token adds belong to the installation. Pull, Import, FromSnapshot, Push,
// Tag and Remove need a token that may write images: an admin token, a token of a
// whole team, or a token of a project that was made with the right
// account.ImagesWrite. Images that a team adds count against the team's quota. GC
// needs an admin token.
type Images struct {
	c *Client
}

// Images returns the client of the daemon's images.
func (c *Client) Images() *Images { return &Images{c} }

// List returns the images of the installation and of the team.
func (i *Images) List(ctx context.Context) ([]Image, error) {
	var page Page[Image]
	if err := i.c.call(ctx, wire.Request{Method: http.MethodGet, Path: "/v1/images"}, &page); err != nil {
		return nil, err
	}
	return page.Items, nil
}

// imagePath returns the path of an image, whose reference may hold slashes.
func imagePath(ref string) (string, error) {
	elems := strings.Split(ref, "/")
	for n, e := range elems {
		if e == "" || e == "." || e == ".." {
			return "", cay.Errorf(cay.NotFound, "image %q not found", ref)
		}
		elems[n] = url.PathEscape(e)
	}
	return "/v1/images/" + strings.Join(elems, "/"), nil
}

// Get returns the image with a reference or a digest. Errors: not_found.
func (i *Images) Get(ctx context.Context, ref string) (*Image, error) {
	p, err := imagePath(ref)
	if err != nil {
		return nil, err
	}
	out := new(Image)
	if err := i.c.call(ctx, wire.Request{Method: http.MethodGet, Path: p}, out); err != nil {
		return nil, err
	}
	return out, nil
}

// Pull fetches an image from a registry. Errors: invalid, not_found,
// permission_denied (the token, or by the registry), unavailable, no_space,
// too_large, quota_exceeded. progress, unless nil, is called for every step.
func (i *Images) Pull(ctx context.Context, ref string, progress func(ImageProgress)) (*Image, error) {
	return i.follow(ctx, wire.Request{Method: http.MethodPost, Path: "/v1/images/pull", JSON: map[string]string{"ref": ref}}, progress)
}

// Build makes one of the images that cay knows how to make: "debian", or a runtime
// such as "node24". These images belong to the installation: any token may build
// images that do not exist yet, and an admin token may rebuild existing ones.
// Errors: not_found, permission_denied, unavailable, no_space, not_supported (a
// tool is missing on the host). progress, unless nil, is called for every step.
func (i *Images) Build(ctx context.Context, name string, progress func(ImageProgress)) (*Image, error) {
	return i.follow(ctx, wire.Request{Method: http.MethodPost, Path: "/v1/images/build", JSON: map[string]string{"name": name}}, progress)
}

// BuildDefault makes the default image anew, with the given Debian packages added to its
// own. They are in it until it is made anew again, by BuildDefault or Build. It takes an
// admin token. Errors: as for Build; invalid (a name), not_found (Debian has no such
// package), conflict (the image was made at the same time with other packages).
func (i *Images) BuildDefault(ctx context.Context, packages []string, progress func(ImageProgress)) (*Image, error) {
	body := map[string]any{"name": "debian", "packages": packages}
	return i.follow(ctx, wire.Request{Method: http.MethodPost, Path: "/v1/images/build", JSON: body}, progress)
}

// Import reads an OCI or Docker archive or a tarball of a root file system from
// r and names it ref. If ref is empty, the archive is one of Export, and its images keep
// their names and digests: each is a step with the phase "imported" and the name as Item,
// and the last image is returned. Errors: invalid, permission_denied, not_supported,
// no_space, too_large, quota_exceeded. progress, unless nil, is called for every step.
func (i *Images) Import(ctx context.Context, ref string, r io.Reader, progress func(ImageProgress)) (*Image, error) {
	q := url.Values{}
	setString(q, "ref", ref)
	return i.follow(ctx, wire.Request{Method: http.MethodPost, Path: "/v1/images/import", Query: q, Body: r, Length: known(r)}, progress)
}

// FromSnapshot makes an image of the files of a snapshot and of the image below
// them. Errors: invalid, permission_denied, not_found (also of the image the
// snapshot is of), conflict (damaged), not_supported, no_space, too_large,
// quota_exceeded. progress, unless nil, is called for every step.
func (i *Images) FromSnapshot(ctx context.Context, p ImageSnapshotParams, progress func(ImageProgress)) (*Image, error) {
	return i.follow(ctx, wire.Request{Method: http.MethodPost, Path: "/v1/images/snapshot", JSON: p}, progress)
}

// Export reads images, by references or digests, as an archive of "docker save". Each
// image has a single layer there; Import makes an equal image of it. Close the
// reader. Errors: invalid, not_found, not_supported (a file whose name a layer
// cannot have), no_space.
func (i *Images) Export(ctx context.Context, refs []string) (io.ReadCloser, error) {
	resp, conn, err := i.c.do(ctx, wire.Request{Method: http.MethodPost, Path: "/v1/images/export", JSON: map[string][]string{"refs": refs}})
	if err != nil {
		return nil, err
	}
	return &content{ctx, conn, resp.Body}, nil
}

// Push sends an image to the registry that its name says, with a single layer.
// Errors: invalid, not_found, permission_denied (the token, or by the registry),
// not_supported, unavailable, no_space. progress, unless nil, is called for every
// step.
func (i *Images) Push(ctx context.Context, p ImagePushParams, progress func(ImageProgress)) (*Image, error) {
	return i.follow(ctx, wire.Request{Method: http.MethodPost, Path: "/v1/images/push", JSON: p}, progress)
}

// follow reports the progress of a request until it is done.
func (i *Images) follow(ctx context.Context, r wire.Request, progress func(ImageProgress)) (*Image, error) {
	s, err := i.c.stream(ctx, r)
	if err != nil {
		return nil, err
	}
	defer s.close()
	for {
		line, err := s.next()
		if err == io.EOF {
			err = io.ErrUnexpectedEOF // the image comes last
		}
		if err != nil {
			return nil, s.conn.StreamError(ctx, err)
		}
		var msg struct {
			ImageProgress
			Error *wire.Error `json:"error"`
		}
		if err := json.Unmarshal(line, &msg); err != nil {
			return nil, cay.Errorf(cay.Internal, "the daemon sent a step that cannot be read: %w", err)
		}
		if msg.Error != nil {
			return nil, msg.Error.Err()
		}
		if progress != nil {
			progress(msg.ImageProgress)
		}
		if msg.Image != nil {
			return msg.Image, nil
		}
	}
}

// Tag gives an image a further name: for the team, or, with an admin token and an
// image of the installation, for all teams. If another image has the name, Tag
// moves the name. Errors: invalid (the name), not_found, permission_denied,
// no_space, quota_exceeded.
func (i *Images) Tag(ctx context.Context, ref, name string) (*Image, error) {
	out := new(Image)
	if err := i.c.call(ctx, wire.Request{Method: http.MethodPost, Path: "/v1/images/tag", JSON: map[string]string{"ref": ref, "name": name}}, out); err != nil {
		return nil, err
	}
	return out, nil
}

// Remove deletes a reference of the team, or, with an admin token, of the
// installation. The content is deleted when no sandbox needs it. Errors:
// not_found, permission_denied.
func (i *Images) Remove(ctx context.Context, ref string) error {
	p, err := imagePath(ref)
	if err != nil {
		return err
	}
	return i.c.call(ctx, wire.Request{Method: http.MethodDelete, Path: p}, nil)
}

// GC deletes content that no reference and no sandbox needs.
func (i *Images) GC(ctx context.Context, p ImageGCParams) (*ImageGC, error) {
	q := url.Values{}
	if p.DryRun {
		q.Set("dry_run", "true")
	}
	out := new(ImageGC)
	if err := i.c.call(ctx, wire.Request{Method: http.MethodPost, Path: "/v1/images/gc", Query: q}, out); err != nil {
		return nil, err
	}
	return out, nil
}
