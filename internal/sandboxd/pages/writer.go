package pages

import (
	"cmp"
	"fmt"
	"io"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/cespare/xxhash/v2"
)

// maxCompared is how many blocks of a save are compared. Further pages are written one after
// another, in full blocks, so that the map stays small.
const maxCompared = 4 << 20

// batch is how many blocks are read at once, by all CPUs.
const batch = 64

// Writer writes the pages of a save: each block that its base does not have goes to a new
// part. A Writer keeps both maps, 48 bytes for each block, in memory.
type Writer struct {
	out   io.Writer
	known []entry // the base's blocks that may be shared, by number
	m     Map
	at    uint64 // bytes written to the new part

	blocks [batch]block // of which n are to be read; the last one may grow
	n      int
}

// block is a block of the save.
type block struct {
	number uint64
	pieces []piece
	size   int
	buf    []byte
	sum    uint64
	err    error
}

// piece is where pages of a block are.
type piece struct {
	src io.ReaderAt
	off int64
	n   int
}

// NewWriter returns a Writer whose new part has a name. base is the map of the earlier save
// to share with; nil shares nothing.
func NewWriter(base *Map, name string, out io.Writer) *Writer {
	w := &Writer{out: out, m: Map{Parts: []Part{{Name: name}}}}
	if base == nil {
		return w
	}
	keep := base.worthKeeping()
	w.m.Parts = append(w.m.Parts, base.Shared()...)
	for _, e := range base.entries {
		if i := slices.Index(keep, int(e.part)); i >= 0 && e.block != noBlock {
			e.part = uint32(1 + i)
			w.known = append(w.known, e)
		}
	}
	slices.SortStableFunc(w.known, byBlock)
	return w
}

func byBlock(a, b entry) int { return cmp.Compare(a.block, b.block) }

// worthKeeping returns the numbers of the parts that a new save takes over: the parts that
// are live for at least a half, the largest MaxParts-1 of them.
func (m *Map) worthKeeping() []int {
	live := m.live()
	var keep []int
	for part, p := range m.Parts {
		if live[part] > 0 && 2*live[part] >= p.Size {
			keep = append(keep, part)
		}
	}
	slices.SortStableFunc(keep, func(i, j int) int { return cmp.Compare(live[j], live[i]) })
	return keep[:min(len(keep), MaxParts-1)]
}

// Shared returns the parts that a save with m as its base may share.
func (m *Map) Shared() []Part {
	var parts []Part
	for _, part := range m.worthKeeping() {
		parts = append(parts, m.Parts[part])
	}
	return parts
}

// Write adds n bytes of pages that begin at an offset of the memory file src. Offsets grow
// from call to call. The pages must not change until Close has returned. If compare is
// false, later saves do not compare these pages.
func (w *Writer) Write(src io.ReaderAt, off, n uint64, compare bool) error {
	for n > 0 {
		number := off / BlockSize
		part := int(min(n, BlockSize-off%BlockSize))
		if !compare || len(w.m.entries)+w.n >= maxCompared {
			number = noBlock
		}
		if w.n == 0 || w.blocks[w.n-1].number != number || w.blocks[w.n-1].size+part > BlockSize {
			if w.n == batch {
				if err := w.flush(); err != nil {
					return err
				}
			}
			b := &w.blocks[w.n]
			b.number, b.pieces, b.size = number, b.pieces[:0], 0
			w.n++
		}
		b := &w.blocks[w.n-1]
		b.pieces, b.size = append(b.pieces, piece{src, int64(off), part}), b.size+part
		off, n = off+uint64(part), n-uint64(part)
	}
	return nil
}

// flush reads all blocks, and writes or shares each.
func (w *Writer) flush() error {
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(w.n, runtime.GOMAXPROCS(0)) {
		wg.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= w.n {
					return
				}
				w.blocks[i].read()
			}
		})
	}
	wg.Wait()
	for i := range w.n {
		if err := w.put(&w.blocks[i]); err != nil {
			return err
		}
	}
	w.n = 0
	return nil
}

// read reads the block's pages.
func (b *block) read() {
	if b.buf == nil {
		b.buf = make([]byte, BlockSize)
	}
	at := 0
	for _, p := range b.pieces {
		if n, err := p.src.ReadAt(b.buf[at:at+p.n], p.off); n < p.n {
			b.err = fmt.Errorf("read pages at %d: %w", p.off, err)
			return
		}
		at += p.n
	}
	b.sum, b.err = xxhash.Sum64(b.buf[:b.size]), nil
}

// put writes a block, or shares it.
func (w *Writer) put(b *block) error {
	if b.err != nil {
		return b.err
	}
	e := entry{block: b.number, at: w.at, size: uint32(b.size), sum: b.sum}
	if i, ok := slices.BinarySearchFunc(w.known, e, byBlock); ok && w.known[i].size == e.size && w.known[i].sum == e.sum {
		w.m.add(w.known[i])
		return nil
	}
	if _, err := w.out.Write(b.buf[:b.size]); err != nil {
		return err
	}
	w.at += uint64(b.size)
	w.m.add(e)
	return nil
}

// Close writes the last blocks and returns the map. The first part of the map is the new
// part, even if it is empty; the further parts are the base's in which the save has a block.
func (w *Writer) Close() (*Map, error) {
	if err := w.flush(); err != nil {
		return nil, err
	}
	w.m.Parts[0].Size = int64(w.at)
	live := w.m.live()
	var used Map
	number := make([]uint32, len(w.m.Parts))
	for part, p := range w.m.Parts {
		if part == 0 || live[part] > 0 { // the new part exists as a file
			number[part] = uint32(len(used.Parts))
			used.Parts = append(used.Parts, p)
		}
	}
	for _, e := range w.m.entries {
		e.part = number[e.part]
		used.add(e)
	}
	if used.Size() > maxPages {
		return nil, fmt.Errorf("%d bytes of pages are more than %d", used.Size(), int64(maxPages))
	}
	return &used, nil
}
