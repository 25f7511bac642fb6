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

// taskSize is how many blocks are read in one go.
const taskSize = 16

// Writer writes the pages of a save: each block that its base does not have goes to a new
// part. Several goroutines read, compare and write blocks, each through a buffer of one
// block, which stays in the CPU's cache. A Writer keeps both maps, 48 bytes for each block, in
// memory.
type Writer struct {
	out   io.WriterAt
	known []entry // the base's blocks that may be shared, by number
	parts []Part  // the new one, and the base's

	next    *task // that Write fills; nil: there is none
	count   int   // blocks of all tasks
	tasks   []*task
	todo    chan *task
	workers sync.WaitGroup
	at      atomic.Int64          // bytes reserved in the new part
	failed  atomic.Pointer[error] // the first failure
}

// task is blocks that one goroutine reads, compares and writes.
type task struct {
	blocks  []block
	entries []entry // the result
}

// block is a block of the save.
type block struct {
	number uint64
	pieces []piece
	size   int
}

// piece is where pages of a block are.
type piece struct {
	src io.ReaderAt
	off int64
	n   int
}

// NewWriter returns a Writer whose new part has a name, for a caller that calls Close. base is the map of the earlier save
// to share with; nil shares nothing.
func NewWriter(base *Map, name string, out io.WriterAt) *Writer {
	w := &Writer{out: out, parts: []Part{{Name: name}}, todo: make(chan *task)}
	if base != nil {
		keep := base.worthKeeping()
		w.parts = append(w.parts, base.Shared()...)
		for _, e := range base.entries {
			if i := slices.Index(keep, int(e.part)); i >= 0 && e.block != noBlock {
				e.part = uint32(1 + i)
				w.known = append(w.known, e)
			}
		}
		slices.SortStableFunc(w.known, byBlock)
	}
	for range runtime.GOMAXPROCS(0) {
		w.workers.Go(w.work)
	}
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
		if !compare || w.count >= maxCompared {
			number = noBlock
		}
		b := w.room(number, part)
		b.pieces = append(b.pieces, piece{src, int64(off), part})
		off, n = off+uint64(part), n-uint64(part)
	}
	return w.failure()
}

// room returns the block of a number that has room for size bytes more, and adds them to its
// size.
func (w *Writer) room(number uint64, size int) *block {
	if w.next != nil {
		if last := &w.next.blocks[len(w.next.blocks)-1]; last.number == number && last.size+size <= BlockSize {
			last.size += size
			return last
		}
	}
	if w.next != nil && len(w.next.blocks) == taskSize {
		w.dispatch()
	}
	if w.next == nil {
		w.next = &task{blocks: make([]block, 0, taskSize)}
	}
	w.next.blocks = append(w.next.blocks, block{number: number, size: size})
	w.count++
	return &w.next.blocks[len(w.next.blocks)-1]
}

// dispatch gives the next task to a worker.
func (w *Writer) dispatch() {
	w.tasks = append(w.tasks, w.next)
	w.todo <- w.next
	w.next = nil
}

func (w *Writer) failure() error {
	if err := w.failed.Load(); err != nil {
		return *err
	}
	return nil
}

// work executes tasks. After a failure it only takes them.
func (w *Writer) work() {
	buf := make([]byte, BlockSize)
	for t := range w.todo {
		if w.failure() != nil {
			continue
		}
		if err := w.do(t, buf); err != nil {
			w.failed.CompareAndSwap(nil, &err)
		}
		t.blocks = nil
	}
}

// do writes or shares the blocks of a task.
func (w *Writer) do(t *task, buf []byte) error {
	t.entries = make([]entry, len(t.blocks))
	// If the base has none of the blocks, they follow one another in the new part.
	fresh, size := true, int64(0)
	for _, b := range t.blocks {
		_, known := w.find(b.number)
		fresh = fresh && !known
		size += int64(b.size)
	}
	at := int64(0)
	if fresh {
		at = w.at.Add(size) - size
	}
	for i, b := range t.blocks {
		content := buf[:b.size]
		if err := b.read(content); err != nil {
			return err
		}
		e := &t.entries[i]
		*e = entry{block: b.number, size: uint32(b.size), sum: xxhash.Sum64(content)}
		if known, ok := w.find(b.number); ok && known.size == e.size && known.sum == e.sum {
			*e = known
			continue
		}
		if !fresh {
			at = w.at.Add(int64(b.size)) - int64(b.size)
		}
		if _, err := w.out.WriteAt(content, at); err != nil {
			return err
		}
		e.at = uint64(at)
		at += int64(b.size)
	}
	return nil
}

// find returns the base's block of a number.
func (w *Writer) find(number uint64) (entry, bool) {
	i, ok := slices.BinarySearchFunc(w.known, entry{block: number}, byBlock)
	if !ok {
		return entry{}, false
	}
	return w.known[i], true
}

// read reads the block's pages.
func (b *block) read(content []byte) error {
	for _, p := range b.pieces {
		if n, err := p.src.ReadAt(content[:p.n], p.off); n < p.n {
			return fmt.Errorf("read pages at %d: %w", p.off, err)
		}
		content = content[p.n:]
	}
	return nil
}

// Close writes the last blocks and returns the map. The first part of the map is the new
// part, even if it is empty; the further parts are the base's in which the save has a block.
func (w *Writer) Close() (*Map, error) {
	if w.next != nil {
		w.dispatch()
	}
	close(w.todo)
	w.workers.Wait()
	if err := w.failure(); err != nil {
		return nil, err
	}
	w.parts[0].Size = w.at.Load()
	all := Map{Parts: w.parts}
	for _, t := range w.tasks {
		for _, e := range t.entries {
			all.add(e)
		}
	}
	live := all.live()
	var used Map
	number := make([]uint32, len(all.Parts))
	for part, p := range all.Parts {
		if part == 0 || live[part] > 0 { // the new part exists as a file
			number[part] = uint32(len(used.Parts))
			used.Parts = append(used.Parts, p)
		}
	}
	for _, e := range all.entries {
		e.part = number[e.part]
		used.add(e)
	}
	if used.Size() > maxPages {
		return nil, fmt.Errorf("%d bytes of pages are more than %d", used.Size(), int64(maxPages))
	}
	return &used, nil
}
