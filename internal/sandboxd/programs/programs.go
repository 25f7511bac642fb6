// Package programs keeps the programs that saved memory needs: the memory of a machine is
// a state of its sentry's program, and has the guest's program mapped, so that only these
// two continue it. A daemon of another version restores the memory with the kept programs.
//
// A program is a blob whose name is its ID. A program is stored before the state that
// needs it is recorded, and Collect removes it when no recorded state needs it and nobody
// holds it. The package knows neither machines nor rows.
package programs

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"syscall"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/blob"
)

// file is the name of the only file of a blob.
const file = "program"

// Store keeps programs. Its methods may be called concurrently. No other Store may use its
// blobs.
type Store struct {
	blobs blob.Store

	mu   sync.Mutex     // guards what follows; held while programs are removed
	held map[string]int // holders, by ID
	free func()         // called when a program has no holder any more
}

// New returns a Store over blobs.
func New(b blob.Store) *Store {
	return &Store{blobs: b, held: make(map[string]int), free: func() {}}
}

// OnFree sets a function that is called when a program loses its last holder. Call it
// before other methods.
func (s *Store) OnFree(f func()) { s.free = f }

// Hold keeps Collect from removing programs until release is called. The programs need not
// exist.
func (s *Store) Hold(ids ...string) (release func()) {
	s.mu.Lock()
	for _, id := range ids {
		s.held[id]++
	}
	s.mu.Unlock()
	return sync.OnceFunc(func() {
		last := false
		s.mu.Lock()
		for _, id := range ids {
			if s.held[id]--; s.held[id] == 0 {
				delete(s.held, id)
				last = true
			}
		}
		s.mu.Unlock()
		if last {
			s.free()
		}
	})
}

// Add stores the program in from, whose ID is id, unless it is stored already. When Add
// returns, the program survives a power cut. The caller holds it. Errors: no_space.
func (s *Store) Add(ctx context.Context, id string, from *os.File) error {
	switch _, err := s.blobs.Stat(ctx, id); cay.CodeOf(err) {
	case "":
		return nil
	case cay.NotFound:
	default:
		return fmt.Errorf("look for program %s: %w", id, err)
	}
	info, err := from.Stat()
	if err != nil {
		return fmt.Errorf("keep program: %w", err)
	}
	d, err := s.blobs.Create(ctx, info.Size())
	if err != nil {
		return fmt.Errorf("keep program: %w", err)
	}
	if err := s.write(ctx, d, id, io.NewSectionReader(from, 0, info.Size())); err != nil {
		return errors.Join(fmt.Errorf("keep program %s: %w", id, err), d.Abort())
	}
	return nil
}

func (s *Store) write(ctx context.Context, d blob.Draft, id string, from io.Reader) error {
	w, err := d.Writer(file)
	if err != nil {
		return err
	}
	sum := sha256.New()
	_, err = io.Copy(io.MultiWriter(w, sum), from)
	if err := errors.Join(err, w.Close()); err != nil {
		return err
	}
	if got := nameOf(sum.Sum(nil)); got != id {
		return fmt.Errorf("its file has changed, and is %s now", got)
	}
	if _, err = d.Commit(ctx, id); cay.CodeOf(err) == cay.AlreadyExists {
		return d.Abort() // another caller was faster
	}
	return err
}

// Path returns the path of a program, which may be executed. The caller holds the program.
// Errors: not_found; conflict if it is damaged.
func (s *Store) Path(ctx context.Context, id string) (string, error) {
	if !validID().MatchString(id) {
		return "", cay.Errorf(cay.NotFound, "%.100q is not the id of a program", id)
	}
	l, err := s.blobs.Local(ctx, id)
	if err != nil {
		return "", fmt.Errorf("find program %s: %w", id, err)
	}
	defer l.Release()
	path := filepath.Join(l.Dir, file)
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("open program %s: %w", id, err)
	}
	defer f.Close()
	got, err := ID(f)
	if err != nil {
		return "", err
	}
	if got != id {
		return "", cay.Errorf(cay.Conflict, "program %s is damaged on the disk", id).WithHint("restore the data directory from a backup")
	}
	// The store makes files that only their owner reads. A sentry is nobody when it
	// executes the program.
	if err := f.Chmod(0o555); err != nil {
		return "", fmt.Errorf("make program %s executable: %w", id, err)
	}
	return path, nil
}

// Collect removes the programs that are neither held nor in needed, and returns their IDs.
func (s *Store) Collect(ctx context.Context, needed map[string]bool) (removed []string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all, err := s.blobs.List(ctx, blob.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list programs: %w", err)
	}
	for _, p := range all {
		if needed[p.Name] || s.held[p.Name] > 0 {
			continue
		}
		if err := s.blobs.Delete(ctx, p.Name); err != nil && cay.CodeOf(err) != cay.NotFound {
			return removed, fmt.Errorf("remove program %s: %w", p.Name, err)
		}
		removed = append(removed, p.Name)
	}
	if _, err := s.blobs.Clean(ctx, 0); err != nil { // of processes that died
		return removed, fmt.Errorf("remove parts of programs: %w", err)
	}
	return removed, nil
}

// version is what identifies a file whose content does not change.
type version struct {
	dev, ino    uint64
	size, mtime int64
}

// maxKnown bounds the IDs that are remembered.
const maxKnown = 64

var known = struct {
	sync.Mutex
	ids map[version]string
}{ids: make(map[version]string)}

// ID returns the ID of the program in f: 32 characters, 0-9 and a-f, of the SHA-256 of its
// content. It reads a file once: programs are never written again.
func ID(f *os.File) (string, error) {
	info, err := f.Stat()
	if err != nil {
		return "", fmt.Errorf("identify program: %w", err)
	}
	var v version
	st, ok := info.Sys().(*syscall.Stat_t)
	if ok {
		v = version{uint64(st.Dev), st.Ino, info.Size(), info.ModTime().UnixNano()}
		known.Lock()
		id := known.ids[v]
		known.Unlock()
		if id != "" {
			return id, nil
		}
	}
	sum := sha256.New()
	if _, err := io.Copy(sum, io.NewSectionReader(f, 0, info.Size())); err != nil {
		return "", fmt.Errorf("identify program: %w", err)
	}
	id := nameOf(sum.Sum(nil))
	if ok {
		known.Lock()
		if len(known.ids) >= maxKnown {
			clear(known.ids)
		}
		known.ids[v] = id
		known.Unlock()
	}
	return id, nil
}

func nameOf(sum []byte) string { return hex.EncodeToString(sum[:16]) }

// validID is compiled at first use, so never in a helper process.
var validID = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[0-9a-f]{32}$`) })

// Pair are the IDs of the programs of a machine.
type Pair struct{ Sentry, Guest string }

// String returns the form of a Pair in states and rows.
func (p Pair) String() string { return p.Sentry + "." + p.Guest }

// ParsePair is the inverse of String; ok is false for other texts.
func ParsePair(text string) (p Pair, ok bool) {
	const n = 32
	if len(text) != 2*n+1 || text[n] != '.' {
		return Pair{}, false
	}
	p = Pair{text[:n], text[n+1:]}
	return p, validID().MatchString(p.Sentry) && validID().MatchString(p.Guest)
}
