package image

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cayhq/cay/internal/image/rootfs"
)

// Tool returns the path of an EROFS file with the given executables in its
// root, owned by root. It is made once for the same content; what has not been
// asked for in a month is removed by GC. name, of [a-z0-9-], is part of the path.
func (s *Store) Tool(ctx context.Context, name string, files map[string][]byte) (path string, err error) {
	defer func() { err = workError(ctx, err) }()
	if name == "" || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
		return "", fmt.Errorf("bad name of a tool: %q", name)
	}
	names := slices.Sorted(maps.Keys(files))
	sum := sha256.New()
	for _, n := range names {
		fmt.Fprintf(sum, "%q %d\n", n, len(files[n]))
		sum.Write(files[n])
	}
	path = filepath.Join(s.dir, "tools", name+"-"+hex.EncodeToString(sum.Sum(nil)[:16])+".erofs")
	now := time.Now()
	if err := os.Chtimes(path, now, now); !errors.Is(err, fs.ErrNotExist) {
		return path, err
	}
	st, err := s.newStaging()
	if err != nil {
		return "", err
	}
	defer st.closeInto(&err)
	tree, free, err := s.newTree(st)
	if err != nil {
		return "", err
	}
	defer free()
	for _, n := range names {
		attr := rootfs.Attr{Mode: 0o755, ModTime: buildTime}
		if err := tree.WriteFile(n, bytes.NewReader(files[n]), int64(len(files[n])), attr); err != nil {
			return "", err
		}
	}
	f, err := st.create("tool")
	if err != nil {
		return "", err
	}
	defer f.Close()
	if _, err := tree.WriteTo(f, [16]byte{}); err != nil {
		return "", err
	}
	if err := f.Sync(); err != nil {
		return "", err
	}
	published, err := s.publish(f, path)
	if err != nil {
		return "", err
	}
	return path, published.Close()
}
