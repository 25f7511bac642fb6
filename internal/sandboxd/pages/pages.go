// Package pages stores the pages of saved disks in parts that several saves share.
//
// The first save of a disk writes one part with all pages. A later save that knows an
// earlier one (its base) compares each block of BlockSize bytes with the same block of the
// base by a sum, writes a new part with the blocks that differ, and takes the base's parts
// over as hard links. The map says in which part each block is. So the file system counts
// how many saves have a part, and no crash can make that count wrong.
//
// A base part that is mostly of blocks that have changed since is not taken over, and
// neither are more parts than MaxParts: their blocks are written again. So a chain of saves
// never has more than twice the bytes of its newest one, and a start from the hundredth
// save reads a few files.
//
// The sums are XXH64. A guest can make two blocks with the same sum, and then loses its own
// change; it cannot reach the pages of another sandbox, since a block is only compared with
// the same block of the base.
package pages

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"sort"
	"sync"
)

const (
	// BlockSize is the size of a block, in bytes of a memory file. A save shares whole
	// blocks.
	BlockSize = 64 << 10
	// MaxParts is how many parts a map has at most.
	MaxParts = 16
	// MapName is the name of the file with the map, in the directory of a saved disk. A
	// directory without it has all pages in one file.
	MapName = "pages.map"
	// WholeName is the name of the file with all pages, in a directory without a map.
	WholeName = "pages.img"
	// MaxMap is the size of the largest map in bytes, enough for 512 GiB.
	MaxMap = 256 << 20

	magic     = "caypages"
	version   = 1
	nameSize  = len("pages-0123456789abcdef.img")
	headSize  = len(magic) + 4 + 4
	partSize  = nameSize + 8
	entrySize = 8 + 8 + 4 + 4 + 8
	maxPages  = 1 << 44 // bytes of all pages
)

// entry is a block of a save.
type entry struct {
	block uint64 // its number in the memory file; noBlock if it is never compared
	at    uint64 // where it begins in its part
	size  uint32 // at most BlockSize: pages without content are left out
	part  uint32
	sum   uint64
}

// noBlock is the number of a block that later saves do not compare.
const noBlock = ^uint64(0)

// Map says where the pages of a save are. A page has the offset that it would have in
// one file of all blocks, one after another.
type Map struct {
	Parts   []Part
	entries []entry
	ends    []int64 // of the entries, as offsets of pages
}

// Part is a file of pages.
type Part struct {
	Name string // see IsPart
	Size int64  // in bytes
}

// partName matches the names of parts.
var partName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^pages-[0-9a-f]{16}\.img$`) })

// NewPart returns a name for a new part, which no other part has.
func NewPart() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return fmt.Sprintf("pages-%x.img", b)
}

// IsPart reports whether a file of a saved disk is a part by its name.
func IsPart(name string) bool { return partName().MatchString(name) }

var errMap = errors.New("the map of pages is damaged")

func damaged(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{errMap}, args...)...)
}

// Parse reads a map.
func Parse(b []byte) (*Map, error) {
	if len(b) > MaxMap {
		return nil, damaged("it has %d bytes, more than %d", len(b), MaxMap)
	}
	if len(b) < headSize || string(b[:len(magic)]) != magic {
		return nil, damaged("it does not begin with %q", magic)
	}
	head := b[len(magic):]
	if v := binary.LittleEndian.Uint32(head); v != version {
		return nil, damaged("its version is %d instead of %d", v, version)
	}
	n := binary.LittleEndian.Uint32(head[4:])
	b = b[headSize:]
	if n > MaxParts || len(b) < int(n)*partSize || (len(b)-int(n)*partSize)%entrySize != 0 {
		return nil, damaged("it has %d parts and %d bytes", n, len(b))
	}
	m := &Map{}
	for range n {
		p := Part{string(b[:nameSize]), int64(binary.LittleEndian.Uint64(b[nameSize:]))}
		b = b[partSize:]
		if !IsPart(p.Name) || p.Size < 0 || p.Size > maxPages || slices.ContainsFunc(m.Parts, func(q Part) bool { return q.Name == p.Name }) {
			return nil, damaged("it names a part %q with %d bytes", p.Name, p.Size)
		}
		m.Parts = append(m.Parts, p)
	}
	m.entries = make([]entry, 0, len(b)/entrySize)
	for ; len(b) > 0; b = b[entrySize:] {
		e := entry{
			block: binary.LittleEndian.Uint64(b), at: binary.LittleEndian.Uint64(b[8:]),
			size: binary.LittleEndian.Uint32(b[16:]), part: binary.LittleEndian.Uint32(b[20:]), sum: binary.LittleEndian.Uint64(b[24:]),
		}
		if e.size == 0 || e.size > BlockSize || e.part >= n || e.at > maxPages || int64(e.at)+int64(e.size) > m.Parts[e.part].Size {
			return nil, damaged("block %d is %d bytes at %d of part %d of %d", e.block, e.size, e.at, e.part, n)
		}
		m.add(e)
	}
	return m, nil
}

func (m *Map) add(e entry) {
	m.entries, m.ends = append(m.entries, e), append(m.ends, m.Size()+int64(e.size))
}

// Encode returns the map as Parse reads it.
func (m *Map) Encode() []byte {
	b := make([]byte, 0, headSize+len(m.Parts)*partSize+len(m.entries)*entrySize)
	b = append(b, magic...)
	b = binary.LittleEndian.AppendUint32(b, version)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(m.Parts)))
	for _, p := range m.Parts {
		b = append(b, p.Name...)
		b = binary.LittleEndian.AppendUint64(b, uint64(p.Size))
	}
	for _, e := range m.entries {
		b = binary.LittleEndian.AppendUint64(b, e.block)
		b = binary.LittleEndian.AppendUint64(b, e.at)
		b = binary.LittleEndian.AppendUint32(b, e.size)
		b = binary.LittleEndian.AppendUint32(b, e.part)
		b = binary.LittleEndian.AppendUint64(b, e.sum)
	}
	return b
}

// Size is how many bytes of pages the save has.
func (m *Map) Size() int64 {
	if len(m.ends) == 0 {
		return 0
	}
	return m.ends[len(m.ends)-1]
}

// live returns how many bytes of each part the save has.
func (m *Map) live() []int64 {
	live := make([]int64, len(m.Parts))
	for _, e := range m.entries {
		live[e.part] += int64(e.size)
	}
	return live
}

// Find says where the pages from off on are: the number of a part, the offset there, and
// how many of the at most n bytes follow in that part. It returns 0 bytes if off is not in
// the save.
func (m *Map) Find(off, n int64) (part int, at, found int64) {
	if off < 0 || off >= m.Size() {
		return 0, 0, 0
	}
	i := sort.Search(len(m.ends), func(i int) bool { return m.ends[i] > off })
	e := m.entries[i]
	into := off - (m.ends[i] - int64(e.size))
	part, at, found = int(e.part), int64(e.at)+into, int64(e.size)-into
	for i++; found < n && i < len(m.entries) && m.entries[i].part == e.part && int64(m.entries[i].at) == at+found; i++ {
		found += int64(m.entries[i].size)
	}
	return part, at, min(found, n)
}
