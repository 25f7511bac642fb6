package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/google/go-containerregistry/pkg/authn"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/image/rootfs"
	"github.com/cayhq/cay/sandbox"
)

// Options are the settings of a Store. The zero value suits production.
type Options struct {
	Logger *slog.Logger // default: discards
	Arch   string       // of the images to make, as in GOARCH; default: this machine's

	// Transport makes all requests. Default: a transport like http.DefaultTransport.
	Transport http.RoundTripper
	// PullTransport makes requests to OCI registries, which callers name. The daemon sets
	// a transport that refuses addresses which callers may not reach. Default: Transport.
	PullTransport http.RoundTripper
	// Keychain finds credentials for OCI registries. Default: the credentials of docker
	// and podman on this machine.
	Keychain authn.Keychain
	// InsecureRegistries are host[:port]s of OCI registries spoken to by plain HTTP.
	InsecureRegistries []string
	// NPMRegistry is the address of the npm registry runtimes come from. Default: the
	// registry that npm on this machine is configured to use.
	NPMRegistry string
	// DebianMirror is the address of the archive the default image comes from.
	// Default: mmdebstrap's.
	DebianMirror string

	// Changed, unless nil, is called when a reference begins to name another image, or
	// none. It must not block.
	Changed func()
	// Needed reports whether an image without a name and without a lease is still needed,
	// so that it stays. Nil means that no such image is needed.
	Needed func(ctx context.Context, digest string) (bool, error)

	Limits Limits
}

// Limits bound a single image. Zero fields take the default.
type Limits struct {
	Layers  int   // default 512
	Entries int   // files in all layers together; default 1,000,000
	Bytes   int64 // uncompressed contents of all layers together; default 32 GiB
}

func (l Limits) withDefaults() Limits {
	if l.Layers == 0 {
		l.Layers = 512
	}
	if l.Entries == 0 {
		l.Entries = 1_000_000
	}
	if l.Bytes == 0 {
		l.Bytes = 32 << 30
	}
	return l
}

// Store is a directory of images, as seen by the installation or by one owner: see For.
// Methods may be called concurrently.
type Store struct {
	dir     string
	opts    Options
	log     *slog.Logger
	flights *flights
	owner   Owner
	// retryAfter is how long the first retry of a download waits; tests change it.
	retryAfter time.Duration
}

// Open opens the store in dir, making it if needed, and removes the working files of
// processes that died.
func Open(dir string, opts Options) (*Store, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	for _, d := range []string{"images", "refs", "blobs", "locks", "tmp", "tools", "owners"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o700); err != nil {
			return nil, fmt.Errorf("open image store: %w", diskError(err))
		}
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	if opts.Arch == "" {
		opts.Arch = runtime.GOARCH
	}
	if opts.Transport == nil {
		t := http.DefaultTransport.(*http.Transport).Clone()
		t.ResponseHeaderTimeout = fetchStall
		opts.Transport = t
	}
	if opts.PullTransport == nil {
		opts.PullTransport = opts.Transport
	}
	if opts.Keychain == nil {
		opts.Keychain = authn.DefaultKeychain
	}
	if opts.Changed == nil {
		opts.Changed = func() {}
	}
	if opts.Needed == nil {
		opts.Needed = func(context.Context, string) (bool, error) { return false, nil }
	}
	opts.Limits = opts.Limits.withDefaults()
	s := &Store{
		dir: dir, opts: opts, log: opts.Logger.With("component", "image"), flights: new(flights),
		retryAfter: backoff.DefaultInitialInterval,
	}
	if _, err := s.clearStaging(); err != nil {
		// Images can be used all the same; GC will report the error again.
		s.log.Warn("cannot remove working files of a process that died", "error", err)
	}
	return s, nil
}

// record is the metadata file of an image.
type record struct {
	Digest    rootfs.Digest       `json:"digest"`
	Source    string              `json:"source"`
	Arch      string              `json:"arch"`
	Origin    string              `json:"origin,omitempty"` // a manifest's digest, or a recipe's fingerprint
	Owner     string              `json:"owner,omitempty"`  // the owner that added it first; see Owner.ID
	CreatedAt time.Time           `json:"created_at"`
	Config    sandbox.ImageConfig `json:"config"`
	Packages  []string            `json:"packages,omitempty"` // added to the default image

	want rootfs.Digest // the digest that commit requires; empty: any
}

// refRecord is a name of an image.
type refRecord struct {
	Ref    string        `json:"ref"`
	Digest rootfs.Digest `json:"digest"`
}

func (s *Store) imagePath(d rootfs.Digest) string {
	return filepath.Join(s.dir, "images", d.Hex()+".erofs")
}

func (s *Store) recordPath(d rootfs.Digest) string {
	return filepath.Join(s.dir, "images", d.Hex()+".json")
}

// refPath is where a name of s's owner is kept.
func (s *Store) refPath(ref string) string {
	return filepath.Join(s.refDir(), hashKey(ref)+".json")
}

// hashKey turns any string into a short file name.
func hashKey(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:16])
}

// canonical returns the form in which a reference is stored: aliases are resolved, and
// "alpine" is the same as "docker.io/library/alpine:latest".
func (s *Store) canonical(ref string) (string, error) {
	if ref == "" || ref == "default" {
		return DefaultRef, nil
	}
	if _, ok := recipes[ref]; ok {
		return ref, nil
	}
	if d, ok := parseDigest(ref); ok {
		return string(d), nil
	}
	name, err := s.parseRef(ref)
	if err != nil {
		return "", err
	}
	return name.Name(), nil
}

// parseDigest recognises the digest of an image in the store.
func parseDigest(ref string) (rootfs.Digest, bool) {
	h, ok := strings.CutPrefix(ref, "sha256:")
	if !ok || len(h) != 2*sha256.Size || strings.Trim(h, "0123456789abcdef") != "" {
		return "", false
	}
	return rootfs.Digest(ref), true
}

// resolve finds the digest a reference stands for.
func (s *Store) resolve(ref string) (rootfs.Digest, error) {
	name, err := s.canonical(ref)
	if err != nil {
		return "", err
	}
	if d, ok := parseDigest(name); ok {
		return d, s.checkVisible(ref, d)
	}
	var r refRecord
	err = readJSON(s.refPath(name), &r)
	if errors.Is(err, fs.ErrNotExist) && s.owned() {
		err = readJSON(s.installation().refPath(name), &r)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return "", s.notFound(ref)
	}
	if err != nil {
		return "", err
	}
	if _, ok := parseDigest(string(r.Digest)); !ok {
		return "", fmt.Errorf("reference %q: bad digest %q", name, r.Digest)
	}
	return r.Digest, nil
}

// Digest returns the digest of the image that a reference stands for now. Errors:
// not_found, invalid (no valid reference).
func (s *Store) Digest(ctx context.Context, ref string) (string, error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	d, err := s.resolve(ref)
	return string(d), err
}

func (s *Store) notFound(ref string) error {
	err := cay.Errorf(cay.NotFound, "there is no image %q", ref)
	if _, ok := recipes[ref]; ok || ref == "" || ref == "default" {
		return err.WithHint("build it with: cay image build %s", ref)
	}
	return err.WithHint("pull it with: cay image pull %s", ref)
}

// Get describes an image. Errors: not_found, invalid (no valid reference).
func (s *Store) Get(ctx context.Context, ref string) (*sandbox.Image, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	d, err := s.resolve(ref)
	if err != nil {
		return nil, err
	}
	img, err := s.describe(d)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, s.notFound(ref)
	}
	return img, err
}

// describe returns an image with the names that s sees. Errors: fs.ErrNotExist.
func (s *Store) describe(d rootfs.Digest) (*sandbox.Image, error) {
	img, err := s.load(d)
	if err != nil {
		return nil, err
	}
	refs, err := s.refs()
	if err != nil {
		return nil, err
	}
	refs[d].name(img)
	return img, nil
}

// List returns all images that have a name, the newest first.
func (s *Store) List(ctx context.Context) ([]sandbox.Image, error) {
	refs, err := s.refs()
	if err != nil {
		return nil, err
	}
	var images []sandbox.Image
	for d, names := range refs {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		img, err := s.load(d)
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed meanwhile
		}
		if err != nil {
			return nil, err
		}
		names.name(img)
		images = append(images, *img)
	}
	slices.SortFunc(images, func(a, b sandbox.Image) int {
		if c := b.CreatedAt.Compare(a.CreatedAt); c != 0 {
			return c
		}
		return strings.Compare(a.Digest, b.Digest)
	})
	return images, nil
}

// load reads an image's metadata, without its names.
func (s *Store) load(d rootfs.Digest) (*sandbox.Image, error) {
	var r record
	if err := readJSON(s.recordPath(d), &r); err != nil {
		return nil, err
	}
	file, err := os.Stat(s.imagePath(d))
	if err != nil {
		return nil, err
	}
	meta, err := os.Stat(s.recordPath(d))
	if err != nil {
		return nil, err
	}
	return &sandbox.Image{
		Digest: string(d), Source: r.Source, Arch: r.Arch, SizeBytes: file.Size(),
		CreatedAt: r.CreatedAt, UsedAt: meta.ModTime(), Config: r.Config, Packages: r.Packages,
	}, nil
}

// Remove removes a name of the owner's image; given a digest, it removes all of the
// owner's names for the image. The next GC after the end of the last lease removes the
// file, or the owner's next image that needs the room does. Errors: not_found,
// permission_denied (the name belongs to the installation).
func (s *Store) Remove(ctx context.Context, ref string) error {
	img, err := s.Get(ctx, ref)
	if err != nil {
		return err
	}
	names := img.Refs
	if s.owned() {
		names = img.TeamRefs
	}
	if _, ok := parseDigest(ref); !ok {
		name, err := s.canonical(ref)
		if err != nil {
			return err
		}
		if s.owned() && !slices.Contains(names, name) {
			names = nil
		} else {
			names = []string{name}
		}
	}
	if len(names) == 0 && s.owned() {
		return cay.Errorf(cay.PermissionDenied, "the image %q belongs to the installation", ref).
			WithHint("an admin token removes it")
	}
	defer s.opts.Changed()
	for _, name := range names {
		if err := os.Remove(s.refPath(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// commit puts a finished tree into the store under a name, and returns a lease on the
// image.
func (s *Store) commit(ctx context.Context, st *staging, tree *rootfs.Tree, name string, r record) (*Lease, error) {
	f, err := st.create("image")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	id, err := r.identity()
	if err != nil {
		return nil, err
	}
	r.Digest, err = tree.WriteTo(f, id)
	if err != nil {
		return nil, fmt.Errorf("write image: %w", err)
	}
	if r.want != "" && r.Digest != r.want {
		return nil, cay.Errorf(cay.Invalid, "the archive says that %s is %s, and its content is %s", name, r.want, r.Digest).
			WithHint("take another copy of the archive; or name the image with --ref, to take the content as it is")
	}
	r.Owner = s.owner.ID
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	done, err := s.charge(ctx, r.Digest, info.Size())
	if err != nil {
		return nil, err
	}
	defer done()
	if err := f.Sync(); err != nil {
		return nil, err
	}
	if err := f.Chmod(0o400); err != nil {
		return nil, err
	}
	// With the lock, GC leaves the image alone while it has no name yet.
	file, err := s.publish(f, s.imagePath(r.Digest))
	if err != nil {
		return nil, err
	}
	lease := &Lease{Path: s.imagePath(r.Digest), file: file}
	if err := s.writeRecord(st, r); err != nil {
		lease.Release()
		return nil, err
	}
	if err := s.writeJSON(st, s.refPath(name), refRecord{name, r.Digest}); err != nil {
		lease.Release()
		return nil, err
	}
	s.opts.Changed()
	img, err := s.describe(r.Digest)
	if err != nil {
		lease.Release()
		return nil, err
	}
	lease.Image = *img
	return lease, nil
}

// writeRecord writes the record of an image. If the image exists already, made from
// another origin, only the origin changes.
func (s *Store) writeRecord(st *staging, r record) error {
	var old record
	switch err := readJSON(s.recordPath(r.Digest), &old); {
	case err == nil && old.Origin == r.Origin:
		return nil
	case err == nil:
		r.CreatedAt, r.Owner = old.CreatedAt, old.Owner
	case errors.Is(err, fs.ErrNotExist):
		r.CreatedAt = time.Now().UTC()
	default:
		return err
	}
	return s.writeJSON(st, s.recordPath(r.Digest), r)
}

// identity returns the UUID of the image's file system. It is derived from the properties
// that are not in the tree, so that images that differ only in these have different
// digests.
func (r record) identity() (id [16]byte, err error) {
	b, err := json.Marshal(struct {
		Arch   string
		Config sandbox.ImageConfig
	}{r.Arch, r.Config})
	sum := sha256.Sum256(b)
	copy(id[:], sum[:])
	return id, err
}

func readJSON(path string, v any) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	return nil
}

// writeJSON replaces path atomically.
func (s *Store) writeJSON(st *staging, path string, v any) error {
	b, err := json.MarshalIndent(v, "", "\t")
	if err != nil {
		return err
	}
	f, err := st.create("json")
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Write(append(b, '\n')); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
