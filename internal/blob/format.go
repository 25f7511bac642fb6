package blob

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/flock"
)

// migrations lead from one version of a directory's layout to the next: the first turns
// version 1 into version 2. A migration that is interrupted at any point is run again
// from its beginning.
//
// To change the layout: append a migration, keep an old directory in testdata and test
// that it opens.
var migrations = []func(dir string) error{}

// versionFile has the version of a directory's layout. A migration writes it last.
const versionFile = "version.json"

type version struct {
	Version int `json:"version"`
}

// migrate brings a directory, possibly empty, to the current version of the layout.
// Meanwhile no other process can open the directory.
func migrate(dir string, migrations []func(dir string) error) error {
	gate, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer flock.Close(gate)
	if err := flock.Lock(gate, unix.LOCK_EX); err != nil {
		return err
	}
	current := 1 + len(migrations)
	v, err := readVersion(dir)
	if err != nil {
		return err
	}
	switch {
	case v.Version == 0: // new
		return writeVersion(dir, current)
	case v.Version < 0:
		return fmt.Errorf("%s has the version %d", filepath.Join(dir, versionFile), v.Version)
	case v.Version > current:
		return cay.Errorf(cay.NotSupported, "%s was written by a newer cay: its format has version %d, and this one knows %d", dir, v.Version, current).
			WithHint("use the newer cay, or another data directory")
	}
	for ; v.Version < current; v.Version++ {
		if err := migrations[v.Version-1](dir); err != nil {
			return fmt.Errorf("migrate %s from version %d to %d: %w", dir, v.Version, v.Version+1, diskError(err))
		}
		if err := writeVersion(dir, v.Version+1); err != nil {
			return err
		}
	}
	return nil
}

func readVersion(dir string) (v version, err error) {
	path := filepath.Join(dir, versionFile)
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return v, nil
	}
	if err != nil {
		return v, err
	}
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&v); err != nil {
		return v, fmt.Errorf("read %s: %w", path, err)
	}
	if v.Version == 0 {
		return v, fmt.Errorf("read %s: no version", path)
	}
	return v, nil
}

func writeVersion(dir string, v int) error {
	b, err := json.Marshal(version{v})
	if err != nil {
		return err
	}
	temp := filepath.Join(dir, versionFile+".new") // the lock excludes other processes
	if err := os.WriteFile(temp, append(b, '\n'), 0o600); err != nil {
		return diskError(err)
	}
	if err := syncPath(temp); err != nil {
		return diskError(err)
	}
	if err := os.Rename(temp, filepath.Join(dir, versionFile)); err != nil {
		return diskError(err)
	}
	return syncPath(dir)
}
