package gvisor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/internal/sandboxd/pages"
)

// baseName is the name that a pager knows the map of a base by.
const baseName = "base.map"

// baseDisk is an earlier state of a disk, of which a new state shares parts. A nil *baseDisk
// shares nothing.
type baseDisk struct {
	dir   string // of the new state
	state *machine.State
	// parts are names of parts that dir has as hard links, until used has removed those
	// without a block of the new state.
	parts []string
	m     *os.File // the map
}

// openBase links the parts of p.Base into p.Dir that the new state may share. It returns nil
// if there is nothing to share. On failure it removes the links.
func openBase(p machine.SaveParams) (_ *baseDisk, err error) {
	if p.Base == "" {
		return nil, nil
	}
	b := &baseDisk{dir: p.Dir}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("share pages with %s: %w", filepath.Base(p.Base), err), b.discard())
			b.close()
		}
	}()
	if b.state, err = machine.ReadState(p.Base); err != nil {
		return nil, err
	}
	if b.state.Kind != machine.DiskState || b.state.Runtime != runtimeName || b.state.File(pages.MapName) == nil {
		return nil, nil // an earlier build saved it
	}
	fd, err := unix.Open(filepath.Join(p.Base, pages.MapName), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open map: %w", err)
	}
	b.m = os.NewFile(uintptr(fd), baseName)
	m, err := pages.ParseFile(b.m)
	if err != nil {
		return nil, err
	}
	for _, part := range m.Shared() {
		if b.state.File(part.Name) == nil {
			return nil, fmt.Errorf("the map names %s, and the state does not", part.Name)
		}
		if err := os.Link(filepath.Join(p.Base, part.Name), filepath.Join(p.Dir, part.Name)); err != nil {
			return nil, err
		}
		b.parts = append(b.parts, part.Name)
	}
	return b, nil
}

// file returns the map, as a file for a pager.
func (b *baseDisk) file() []*os.File {
	if b == nil {
		return nil
	}
	return []*os.File{b.m}
}

// used returns the shared files of a state with a map, and removes the links of the others.
func (b *baseDisk) used(mapFile *os.File) ([]machine.StateFile, error) {
	m, err := pages.ParseFile(mapFile)
	if err != nil || b == nil {
		return nil, err
	}
	var shared []machine.StateFile
	for _, name := range slices.Clone(b.parts) {
		if slices.ContainsFunc(m.Parts, func(p pages.Part) bool { return p.Name == name }) {
			shared = append(shared, *b.state.File(name))
			continue
		}
		if err := os.Remove(filepath.Join(b.dir, name)); err != nil {
			return nil, err
		}
		b.parts = slices.DeleteFunc(b.parts, func(p string) bool { return p == name })
	}
	return shared, nil
}

// discard removes the links.
func (b *baseDisk) discard() error {
	if b == nil {
		return nil
	}
	var errs []error
	for _, name := range b.parts {
		errs = append(errs, os.Remove(filepath.Join(b.dir, name)))
	}
	b.parts = nil
	return errors.Join(errs...)
}

func (b *baseDisk) close() {
	if b != nil && b.m != nil {
		b.m.Close()
	}
}
