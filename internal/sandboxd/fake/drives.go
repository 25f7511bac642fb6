package fake

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd/machine"
)

// drives are the open archives of a machine's saved drives, by mount path.
type drives map[string]*os.File

func (d drives) close() {
	for _, f := range d {
		f.Close()
	}
}

// openDrives opens the saved content of spec's drives.
func openDrives(ctx context.Context, spec machine.Spec) (drives, error) {
	open := drives{}
	for _, m := range spec.Mounts {
		switch {
		case m.Drive == nil:
			continue
		case m.Source != "" || m.Drive.SizeMB <= 0:
			open.close()
			return nil, cay.Errorf(cay.Invalid, "the drive at %s has an image %q or a size of %d MB", m.Target, m.Source, m.Drive.SizeMB)
		case m.Drive.From == "":
			continue
		}
		s, f, err := openState(ctx, m.Drive.From)
		if err == nil && len(s.Mounts) != 1 {
			f.Close()
			err = cay.Errorf(cay.Conflict, "what was saved for it is the root of a machine")
		}
		if err != nil {
			open.close()
			return nil, fmt.Errorf("drive at %s: %w", m.Target, err)
		}
		open[m.Target] = f
	}
	return open, nil
}

// mountDrive creates a directory for a drive, with the content of saved if that is not
// nil.
func mountDrive(root string, mnt machine.Mount, saved *os.File) error {
	target := filepath.Join(root, mnt.Target)
	if err := os.Remove(target); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return cay.Errorf(cay.Invalid, "a drive would hide what is at %s: %w", mnt.Target, err)
	}
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		return err
	}
	if saved == nil {
		return os.Mkdir(target, 0o755)
	}
	info, err := saved.Stat()
	if err != nil {
		return err
	}
	if info.Size() > mnt.Drive.SizeMB<<20 {
		return cay.Errorf(cay.TooLarge, "the drive at %s has %d bytes, more than %d MB", mnt.Target, info.Size(), mnt.Drive.SizeMB)
	}
	return unpack(target, io.NewSectionReader(saved, 0, info.Size()))
}

// checkDrive returns an error unless p.Mounts is empty or the path of a writable drive.
func (i *instance) checkDrive(p machine.SaveParams) error {
	if len(p.Mounts) > 1 || len(p.Images) > 0 {
		return cay.Errorf(cay.Invalid, "drives are saved one by one and have no images; %q with %d images were to be", p.Mounts, len(p.Images))
	}
	all := i.m.spec.Drives()
	at := slices.IndexFunc(all, func(d machine.StateDrive) bool { return d.Target == p.Mounts[0] })
	switch {
	case at < 0:
		return cay.Errorf(cay.Invalid, "the machine has no drive at %s", p.Mounts[0])
	case all[at].ReadOnly:
		return cay.Errorf(cay.Invalid, "the drive at %s is read-only: there is nothing to save", p.Mounts[0])
	}
	return nil
}
