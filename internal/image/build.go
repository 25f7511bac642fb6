package image

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/image/rootfs"
	"github.com/cayhq/cay/sandbox"
)

// DefaultRef is the name of the default image; "" and "default" mean it, too.
const DefaultRef = "debian"

// Sources of images, as in sandbox.Image.
const (
	SourceDebian   = "debian"
	SourceRuntime  = "runtime"
	SourceOCI      = "oci"
	SourceImport   = "import"
	SourceSnapshot = "snapshot"
)

// RuntimeDir is where in a sandbox a runtime is mounted. Its programs are in bin.
func RuntimeDir(name string) string { return "/vercel/runtimes/" + name }

// IsRuntime reports whether name is a runtime Build can make.
func IsRuntime(name string) bool {
	r, ok := recipes[name]
	return ok && r.source == SourceRuntime
}

// IsBuilt reports whether a reference names an image that Build makes.
func IsBuilt(ref string) bool {
	_, ok := recipes[ref]
	return ok || ref == "" || ref == "default"
}

// IsDigest reports whether a reference is the digest of an image in a store.
func IsDigest(ref string) bool {
	_, ok := parseDigest(ref)
	return ok
}

// Runtimes returns the names of all runtimes.
func Runtimes() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(recipes)), func(n string) bool { return !IsRuntime(n) })
}

// CheckRoot returns an error, invalid, if an image cannot be the root file system of a
// sandbox because it is a runtime's image.
func CheckRoot(img *sandbox.Image) error {
	if img.Source != SourceRuntime {
		return nil
	}
	name := img.Digest
	if len(img.Refs) > 0 {
		name = img.Refs[0]
	}
	return cay.Errorf(cay.Invalid, "%s is a runtime, not an image to start from", name).
		WithHint("ask for it as the runtime instead: --runtime %s", name)
}

// recipe makes an image that does not come from outside.
type recipe struct {
	source string
	config sandbox.ImageConfig
	build  func(*builder, context.Context) error
	inputs []any // inputs of build other than the code; see fingerprint
}

// fingerprint changes when the recipe's result, with the given packages added, may have
// changed.
func (r recipe) fingerprint(packages []string) string {
	inputs := r.inputs
	if len(packages) > 0 {
		inputs = append(slices.Clone(inputs), packages)
	}
	return "recipe:" + hashKey(fmt.Sprint(r.config, inputs))
}

// buildTime is the constant time of files that cay writes into images itself, so that
// equal content has the same digest.
var buildTime = time.Unix(0, 0)

// builder has the state that a recipe works with.
type builder struct {
	*Store
	staging  *staging
	tree     *rootfs.Tree
	progress func(sandbox.ImageProgress)
	packages []string // to add to the default image
}

var recipes = map[string]recipe{
	DefaultRef: {SourceDebian, debianConfig, (*builder).debian, []any{debianSuite, debianPackages, debianOptions, string(debianScript)}},

	"node22":     nodeRecipe(node22),
	"node24":     nodeRecipe(node24),
	"node26":     nodeRecipe(node26),
	"python3.13": {source: SourceRuntime, build: (*builder).python, inputs: []any{pythonLinks}},
}

// Build makes one of cay's own images, again if it exists already: "debian", or one of
// Runtimes. Concurrent requests for the same image share the work, also across processes.
// Errors: not_found (no such recipe), not_supported (a program is missing), unavailable
// (a mirror or registry), no_space.
func (s *Store) Build(ctx context.Context, name string, progress func(sandbox.ImageProgress)) (*sandbox.Image, error) {
	l, err := s.build(ctx, name, nil, progress, time.Now())
	if err != nil {
		return nil, err
	}
	defer l.Release()
	return &l.Image, nil
}

// packageName matches names of Debian packages, and nothing that mmdebstrap or apt would
// take for an option, a pattern or several names.
var packageName = regexp.MustCompile(`^[a-z0-9][a-z0-9+.-]+$`)

// maxPackages is how many packages may be added to the default image.
const maxPackages = 200

// checkPackages checks the names of packages that are added to the default image. Errors:
// invalid.
func checkPackages(packages []string) error {
	if len(packages) > maxPackages {
		return cay.Errorf(cay.Invalid, "%d packages are more than %d", len(packages), maxPackages)
	}
	for _, p := range packages {
		if !packageName.MatchString(p) {
			return cay.Errorf(cay.Invalid, "%.100q is not the name of a Debian package", p).WithHint("names are of lower-case letters, digits, and + - .")
		}
	}
	return nil
}

// BuildDefault makes the default image anew, with Debian packages added to its own.
// Errors: as Build; invalid (a name), not_found (Debian has no such package), conflict (the
// image was made at the same time with other packages).
func (s *Store) BuildDefault(ctx context.Context, packages []string, progress func(sandbox.ImageProgress)) (*sandbox.Image, error) {
	if err := checkPackages(packages); err != nil {
		return nil, err
	}
	packages = slices.Compact(slices.Sorted(slices.Values(packages)))
	l, err := s.build(ctx, DefaultRef, packages, progress, time.Now())
	if err != nil {
		return nil, err
	}
	defer l.Release()
	// Concurrent calls share the work of one of them.
	if !slices.Equal(l.Image.Packages, packages) {
		return nil, cay.Errorf(cay.Conflict, "the image was made at the same time with other packages").WithHint("try again")
	}
	return &l.Image, nil
}

// build builds name unless it was built since. packages are added to the default image.
func (s *Store) build(ctx context.Context, name string, packages []string, progress func(sandbox.ImageProgress), since time.Time) (*Lease, error) {
	s = s.installation() // built images belong to the installation, whoever calls first
	if name == "" || name == "default" {
		name = DefaultRef
	}
	r, ok := recipes[name]
	if !ok {
		known := slices.Sorted(maps.Keys(recipes))
		return nil, cay.Errorf(cay.NotFound, "cay cannot build an image %q", name).
			WithHint("it can build %s", strings.Join(known, ", "))
	}
	return s.make(ctx, name, progress, since, func(ctx context.Context, st *staging, report func(sandbox.ImageProgress)) (*Lease, error) {
		tree, free, err := s.newTree(st)
		if err != nil {
			return nil, err
		}
		defer free()
		if err := r.build(&builder{s, st, tree, report, packages}, ctx); err != nil {
			return nil, err
		}
		return s.commit(ctx, st, tree, name, record{Source: r.source, Arch: s.opts.Arch, Origin: r.fingerprint(packages), Config: r.config, Packages: packages})
	})
}

// make puts the image name into the store. Concurrent calls, in all goroutines and
// processes, share the work. If another process made the image after since, make uses
// that image.
func (s *Store) make(ctx context.Context, name string, progress func(sandbox.ImageProgress), since time.Time,
	work func(context.Context, *staging, func(sandbox.ImageProgress)) (*Lease, error)) (*Lease, error) {
	return s.do(ctx, s.key(name), progress, func(ctx context.Context, report func(sandbox.ImageProgress)) (lease *Lease, err error) {
		unlock, err := s.lockKey(ctx, s.key(name), func() {
			report(sandbox.ImageProgress{Phase: "resolve", Item: "another process is making " + name})
		})
		if err != nil {
			return nil, err
		}
		defer unlock()
		if made, ok := s.refTime(name); ok && made.After(since) {
			return s.Acquire(ctx, name)
		}
		st, err := s.newStaging()
		if err != nil {
			return nil, err
		}
		defer st.closeInto(&err)
		lease, err = work(ctx, st, report)
		if err != nil {
			return nil, err
		}
		img := lease.Image
		report(sandbox.ImageProgress{Phase: "done", Item: name, Current: img.SizeBytes, Total: img.SizeBytes, Image: &img})
		return lease, nil
	})
}

// Outdated reports whether the store has an image that an earlier version of cay built.
// Ensure does not rebuild an outdated image: the image that sandboxes start from changes
// only when the user asks for it. Errors: not_found.
func (s *Store) Outdated(ctx context.Context, name string) (bool, error) {
	img, err := s.Get(ctx, name)
	if err != nil {
		return false, err
	}
	if name, err = s.canonical(name); err != nil {
		return false, err
	}
	r, ok := recipes[name]
	if !ok {
		return false, nil
	}
	var rec record
	if err := readJSON(s.recordPath(rootfs.Digest(img.Digest)), &rec); err != nil {
		return false, err
	}
	return rec.Origin != r.fingerprint(rec.Packages), nil
}

// Ensure leases an image, and builds or pulls it first if it is not in the store. Errors:
// as Acquire, Build and Pull, except not_found for an image that it can make.
func (s *Store) Ensure(ctx context.Context, ref string, progress func(sandbox.ImageProgress)) (*Lease, error) {
	l, err := s.Acquire(ctx, ref)
	if cay.CodeOf(err) != cay.NotFound {
		return l, err
	}
	name, err := s.canonical(ref)
	if err != nil {
		return nil, err
	}
	if _, ok := parseDigest(name); ok {
		return nil, s.notFound(ref) // no telling where it came from
	}
	// An image that another caller made while we waited for the lock is good, whatever
	// its age.
	var anyTime time.Time
	if _, ok := recipes[name]; ok {
		return s.build(ctx, name, nil, progress, anyTime)
	}
	return s.pull(ctx, name, progress, anyTime)
}
