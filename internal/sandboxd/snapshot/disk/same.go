package disk

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"
	"io"
	"maps"
	"slices"

	"github.com/cayhq/cay/internal/sandboxd/pages"
)

const (
	// maxCompared is how many files a disk may have to be compared. Larger disks count as
	// different: comparing them would take too much memory.
	maxCompared = 200_000
	// fewCompared is how many files a disk may have to be compared at any time. Larger
	// disks need one of the 2 slots in large, and count as different if no slot is free.
	fewCompared = 10_000
)

// large is held by comparisons of more than fewCompared files.
var large = make(chan struct{}, 2)

// comparison is one call of Same.
type comparison struct {
	Volatile
	contents bool // are compared, too
	common   *pages.Common
	held     bool // large is
}

// admits reports whether there is memory to compare disks of n files.
func (c *comparison) admits(n int) bool {
	if n > maxCompared || n <= fewCompared || c.held {
		return n <= maxCompared
	}
	select {
	case large <- struct{}{}:
		c.held = true
	default:
	}
	return c.held
}

func (c *comparison) end() {
	if c.held {
		<-large
	}
}

// Volatile says which differences between two disks do not count, by the path of a
// file without a leading slash.
type Volatile struct {
	// Times are the files whose modification time does not count.
	Times []string
	// Contents are regular files that count only by the result of the function. The
	// function is given the whole content, of at most 64 KiB. Larger files count unchanged.
	Contents map[string]func([]byte) []byte
}

const maxVolatile = 64 << 10

// Same reports whether two disks hold the same file systems with the same files: names,
// types, owners, modes, times, links, attributes and contents. The layout of the disks'
// own files does not matter. Contents are read only if all else is equal, and only pages that
// the disks do not share. Errors: as Check.
//
// Same may report false for large disks that are equal, but never true for different
// disks.
func Same(ctx context.Context, a, b *Disk, v Volatile) (bool, error) {
	c := &comparison{Volatile: v}
	defer c.end()
	if one, ok := a.pages.(*pages.Reader); ok {
		if two, ok := b.pages.(*pages.Reader); ok {
			var err error
			if c.common, err = pages.CommonOf(one, two); err != nil {
				return false, err
			}
		}
	}
	mounts := a.Mounts()
	if !slices.Equal(mounts, b.Mounts()) {
		return false, nil
	}
	for _, c.contents = range []bool{false, true} {
		for _, mount := range mounts {
			one, err := a.sums(ctx, mount, c)
			if err != nil {
				return false, err
			}
			if one == nil {
				return false, nil
			}
			two, err := b.sums(ctx, mount, c)
			if err != nil {
				return false, err
			}
			if two == nil || !maps.Equal(one, two) {
				return false, nil
			}
		}
	}
	return true, nil
}

// fileSum identifies a file: a hash of all of its names, and of everything else.
type fileSum [sha256.Size]byte

// sums returns the hash of each file of a file system, by its name; nil if there are too
// many files. The hash of a file with several names includes all names, because any of
// them may come first in the archive.
func (d *Disk) sums(ctx context.Context, mount string, c *comparison) (map[string]fileSum, error) {
	all := map[string]fileSum{}
	links := map[string][]string{} // further names, by the first in the archive
	n, many := 0, false
	err := d.walk(ctx, mount, func(e *entry) error {
		if n++; many || !c.admits(n) {
			many = true
			return nil
		}
		switch {
		case e.whiteout:
			all[e.Name] = fileSum{} // whiteouts have no visible properties
		case e.Typeflag == tar.TypeLink:
			links[e.Linkname] = append(links[e.Linkname], e.Name)
		default:
			sum, err := d.sum(ctx, e, c)
			if err != nil {
				return fmt.Errorf("read %.100q: %w", e.Name, err)
			}
			all[e.Name] = sum
		}
		return nil
	})
	if err != nil || many {
		return nil, err
	}
	for first, more := range links {
		sum, ok := all[first]
		if !ok {
			return nil, invalid("%.100q links %.100q, which is not there", more[0], first)
		}
		names := append(more, first)
		slices.Sort(names)
		h := sha256.New()
		h.Write(sum[:])
		put(h, names...)
		for _, name := range names {
			all[name] = fileSum(h.Sum(nil))
		}
	}
	return all, nil
}

// sum hashes a file that is not a hard link to an earlier file.
func (d *Disk) sum(ctx context.Context, e *entry, c *comparison) (fileSum, error) {
	h := sha256.New()
	t := e.ModTime.Unix()
	if slices.Contains(c.Times, e.Name) {
		t = 0
	}
	put(h, fmt.Sprint(e.Typeflag, e.Mode, e.Uid, e.Gid, t, e.Devmajor, e.Devminor), e.Linkname)
	for _, name := range slices.Sorted(maps.Keys(e.PAXRecords)) {
		put(h, name, e.PAXRecords[name])
	}
	if e.Typeflag != tar.TypeReg {
		return fileSum(h.Sum(nil)), nil
	}
	if of := c.Contents[e.Name]; of != nil && e.size <= maxVolatile {
		if !c.contents {
			return fileSum(h.Sum(nil)), nil
		}
		var b bytes.Buffer
		if err := d.copyChunks(ctx, &b, []chunk{{0, e.size, e.pieces}}); err != nil {
			return fileSum{}, err
		}
		put(h, string(of(b.Bytes())))
		return fileSum(h.Sum(nil)), nil
	}
	put(h, fmt.Sprint(e.size))
	if c.contents {
		if err := d.hashContent(ctx, h, e, c.common); err != nil {
			return fileSum{}, err
		}
	}
	return fileSum(h.Sum(nil)), nil
}

// hashContent hashes the pages of a file that are not zero, each with its offset. So a
// hole and allocated zeros hash the same. For pages in common it hashes their place.
func (d *Disk) hashContent(ctx context.Context, h hash.Hash, e *entry, common *pages.Common) error {
	page := make([]byte, d.manifest.pageSize)
	shared, _ := d.pages.(*pages.Reader)
	for _, p := range e.pieces {
		for off := p.off; off < p.off+p.size; {
			if err := ctx.Err(); err != nil {
				return err
			}
			at := int64(p.at + (off - p.off))
			if part, place, n := common.Where(shared, at, p.off+p.size-off); n > 0 {
				put(h, part, string(binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, off), place), n)))
				off += n
				continue
			}
			n := min(d.manifest.pageSize-off%d.manifest.pageSize, p.off+p.size-off)
			if _, err := io.ReadFull(io.NewSectionReader(d.pages, at, int64(n)), page[:n]); err != nil {
				return err
			}
			if !isZero(page[:n]) {
				put(h, fmt.Sprint(off), string(page[:n]))
			}
			off += n
		}
	}
	return nil
}

func isZero(b []byte) bool {
	for len(b) > 0 {
		n := min(len(b), len(zeros))
		if string(b[:n]) != string(zeros[:n]) {
			return false
		}
		b = b[n:]
	}
	return true
}

// put hashes texts, which may hold any bytes, so that different texts give different
// input.
func put(h hash.Hash, texts ...string) {
	for _, t := range texts {
		h.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(t))))
		io.WriteString(h, t) // a hash never fails
	}
}
