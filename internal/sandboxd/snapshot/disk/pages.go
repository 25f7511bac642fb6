package disk

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"sort"

	"google.golang.org/protobuf/encoding/protowire"
)

// pageRange is a range of a memory file that has pages.
type pageRange struct {
	start, end uint64 // in the memory file
	at         uint64 // of start in pages.img
}

const (
	metaVersion  = 1
	maxMetaField = 1 << 10 // bytes of a range; larger fields are not ranges
)

// readPages reads the ranges of a memory file that have pages, at most limit ranges.
func readPages(r io.Reader, pagesStart uint64, pageSize uint64, limit int) ([]pageRange, error) {
	var size [8]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return nil, fmt.Errorf("the length is missing: %w", err)
	}
	length := binary.LittleEndian.Uint64(size[:])
	if length > math.MaxInt64 {
		return nil, fmt.Errorf("the length is %d", length)
	}
	body := &io.LimitedReader{R: r, N: int64(length)}
	in := bufio.NewReader(body)
	version := uint64(0)
	next, last := pagesStart, uint64(0)
	var ranges []pageRange
	buf := make([]byte, maxMetaField)
	for {
		tag, err := binary.ReadUvarint(in)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, errProto
		}
		num, typ := protowire.DecodeTag(tag)
		n, err := binary.ReadUvarint(in)
		switch {
		case err != nil:
			return nil, errProto
		case num == 1 && typ == protowire.VarintType:
			version = n
			continue
		case typ == protowire.VarintType:
			continue
		case typ != protowire.BytesType || n > uint64(math.MaxInt64):
			return nil, errProto
		case num != 3 || n > maxMetaField:
			if k, err := io.CopyN(io.Discard, in, int64(n)); err != nil {
				return nil, fmt.Errorf("a field ends after %d bytes: %w", k, err)
			}
			continue
		}
		if _, err := io.ReadFull(in, buf[:n]); err != nil {
			return nil, fmt.Errorf("a range is cut off: %w", err)
		}
		var p pageRange
		var committed bool
		err = fields(buf[:n], func(num protowire.Number, n uint64, _ []byte) error {
			switch num {
			case 1:
				p.start = n
			case 2:
				p.end = n
			case 5:
				committed = n != 0
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		if p.start >= p.end || p.start < last || p.start%pageSize != 0 || p.end%pageSize != 0 {
			return nil, fmt.Errorf("the range %d to %d after %d is none", p.start, p.end, last)
		}
		last = p.end
		if !committed {
			continue
		}
		p.at = next
		if next += p.end - p.start; next < p.at {
			return nil, errProto
		}
		if l := len(ranges); l > 0 && ranges[l-1].end == p.start {
			ranges[l-1].end = p.end
			continue
		}
		if len(ranges) == limit {
			return nil, fmt.Errorf("there are more than %d ranges", limit)
		}
		ranges = append(ranges, p)
	}
	if body.N > 0 {
		return nil, fmt.Errorf("%d bytes are missing: %w", body.N, io.ErrUnexpectedEOF)
	}
	if version != metaVersion {
		return nil, fmt.Errorf("the version is %d instead of %d", version, metaVersion)
	}
	return ranges, nil
}

// piece is a part of a file that is in pages.img.
type piece struct {
	off  uint64 // in the file
	at   uint64 // in pages.img
	size uint64
}

// run is a part of a file that is in its memory file.
type run struct {
	start, end uint64 // in the file
	value      uint64 // of start in the memory file
}

// readRuns reads a regular file's content in the archive, size bytes long, and returns
// the file's size and its parts that are not zero.
func readRuns(r io.Reader, size int64, pages []pageRange, limit int) (fileSize uint64, pieces []piece, err error) {
	const runSize = 24
	if size < 8 || (size-8)%runSize != 0 {
		return 0, nil, fmt.Errorf("%d bytes are no list of runs", size)
	}
	if size > 8+runSize*int64(limit) {
		return 0, nil, fmt.Errorf("there are more than %d runs", limit)
	}
	var buf [runSize]byte
	if _, err := io.ReadFull(r, buf[:8]); err != nil {
		return 0, nil, err
	}
	if fileSize = binary.LittleEndian.Uint64(buf[:]); fileSize > math.MaxInt64 {
		return 0, nil, fmt.Errorf("the size is %d", fileSize)
	}
	last := uint64(0)
	for range (size - 8) / runSize {
		if _, err := io.ReadFull(r, buf[:]); err != nil {
			return 0, nil, err
		}
		u := run{binary.LittleEndian.Uint64(buf[:]), binary.LittleEndian.Uint64(buf[8:]), binary.LittleEndian.Uint64(buf[16:])}
		if u.start >= u.end || u.start < last || u.value+(u.end-u.start) < u.value {
			return 0, nil, fmt.Errorf("the run %d to %d at %d is none", u.start, u.end, u.value)
		}
		last = u.end
		u.end = min(u.end, fileSize) // the last page may be larger
		if u.start >= u.end {
			continue
		}
		if pieces = u.pieces(pieces, pages); len(pieces) > limit {
			return 0, nil, fmt.Errorf("there are more than %d pieces", limit)
		}
	}
	return fileSize, pieces, nil
}

// pieces appends to all the parts of run u that have pages.
func (u run) pieces(all []piece, pages []pageRange) []piece {
	end := u.value + (u.end - u.start)
	for _, p := range pages[sort.Search(len(pages), func(i int) bool { return pages[i].end > u.value }):] {
		from, to := max(p.start, u.value), min(p.end, end)
		if from >= to {
			break
		}
		all = append(all, piece{off: u.start + (from - u.value), at: p.at + (from - p.start), size: to - from})
	}
	return all
}

// chunk is a part of a file that is written to an archive: its pieces, with
// zeros between them.
type chunk struct {
	off, size uint64
	pieces    []piece
}

const (
	// minHole is how many zeros are worth a hole.
	minHole = 64 << 10
	// maxChunks is how many chunks a file has at most, because readers of archives limit
	// the number.
	maxChunks = 64 << 10
)

// chunks gathers pieces, which are sorted, into chunks.
func chunks(pieces []piece) []chunk {
	for hole := uint64(minHole); ; hole *= 4 {
		var all []chunk
		first := 0
		for i, p := range pieces {
			end := p.off + p.size
			if l := len(all) - 1; l >= 0 && p.off-(all[l].off+all[l].size) < hole {
				all[l].size, all[l].pieces = end-all[l].off, pieces[first:i+1]
				continue
			}
			first = i
			all = append(all, chunk{p.off, p.size, pieces[i : i+1]})
		}
		if len(all) <= maxChunks || hole > math.MaxUint64/4 {
			return slices.Clip(all)
		}
	}
}
