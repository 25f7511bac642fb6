package blob

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay"
)

const hintSpace = "delete snapshots and sandboxes that are not needed, or give the disk that holds the data directory more room"

// diskError gives a full disk its code.
func diskError(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return cay.Errorf(cay.NoSpace, "the disk that holds snapshots is full: %w", err).WithHint(hintSpace)
	}
	return err
}

// available returns how many bytes can be written to the file system at path.
func available(path string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return 0, os.NewSyscallError("statfs", err)
	}
	return int64(st.Bavail) * int64(st.Bsize), nil
}

// checkSpace fails if size more bytes would leave less than the reserve.
func (d *Dir) checkSpace(size int64) error {
	free, err := d.available(d.path)
	if err != nil {
		return err
	}
	return checkReserve("the disk that holds snapshots", free, size, d.reserve)
}

// CheckSpace returns an error if the file system at path has less than reserve bytes
// left. Errors: no_space.
func CheckSpace(path string, reserve int64) error {
	free, err := available(path)
	if err != nil {
		return err
	}
	return checkReserve("the host's disk", free, 0, reserve)
}

func checkReserve(disk string, free, size, reserve int64) error {
	if free-size >= reserve {
		return nil
	}
	return cay.Errorf(cay.NoSpace, "%s has %d MiB left, of which %d MiB stay reserved: there is no room for %d MiB",
		disk, free>>20, reserve>>20, max(1, (size+1<<20-1)>>20)).WithHint(hintSpace)
}

// promise checks that there is room for size more bytes in addition to the bytes that
// drafts of this process may still write, and records the size for draft.
func (d *Dir) promise(draft *draft, size int64) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	ahead := size
	for other := range d.drafts {
		_, written, err := files(other.dir)
		if err != nil {
			return err
		}
		ahead += max(0, other.size-written)
	}
	if err := d.checkSpace(ahead); err != nil {
		return err
	}
	d.drafts[draft] = struct{}{}
	return nil
}

func (d *Dir) forget(draft *draft) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.drafts, draft)
}
