package fake

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
)

// SameDisk implements machine.Runtime. It ignores the times of directories and links,
// which a machine that starts from saved files does not keep.
func (r *Runtime) SameDisk(ctx context.Context, a, b string) (bool, error) {
	one, err := members(ctx, a)
	if err != nil {
		return false, err
	}
	two, err := members(ctx, b)
	return err == nil && maps.Equal(one, two), err
}

// members returns a description of each file that was saved in dir, by name.
func members(ctx context.Context, dir string) (map[string]string, error) {
	_, f, err := openState(ctx, dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	all := map[string]string{}
	for tr := tar.NewReader(f); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		sum := sha256.New()
		if _, err := io.Copy(sum, tr); err != nil {
			return nil, err
		}
		modified := h.ModTime.Unix()
		if h.Typeflag != tar.TypeReg {
			modified = 0
		}
		all[h.Name] = fmt.Sprintf("%d %o %d:%d %d %q %x", h.Typeflag, h.Mode, h.Uid, h.Gid, modified, h.Linkname, sum.Sum(nil))
	}
}
