package imaged

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"

	"github.com/google/go-containerregistry/pkg/authn"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/internal/image"
	"github.com/cayhq/cay/internal/limit"
	"github.com/cayhq/cay/sandbox"
)

// Config configures an Engine.
type Config struct {
	Store    *image.Store
	Accounts Accounts
	// Snapshots opens the files from which images are made; nil if there are no
	// snapshots.
	Snapshots func(ctx context.Context, ref string) (*SnapshotFiles, error)
}

// Accounts returns the quotas of teams.
type Accounts interface {
	Quota(ctx context.Context, teamID string) (account.Quota, error)
}

// SnapshotFiles are the open files of a snapshot, from which an image is made.
type SnapshotFiles struct {
	Snapshot      sandbox.Snapshot
	RuntimeDigest string            // of Snapshot.Runtime
	Env           map[string]string // the variables that commands get from the image and the runtime
	// WriteLayer writes the changes to the image, as a layer of an OCI image.
	WriteLayer func(ctx context.Context, w io.Writer) error
	// Close lets go of the files. It must be called.
	Close func()
}

// Engine decides which callers may see and change the images of a store.
type Engine struct {
	cfg   Config
	turns *limit.Limit // teams that add an image
	packs *limit.Limit // teams that have the daemon pack an image, for an archive or a registry
}

// maxWaiting is how many calls that add or pack images may wait for their turn.
const maxWaiting = 256

// maxPacks is how many images are packed, and sent, at a time: working files as large as
// the images.
const maxPacks = 4

// NewEngine returns an engine.
func NewEngine(cfg Config) *Engine {
	return &Engine{
		cfg:   cfg,
		turns: limit.New(limit.Bounds{All: math.MaxInt, Each: 1, Waiting: maxWaiting}),
		packs: limit.New(limit.Bounds{All: maxPacks, Each: 1, Waiting: maxWaiting}),
	}
}

// seen is the store as the caller's team sees it.
func (e *Engine) seen(ctx context.Context) (*image.Store, error) {
	p, err := api.RequirePrincipal(ctx)
	if err != nil {
		return nil, err
	}
	return e.cfg.Store.For(image.Owner{ID: p.TeamID}), nil
}

// mayWrite returns permission_denied unless the caller may add images, and remove its
// team's images.
func mayWrite(ctx context.Context) error {
	p, err := api.RequirePrincipal(ctx)
	if err == nil && !p.WritesImages() {
		err = cay.Errorf(cay.PermissionDenied, "this token may not bring images, or remove them").
			WithHint("use a token of the team, or one made with: cay token create --project NAME --right %s", account.ImagesWrite)
	}
	return err
}

// beginAdd returns the store for an image that the caller adds, valid until done is
// called.
func (e *Engine) beginAdd(ctx context.Context) (s *image.Store, done func(), err error) {
	if err := mayWrite(ctx); err != nil {
		return nil, nil, err
	}
	p, err := api.RequirePrincipal(ctx)
	if err != nil || p.Admin {
		return e.cfg.Store, func() {}, err
	}
	return e.beginAddFor(ctx, p.TeamID)
}

// beginAddFor is beginAdd for a team's image. It waits until the team adds no other image:
// two concurrent calls would each use all that is left of the quota.
func (e *Engine) beginAddFor(ctx context.Context, teamID string) (s *image.Store, done func(), err error) {
	switch err := e.turns.Enter(ctx, teamID); {
	case err == limit.ErrFull:
		return nil, nil, cay.Errorf(cay.QuotaExceeded, "%d images wait for other images of their teams to be added first", maxWaiting).
			WithHint("wait for some to be there")
	case err != nil:
		return nil, nil, err
	}
	if s, err = e.bounded(ctx, teamID); err != nil {
		e.turns.Leave(teamID)
		return nil, nil, err
	}
	return s, func() { e.turns.Leave(teamID) }, nil
}

// bounded returns the store for images that a team adds.
func (e *Engine) bounded(ctx context.Context, teamID string) (*image.Store, error) {
	if teamID == "" { // which is the installation
		return nil, errors.New("a token without a team brings an image")
	}
	q, err := e.cfg.Accounts.Quota(ctx, teamID)
	if err != nil {
		return nil, err
	}
	return e.cfg.Store.For(image.Owner{ID: teamID, Bytes: q.ImageMB << 20, DayBytes: q.ImageDownloadMB << 20}), nil
}

// List implements Service.
func (e *Engine) List(ctx context.Context) ([]sandbox.Image, error) {
	s, err := e.seen(ctx)
	if err != nil {
		return nil, err
	}
	return s.List(ctx)
}

// Get implements Service.
func (e *Engine) Get(ctx context.Context, ref string) (*sandbox.Image, error) {
	s, err := e.seen(ctx)
	if err != nil {
		return nil, err
	}
	return s.Get(ctx, ref)
}

// Pull implements Service.
func (e *Engine) Pull(ctx context.Context, ref string, progress func(sandbox.ImageProgress)) (*sandbox.Image, error) {
	s, done, err := e.beginAdd(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	return s.Pull(ctx, ref, progress)
}

// BuildDefault implements Service.
func (e *Engine) BuildDefault(ctx context.Context, packages []string, progress func(sandbox.ImageProgress)) (*sandbox.Image, error) {
	if err := api.RequireAdmin(ctx); err != nil {
		return nil, err
	}
	return e.cfg.Store.BuildDefault(ctx, packages, progress)
}

// Build implements Service.
func (e *Engine) Build(ctx context.Context, name string, progress func(sandbox.ImageProgress)) (*sandbox.Image, error) {
	p, err := api.RequirePrincipal(ctx)
	if err != nil {
		return nil, err
	}
	if p.Admin || !image.IsBuilt(name) {
		return e.cfg.Store.Build(ctx, name, progress)
	}
	switch _, err := e.cfg.Store.Get(ctx, name); {
	case err == nil:
		return nil, cay.Errorf(cay.PermissionDenied, "the image %q is there already, and only an admin token may make it anew: all teams start from it", name)
	case cay.CodeOf(err) != cay.NotFound:
		return nil, err
	}
	l, err := e.cfg.Store.Ensure(ctx, name, progress)
	if err != nil {
		return nil, err
	}
	defer l.Release()
	return &l.Image, nil
}

// Import implements Service.
func (e *Engine) Import(ctx context.Context, ref string, r io.Reader, progress func(sandbox.ImageProgress)) (*sandbox.Image, error) {
	s, done, err := e.beginAdd(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	return s.Import(ctx, ref, r, progress)
}

// FromSnapshot implements Service.
func (e *Engine) FromSnapshot(ctx context.Context, p sandbox.ImageSnapshotParams, progress func(sandbox.ImageProgress)) (*sandbox.Image, error) {
	s, done, err := e.beginAdd(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	if e.cfg.Snapshots == nil {
		return nil, cay.Errorf(cay.NotSupported, "there are no snapshots here")
	}
	files, err := e.cfg.Snapshots(ctx, p.Snapshot)
	if err != nil {
		return nil, err
	}
	defer files.Close()
	env := maps.Clone(files.Env)
	if env == nil {
		env = make(map[string]string, len(p.Env))
	}
	for _, kv := range p.Env {
		k, v, _ := strings.Cut(kv, "=")
		env[k] = v
	}
	base, err := e.cfg.Store.Get(ctx, files.Snapshot.Digest)
	if err != nil {
		return nil, err
	}
	if len(p.Entrypoint)+len(p.Cmd) == 0 {
		p.Entrypoint, p.Cmd = base.Config.Entrypoint, base.Config.Cmd
	}
	config := sandbox.ImageConfig{
		User: cmp.Or(p.User, files.Snapshot.User), WorkDir: cmp.Or(p.WorkDir, files.Snapshot.WorkDir), Entrypoint: p.Entrypoint, Cmd: p.Cmd,
	}
	for _, k := range slices.Sorted(maps.Keys(env)) {
		config.Env = append(config.Env, k+"="+env[k])
	}
	if config.Labels = maps.Clone(base.Config.Labels); config.Labels == nil && len(p.Labels) > 0 {
		config.Labels = map[string]string{}
	}
	maps.Copy(config.Labels, p.Labels)
	config.ExposedPorts = slices.Compact(slices.Sorted(slices.Values(slices.Concat(base.Config.ExposedPorts, p.ExposedPorts))))
	return s.Compose(ctx, p.Ref, image.Composition{
		Base: files.Snapshot.Digest, Runtime: files.Snapshot.Runtime, RuntimeDigest: files.RuntimeDigest,
		Layer: files.WriteLayer, Config: config, Origin: "snapshot " + files.Snapshot.ID,
	}, progress)
}

// beginPack waits for the turn of the caller's team.
func (e *Engine) beginPack(ctx context.Context) (done func(), err error) {
	p, err := api.RequirePrincipal(ctx)
	if err != nil {
		return nil, err
	}
	if err := e.packs.Enter(ctx, p.TeamID); err == limit.ErrFull {
		return nil, cay.Errorf(cay.QuotaExceeded, "%d archives and pushes of images wait for others", maxWaiting).WithHint("wait for some to be done")
	} else if err != nil {
		return nil, err
	}
	return sync.OnceFunc(func() { e.packs.Leave(p.TeamID) }), nil
}

// Export implements Service.
func (e *Engine) Export(ctx context.Context, refs []string) (io.ReadCloser, error) {
	s, err := e.seen(ctx)
	if err != nil {
		return nil, err
	}
	done, err := e.beginPack(ctx)
	if err != nil {
		return nil, err
	}
	r, err := s.Export(ctx, refs)
	if err != nil {
		done()
		return nil, err
	}
	return &exported{r, done}, nil
}

// exported is an archive whose Close ends the turn of a team.
type exported struct {
	io.ReadCloser
	done func()
}

// Close implements io.Closer.
func (x *exported) Close() error {
	defer x.done()
	return x.ReadCloser.Close()
}

// Push implements Service. Only admin tokens push with the credentials of the daemon's
// machine: those may allow to replace images that are not the team's.
func (e *Engine) Push(ctx context.Context, p sandbox.ImagePushParams, progress func(sandbox.ImageProgress)) (*sandbox.Image, error) {
	if err := mayWrite(ctx); err != nil {
		return nil, err
	}
	if err := p.Validate(); err != nil {
		return nil, err
	}
	s, err := e.seen(ctx)
	if err != nil {
		return nil, err
	}
	caller, err := api.RequirePrincipal(ctx)
	if err != nil {
		return nil, err
	}
	done, err := e.beginPack(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	return s.Push(ctx, image.PushParams{Ref: p.Ref, Own: caller.Admin, Auth: authn.AuthConfig{
		Username: p.Auth.Username, Password: p.Auth.Password, IdentityToken: p.Auth.IdentityToken, RegistryToken: p.Auth.RegistryToken,
	}}, progress)
}

// Tag implements Service.
func (e *Engine) Tag(ctx context.Context, ref, name string) (*sandbox.Image, error) {
	if err := mayWrite(ctx); err != nil {
		return nil, err
	}
	img, err := e.Get(ctx, ref)
	if err != nil {
		return nil, err
	}
	p, err := api.RequirePrincipal(ctx)
	if err != nil {
		return nil, err
	}
	s := e.cfg.Store
	// A team's new name for an image that belongs to it alone shows the image to no other
	// team.
	if !p.Admin || len(img.Refs) == len(img.TeamRefs) {
		if s, err = e.bounded(ctx, p.TeamID); err != nil {
			return nil, err
		}
	}
	return s.Tag(ctx, img.Digest, name)
}

// Remove implements Service.
func (e *Engine) Remove(ctx context.Context, ref string) error {
	if err := mayWrite(ctx); err != nil {
		return err
	}
	p, err := api.RequirePrincipal(ctx)
	if err != nil {
		return err
	}
	s := e.cfg.Store
	if !p.Admin {
		if s, err = e.bounded(ctx, p.TeamID); err != nil {
			return err
		}
	}
	err = s.Remove(ctx, ref)
	if !p.Admin || p.TeamID == "" || cay.CodeOf(err) != cay.NotFound {
		return err
	}
	// An operator speaks for the team, too.
	if rerr := e.cfg.Store.For(image.Owner{ID: p.TeamID}).Remove(ctx, ref); cay.CodeOf(rerr) != cay.NotFound {
		return rerr
	}
	return err
}

// GC implements Service. It keeps images without a name that a snapshot or a sandbox
// needs, including sandboxes of other processes on this machine.
func (e *Engine) GC(ctx context.Context, p sandbox.ImageGCParams) (*sandbox.ImageGC, error) {
	if err := api.RequireAdmin(ctx); err != nil {
		return nil, err
	}
	report, err := e.cfg.Store.GC(ctx, p.DryRun)
	if err != nil {
		return nil, err
	}
	return &sandbox.ImageGC{Removed: len(report.Images), FreedBytes: report.Bytes, Images: append([]sandbox.Image{}, report.Images...)}, nil
}

// InUse says how many names a team has given, as in "3 images"; "" for 0.
func (e *Engine) InUse(ctx context.Context, teamID string) (string, error) {
	list, err := e.cfg.Store.For(image.Owner{ID: teamID}).List(ctx)
	if err != nil {
		return "", err
	}
	n := 0
	for _, img := range list {
		if len(img.TeamRefs) > 0 {
			n++
		}
	}
	switch n {
	case 0:
		return "", nil
	case 1:
		return "1 image", nil
	}
	return fmt.Sprintf("%d images", n), nil
}

// Ensure leases the image that ref names for the team, for a sandbox. It fetches a
// missing image if the caller may do so: any caller may fetch an image that cay builds;
// an image of a registry requires the right to write images. Errors: as Pull.
func (e *Engine) Ensure(ctx context.Context, teamID, ref string) (*image.Lease, error) {
	l, err := e.cfg.Store.For(image.Owner{ID: teamID}).Acquire(ctx, ref)
	if cay.CodeOf(err) != cay.NotFound {
		return l, err
	}
	if teamID == "" || image.IsBuilt(ref) { // for a pool, which the operator has configured
		return e.cfg.Store.Ensure(ctx, ref, nil)
	}
	if image.IsDigest(ref) {
		return nil, err // no telling where it came from
	}
	p, ok := api.PrincipalFrom(ctx)
	switch {
	case !ok:
		return nil, err
	case p.Admin:
		return e.cfg.Store.Ensure(ctx, ref, nil)
	case !p.WritesImages():
		return nil, cay.Errorf(cay.PermissionDenied, "there is no image %q here, and this token may not fetch it", ref).
			WithHint("fetch it with a token of the team: cay image pull %s", ref)
	}
	s, done, err := e.beginAddFor(ctx, teamID)
	if err != nil {
		return nil, err
	}
	defer done()
	return s.Ensure(ctx, ref, nil)
}

// Lease leases an image by its digest, for a sandbox that was started from it before.
// Errors: not_found.
func (e *Engine) Lease(ctx context.Context, digest string) (*image.Lease, error) {
	return e.cfg.Store.Acquire(ctx, digest)
}

// Digest returns the digest of the image that ref names for a team. Errors: not_found,
// invalid.
func (e *Engine) Digest(ctx context.Context, teamID, ref string) (string, error) {
	return e.cfg.Store.For(image.Owner{ID: teamID}).Digest(ctx, ref)
}
