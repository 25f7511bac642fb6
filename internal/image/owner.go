package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/image/rootfs"
	"github.com/cayhq/cay/sandbox"
)

// Owner identifies the owner of images, other than the installation, and bounds how much
// it may have. The zero value is the installation, which has no bounds.
type Owner struct {
	ID string
	// Bytes is how much disk its images may take, DayBytes how much it may download in a
	// day (UTC). 0: unlimited.
	Bytes, DayBytes int64
}

// For returns the store as owner o sees it. The view has the owner's names and, after
// these, the installation's names. It does not know the names of other owners, nor the
// digests for which neither has a name. Images that the owner puts into the store belong
// to the owner. Images that Build makes belong to the installation, whoever calls Build.
func (s *Store) For(o Owner) *Store {
	view := *s
	if o.ID != "" && !isFileName(o.ID) {
		o.ID = hashKey(o.ID)
	}
	view.owner = o
	return &view
}

func (s *Store) installation() *Store { return s.For(Owner{}) }

func (s *Store) owned() bool { return s.owner.ID != "" }

// isFileName reports whether an id is safe as a file name.
func isFileName(id string) bool {
	const allowed = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-"
	return len(id) <= 64 && strings.Trim(id, allowed) == ""
}

// key returns the key of work for a name. Different owners have different keys.
func (s *Store) key(name string) string {
	if !s.owned() {
		return name
	}
	return s.owner.ID + " " + name
}

// refDir returns the directory with the names that s's owner has given.
func (s *Store) refDir() string { return filepath.Join(s.dir, "refs", s.owner.ID) }

// names are the names of an image: given by the installation, and by an owner.
type names struct{ common, own []string }

// name puts the names into an image. If both have given a name, it stands for the owner's
// image.
func (n names) name(img *sandbox.Image) {
	img.Refs = slices.Concat(n.common, n.own)
	slices.Sort(img.Refs)
	img.TeamRefs = n.own
}

// refs reads all names that s sees, sorted, by the digest of their image.
func (s *Store) refs() (map[rootfs.Digest]names, error) {
	common, err := s.installation().ownRefs()
	if err != nil {
		return nil, err
	}
	var own map[string]rootfs.Digest
	if s.owned() {
		if own, err = s.ownRefs(); err != nil {
			return nil, err
		}
	}
	refs := map[rootfs.Digest]names{}
	for ref, d := range common {
		if _, hidden := own[ref]; !hidden {
			n := refs[d]
			n.common = append(n.common, ref)
			refs[d] = n
		}
	}
	for ref, d := range own {
		n := refs[d]
		n.own = append(n.own, ref)
		refs[d] = n
	}
	for _, n := range refs {
		slices.Sort(n.common)
		slices.Sort(n.own)
	}
	return refs, nil
}

// ownRefs reads the names that s's owner has given, with the digests of their images.
func (s *Store) ownRefs() (map[string]rootfs.Digest, error) {
	files, err := os.ReadDir(s.refDir())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	refs := make(map[string]rootfs.Digest, len(files))
	for _, f := range files {
		if f.IsDir() {
			continue // an owner's
		}
		var r refRecord
		err := readJSON(filepath.Join(s.refDir(), f.Name()), &r)
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed meanwhile
		}
		if err != nil {
			return nil, err
		}
		refs[r.Ref] = r.Digest
	}
	return refs, nil
}

// owners returns stores for the installation, and for all owners that have given names.
func (s *Store) owners() ([]*Store, error) {
	all := []*Store{s.installation()}
	entries, err := os.ReadDir(all[0].refDir())
	for _, e := range entries {
		if e.IsDir() {
			all = append(all, s.For(Owner{ID: e.Name()}))
		}
	}
	return all, err
}

// isNamed reports whether an image has a name, given by any owner.
func (s *Store) isNamed(d rootfs.Digest) (bool, error) {
	owners, err := s.owners()
	if err != nil {
		return false, err
	}
	for _, o := range owners {
		refs, err := o.ownRefs()
		if err != nil {
			return false, err
		}
		for _, named := range refs {
			if named == d {
				return true, nil
			}
		}
	}
	return false, nil
}

// checkVisible returns not_found for an image that s's owner may not see.
func (s *Store) checkVisible(ref string, d rootfs.Digest) error {
	if !s.owned() {
		return nil
	}
	refs, err := s.refs()
	if err != nil {
		return err
	}
	if _, ok := refs[d]; !ok {
		return s.notFound(ref)
	}
	return nil
}

// records reads the record of each image in the store.
func (s *Store) records() ([]record, error) {
	files, err := filepath.Glob(filepath.Join(s.dir, "images", "*.json"))
	if err != nil {
		return nil, err
	}
	var all []record
	for _, path := range files {
		var r record
		err := readJSON(path, &r)
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed meanwhile
		}
		if err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	return all, nil
}

// Used returns the bytes of disk that the owner's images take: images that the owner has
// a name for and the installation does not, and images that the owner added and that
// have no name any more, until they are removed.
func (s *Store) Used() (int64, error) {
	images, err := s.charged()
	return sum(images), err
}

// charged returns the size of each image that counts against the owner's quota.
func (s *Store) charged() (map[rootfs.Digest]int64, error) {
	common, err := s.installation().ownRefs()
	if err != nil {
		return nil, err
	}
	own, err := s.ownRefs()
	if err != nil {
		return nil, err
	}
	records, err := s.records()
	if err != nil {
		return nil, err
	}
	free := make(map[rootfs.Digest]bool, len(common))
	for _, d := range common {
		free[d] = true
	}
	mine := make(map[rootfs.Digest]bool, len(own))
	for _, d := range own {
		mine[d] = true
	}
	images := map[rootfs.Digest]int64{}
	for _, r := range records {
		if free[r.Digest] || !mine[r.Digest] && r.Owner != s.owner.ID {
			continue
		}
		if !mine[r.Digest] {
			named, err := s.isNamed(r.Digest)
			if err != nil {
				return nil, err
			}
			if named {
				continue // counts for the owner that has given the name
			}
		}
		info, err := os.Stat(s.imagePath(r.Digest))
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed meanwhile
		}
		if err != nil {
			return nil, err
		}
		images[r.Digest] = info.Size()
	}
	return images, nil
}

// charge makes room for an image of the owner. The caller gives the image a name before
// it calls done. Errors: quota_exceeded.
func (s *Store) charge(ctx context.Context, d rootfs.Digest, size int64) (done func(), err error) {
	if s.owned() {
		if err := os.MkdirAll(s.refDir(), 0o700); err != nil {
			return nil, diskError(err)
		}
	}
	if s.owner.Bytes == 0 {
		return func() {}, nil
	}
	unlock, err := s.lockKey(ctx, s.key("room"), nil)
	if err != nil {
		return nil, err
	}
	if err := s.makeRoom(ctx, d, size); err != nil {
		unlock()
		return nil, err
	}
	return unlock, nil
}

func (s *Store) makeRoom(ctx context.Context, d rootfs.Digest, size int64) error {
	images, err := s.charged()
	if err != nil {
		return err
	}
	delete(images, d)
	if sum(images)+size <= s.owner.Bytes {
		return nil
	}
	if err := s.collectUnnamed(ctx, images); err != nil {
		return err
	}
	if used := sum(images); used+size > s.owner.Bytes {
		return s.full(used, size)
	}
	return nil
}

func sum(images map[rootfs.Digest]int64) (bytes int64) {
	for _, size := range images {
		bytes += size
	}
	return bytes
}

// collectUnnamed removes images that have no name and are not in use, from the store and
// from the map.
func (s *Store) collectUnnamed(ctx context.Context, images map[rootfs.Digest]int64) error {
	for d := range images {
		freed, err := s.collect(ctx, d, false)
		if err != nil {
			return err
		}
		if freed > 0 {
			delete(images, d)
		}
	}
	return nil
}

func (s *Store) full(used, size int64) error {
	return cay.Errorf(cay.QuotaExceeded, "the team's images take %s of the %s they may, and this one would take %s",
		mebibytes(used), mebibytes(s.owner.Bytes), mebibytes(size)).
		WithHint("remove one that is not needed: cay image remove NAME")
}

func mebibytes(n int64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }

// limits returns the limits of an image that is made now. If the owner's quota has less
// space left than the general limit, that space is the limit.
func (s *Store) limits() (rootfs.Limits, error) {
	l := rootfs.Limits{Entries: s.opts.Limits.Entries, Bytes: s.opts.Limits.Bytes}
	if s.owner.Bytes == 0 {
		return l, nil
	}
	// Images that could be removed are not counted here; the final check, once the image
	// exists, counts them.
	own, err := s.ownRefs()
	if err != nil {
		return l, err
	}
	images, err := s.charged()
	if err != nil {
		return l, err
	}
	var used int64
	for _, d := range own {
		used += images[d]
		delete(images, d)
	}
	if left := max(s.owner.Bytes-used, 0); left < l.Bytes {
		l.Bytes = left
		l.Full = cay.Errorf(cay.QuotaExceeded, "the team's images take %s of the %s they may, and the files of this one do not fit in what is left",
			mebibytes(used), mebibytes(s.owner.Bytes)).WithHint("remove one that is not needed: cay image remove NAME")
	}
	return l, nil
}

// checkRoom refuses layers whose compressed size already exceeds the room. Errors:
// quota_exceeded.
func (s *Store) checkRoom(layers []v1.Descriptor) error {
	l, err := s.limits()
	if err != nil || l.Full == nil {
		return err
	}
	var bytes int64
	for _, layer := range layers {
		if bytes += layer.Size; bytes > l.Bytes {
			return l.Full
		}
	}
	return nil
}

// downloads counts an owner's downloads of a day.
type downloads struct {
	Day   string `json:"day"` // 2006-01-02, UTC
	Bytes int64  `json:"bytes"`
}

// countDownload adds layers to the owner's downloads of today, except layers that are
// here already. Errors: quota_exceeded.
func (s *Store) countDownload(ctx context.Context, st *staging, layers []v1.Descriptor) error {
	if !s.owned() {
		return nil
	}
	unlock, err := s.lockKey(ctx, s.key("downloads"), nil)
	if err != nil {
		return err
	}
	defer unlock()
	var bytes int64
	for _, l := range layers {
		if _, err := os.Stat(s.blobPath(blobDigest{l.Digest.Algorithm, l.Digest.Hex})); err != nil {
			bytes += l.Size
		}
	}
	path := filepath.Join(s.dir, "owners", s.owner.ID+".json")
	var d downloads
	if err := readJSON(path, &d); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if today := time.Now().UTC().Format(time.DateOnly); d.Day != today {
		d = downloads{Day: today}
	}
	if most := s.owner.DayBytes; most > 0 && bytes > most-d.Bytes {
		return cay.Errorf(cay.QuotaExceeded, "the team has downloaded %s of the %s that it may for images in a day, and this one has %s",
			mebibytes(d.Bytes), mebibytes(most), mebibytes(bytes)).
			WithHint("try again tomorrow (UTC), or ask who runs the installation for more")
	}
	d.Bytes += bytes
	return s.writeJSON(st, path, d)
}
