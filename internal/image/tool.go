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
	"syscall"
	"time"

	"github.com/cayhq/cay/internal/image/rootfs"
)

// Tool returns the path of an EROFS file with the given executables in its root, owned by
// root. Equal contents are written once; GC removes a tool that has not been asked for in
// a month. name, of [a-z0-9-], is part of the path.
func (s *Store) Tool(ctx context.Context, name string, files map[string][]byte) (path string, err error) {
	defer func() { err = workError(ctx, err) }()
	if err := checkToolName(name); err != nil {
		return "", err
	}
	names := slices.Sorted(maps.Keys(files))
	sum := sha256.New()
	for _, n := range names {
		fmt.Fprintf(sum, "%q %d\n", n, len(files[n]))
		sum.Write(files[n])
	}
	path, found, err := s.findTool(name + "-" + hex.EncodeToString(sum.Sum(nil)[:16]) + ".erofs")
	if found || err != nil {
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

// Program returns the path of an executable file with the given content. name and id,
// both of [a-z0-9-], identify the content: the file is written once for the same name and
// id. GC removes an old program by the same rule as a Tool.
func (s *Store) Program(ctx context.Context, name, id string, content []byte) (path string, err error) {
	defer func() { err = workError(ctx, err) }()
	if err := errors.Join(checkToolName(name), checkToolName(id)); err != nil {
		return "", err
	}
	path, found, err := s.findTool(name + "-" + id)
	if found || err != nil {
		return path, err
	}
	st, err := s.newStaging()
	if err != nil {
		return "", err
	}
	defer st.closeInto(&err)
	// A program cannot be executed while it is open for writing, also not by a process
	// that was forked meanwhile.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	f, err := st.create("program")
	if err != nil {
		return "", err
	}
	_, err = f.Write(content)
	if err := errors.Join(err, f.Chmod(0o755), f.Sync(), f.Close()); err != nil {
		return "", err
	}
	published, err := s.publish(f, path)
	if err != nil {
		return "", err
	}
	return path, published.Close()
}

func checkToolName(name string) error {
	if name == "" || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
		return fmt.Errorf("bad name of a tool: %q", name)
	}
	return nil
}

// findTool returns the path of a tool, and whether it exists. If so, its last use is now.
func (s *Store) findTool(file string) (path string, found bool, err error) {
	path = filepath.Join(s.dir, "tools", file)
	now := time.Now()
	err = os.Chtimes(path, now, now)
	if errors.Is(err, fs.ErrNotExist) {
		return path, false, nil
	}
	return path, err == nil, err
}
