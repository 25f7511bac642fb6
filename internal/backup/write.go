package backup

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/blob"
	"github.com/cayhq/cay/internal/db"
	"github.com/cayhq/cay/internal/flock"
)

// Source is a data directory to back up.
type Source struct {
	Dir string
	// Databases are copied in this order.
	Databases []Database
	Stores    []Store
	// Needed returns the blobs that must be in the backup, by the names of their stores.
	// It reads them from the states of the databases, by name.
	Needed func(ctx context.Context, states map[string]*db.State) (map[string][]string, error)
	// Files and Keys are names of files in Dir, Keys also in a directory below it. Missing
	// files are left out. Keys are written only if there is a passphrase.
	Files, Keys []string
	// Images lists the images, and with content also the files of the image store, which
	// stay until release is called.
	Images func(ctx context.Context, content bool) (images []Image, files map[string]string, release func(), err error)
	// Key identifies the key of sealed values.
	Key string
	// Left says in words which parts of the installation the Source does not have.
	Left []string
}

// Database is a SQLite database.
type Database struct{ Name, File string }

// Store is a store of blobs.
type Store struct {
	Name string
	Blob blob.Store
}

// Options are the choices of the user.
type Options struct {
	Images     bool   // with the content of images
	Passphrase string // seals the keys; empty: without keys
	// WorkFactor is the logarithm of the work of scrypt. 0: the default of age.
	WorkFactor int
}

// Result describes a backup that was written.
type Result struct {
	Header
	Manifest
	Size int64 `json:"size"` // of the file, in bytes
}

// Write writes a backup of src to w. Errors: conflict (another backup is being made, an
// unfinished restore, blobs change too fast), no_space.
func Write(ctx context.Context, w io.Writer, src Source, o Options) (_ *Result, err error) {
	if err := Unfinished(src.Dir); err != nil {
		return nil, err
	}
	work, done, err := workDir(src.Dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, done()) }()
	images, imageFiles, release, err := src.Images(ctx, o.Images)
	if err != nil {
		return nil, err
	}
	defer release()
	p := &pins{src: src, leases: map[string]*blob.Lease{}}
	defer p.release()
	if err := p.take(ctx); err != nil {
		return nil, err
	}
	out := newWriter(w)
	h := Header{
		Format: format, Version: cay.Version(), CreatedAt: time.Now().UTC().Truncate(time.Second), Left: src.Left,
		Images: o.Images, Keys: o.Passphrase != "", Key: src.Key,
	}
	for _, d := range src.Databases {
		h.Databases = append(h.Databases, d.Name)
	}
	if err := out.json(headerName, h); err != nil {
		return nil, err
	}
	for _, d := range src.Databases {
		file := filepath.Join(work, d.Name+".db")
		if err := p.states[d.Name].CopyTo(ctx, file); err != nil {
			return nil, err
		}
		// The log of the database can shrink again.
		if err := p.closeState(d.Name); err != nil {
			return nil, err
		}
		if err := out.file(ctx, databaseDir+d.Name+".db", file); err != nil {
			return nil, err
		}
		if err := os.Remove(file); err != nil {
			return nil, err
		}
	}
	if err := p.write(ctx, out); err != nil {
		return nil, err
	}
	for _, name := range src.Files {
		if err := out.file(ctx, fileDir+name, filepath.Join(src.Dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(imageFiles)) {
		err := out.file(ctx, imageDir+name, imageFiles[name])
		if errors.Is(err, fs.ErrNotExist) && strings.HasPrefix(name, "refs/") {
			continue // the name was removed meanwhile
		}
		if err != nil {
			return nil, err
		}
	}
	m := Manifest{Parts: out.parts, Images: images, Missing: p.missing}
	if err := out.end(m, src, o); err != nil {
		return nil, err
	}
	return &Result{Header: h, Manifest: m, Size: out.n}, nil
}

// workName is the directory in the data directory with the copies of databases.
const workName = "backup"

// workDir makes the directory for working files. It removes files that a backup has left
// behind whose process died.
func workDir(dir string) (path string, done func() error, err error) {
	path = filepath.Join(dir, workName)
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", nil, cay.Errorf(cay.Invalid, "cannot write to the data directory: %w", err).
			WithHint("back up as the user that the daemon runs as")
	}
	f, err := os.Open(path)
	if err != nil {
		return "", nil, err
	}
	if err := flock.Lock(f, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if err == flock.ErrLocked {
			err = cay.Errorf(cay.Conflict, "another backup of %s is being made", dir).WithHint("wait until it is done")
		}
		return "", nil, err
	}
	clear := func() error {
		entries, err := os.ReadDir(path)
		for _, e := range entries {
			err = errors.Join(err, os.Remove(filepath.Join(path, e.Name())))
		}
		return err
	}
	if err := clear(); err != nil {
		return "", nil, errors.Join(err, flock.Close(f))
	}
	return path, func() error { return errors.Join(clear(), os.Remove(path), flock.Close(f)) }, nil
}

// maxRounds bounds how often the states are taken again because rows refer to newer blobs.
const maxRounds = 20

// pins are the states of databases, with leases on all blobs that they refer to.
type pins struct {
	src     Source
	leases  map[string]*blob.Lease // by store/name
	states  map[string]*db.State
	needed  []string // store/name, sorted
	missing []string
}

func (p *pins) take(ctx context.Context) error {
	for _, s := range p.src.Stores {
		all, err := s.Blob.List(ctx, blob.ListOptions{})
		if err != nil {
			return err
		}
		for _, b := range all {
			if _, err := p.lease(ctx, s, b.Name); err != nil {
				return err
			}
		}
	}
	var before []string
	for range maxRounds {
		if err := p.takeStates(ctx); err != nil {
			return err
		}
		var without []string
		for _, name := range p.needed {
			if p.leases[name] == nil {
				without = append(without, name)
			}
		}
		// A blob that is missing in two rounds has no files; another blob is new.
		if slices.Equal(without, before) {
			p.missing = without
			return nil
		}
		before = without
		for _, name := range without {
			store, blobName, _ := strings.Cut(name, "/")
			i := slices.IndexFunc(p.src.Stores, func(s Store) bool { return s.Name == store })
			if i < 0 {
				return fmt.Errorf("there is no store %q", store)
			}
			if _, err := p.lease(ctx, p.src.Stores[i], blobName); err != nil {
				return err
			}
		}
	}
	return cay.Errorf(cay.Conflict, "snapshots and drives change so fast that they cannot be backed up").WithHint("try again")
}

// lease leases a blob unless it is leased already or does not exist.
func (p *pins) lease(ctx context.Context, s Store, name string) (bool, error) {
	key := s.Name + "/" + name
	if p.leases[key] != nil {
		return true, nil
	}
	l, err := s.Blob.Local(ctx, name)
	if c := cay.CodeOf(err); err != nil && (c == cay.NotFound || c == cay.Conflict) {
		return false, nil // it was deleted meanwhile, or has lost its files
	}
	if errors.Is(err, unix.EMFILE) {
		return false, cay.Errorf(cay.Unavailable, "there are more snapshots and drives than files that a process may open").
			WithHint("raise the limit of open files: ulimit -n")
	}
	if err != nil {
		return false, err
	}
	p.leases[key] = l
	return true, nil
}

func (p *pins) takeStates(ctx context.Context) error {
	if err := p.closeStates(); err != nil {
		return err
	}
	p.states = map[string]*db.State{}
	for _, d := range p.src.Databases {
		s, err := db.OpenState(ctx, d.File)
		if err != nil {
			return err
		}
		p.states[d.Name] = s
	}
	needed, err := p.src.Needed(ctx, p.states)
	if err != nil {
		return err
	}
	p.needed = nil
	for store, names := range needed {
		for _, name := range names {
			p.needed = append(p.needed, store+"/"+name)
		}
	}
	slices.Sort(p.needed)
	p.needed = slices.Compact(p.needed)
	return nil
}

func (p *pins) closeState(name string) error {
	s := p.states[name]
	delete(p.states, name)
	return s.Close()
}

func (p *pins) closeStates() error {
	var errs []error
	for name := range p.states {
		errs = append(errs, p.closeState(name))
	}
	return errors.Join(errs...)
}

func (p *pins) release() {
	_ = p.closeStates() // they were only read
	for _, l := range p.leases {
		l.Release()
	}
}

// write writes the files of all needed blobs.
func (p *pins) write(ctx context.Context, out *writer) error {
	for _, name := range p.needed {
		l := p.leases[name]
		if l == nil {
			continue
		}
		err := filepath.WalkDir(l.Dir, func(path string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() {
				return err
			}
			file, err := filepath.Rel(l.Dir, path)
			if err != nil {
				return err
			}
			return out.file(ctx, blobDir+name+"/"+filepath.ToSlash(file), path)
		})
		if err != nil {
			return err
		}
		l.Release()
		delete(p.leases, name)
	}
	return nil
}

// writer writes the parts of a backup.
type writer struct {
	out   io.Writer
	tar   *tar.Writer
	sum   hash.Hash // of all bytes
	n     int64     // bytes written
	parts []Part
	time  time.Time
}

func newWriter(out io.Writer) *writer {
	w := &writer{out: out, sum: sha256.New(), time: time.Now().Truncate(time.Second)}
	w.tar = tar.NewWriter(w)
	return w
}

// Write implements io.Writer for the tar.
func (w *writer) Write(p []byte) (int, error) {
	n, err := w.out.Write(p)
	w.sum.Write(p[:n])
	w.n += int64(n)
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		err = cay.Errorf(cay.NoSpace, "the disk for the backup is full: %w", err)
	}
	return n, err
}

// part writes a part of size bytes, and returns its sum.
func (w *writer) part(name string, size int64, r io.Reader) (sum string, err error) {
	if err := w.tar.WriteHeader(&tar.Header{Name: name, Size: size, Mode: 0o600, ModTime: w.time, Typeflag: tar.TypeReg}); err != nil {
		return "", err
	}
	h := sha256.New()
	n, err := io.Copy(io.MultiWriter(w.tar, h), r)
	if err == nil && n != size {
		err = fmt.Errorf("%s has %d bytes, and had %d", name, n, size)
	}
	return hex.EncodeToString(h.Sum(nil)), err
}

func (w *writer) json(name string, v any) error {
	b, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		return err
	}
	_, err = w.part(name, int64(len(b)), bytes.NewReader(b))
	return err
}

// file writes a file as a part that is listed in the manifest.
func (w *writer) file(ctx context.Context, name, path string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := checkName(name); err != nil {
		return err
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	sum, err := w.part(name, info.Size(), io.LimitReader(readerWithContext{ctx, f}, info.Size()))
	w.parts = append(w.parts, Part{name, info.Size(), sum})
	return err
}

type readerWithContext struct {
	ctx context.Context
	r   io.Reader
}

func (r readerWithContext) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(p)
}

// end writes the manifest, the keys and the last line.
func (w *writer) end(m Manifest, src Source, o Options) error {
	b, err := json.MarshalIndent(m, "", " ")
	if err != nil {
		return err
	}
	sum, err := w.part(manifestName, int64(len(b)), bytes.NewReader(b))
	if err != nil {
		return err
	}
	if o.Passphrase != "" {
		k := sealedKeys{Manifest: sum, Files: map[string][]byte{}}
		for _, name := range src.Keys {
			content, err := os.ReadFile(filepath.Join(src.Dir, name))
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return err
			}
			k.Files[name] = content
		}
		sealed, err := seal(k, o)
		if err != nil {
			return err
		}
		if _, err := w.part(keysName, int64(len(sealed)), bytes.NewReader(sealed)); err != nil {
			return err
		}
	}
	if err := w.tar.Close(); err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%s%x\n", endPrefix, w.sum.Sum(nil))
	return err
}
