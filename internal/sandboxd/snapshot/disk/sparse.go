package disk

import (
	"archive/tar"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
)

const blockSize = 512

// writeSparse writes a file with holes, which archive/tar reads but does not
// write: GNU's format 1.0, in which the content begins with a map of the data.
func writeSparse(w io.Writer, h *tar.Header, size uint64, all []chunk, copyData func(io.Writer) error) error {
	var m strings.Builder
	var data uint64
	// An empty piece of data at the end marks the size of the file.
	fmt.Fprintf(&m, "%d\n", len(all)+1)
	for _, c := range all {
		fmt.Fprintf(&m, "%d\n%d\n", c.off, c.size)
		data += c.size
	}
	fmt.Fprintf(&m, "%d\n0\n", size)
	m.WriteString(strings.Repeat("\x00", padding(uint64(m.Len()))))

	records := maps.Clone(h.PAXRecords)
	if records == nil {
		records = map[string]string{}
	}
	content := uint64(m.Len()) + data
	maps.Copy(records, map[string]string{
		"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": h.Name, "GNU.sparse.realsize": strconv.FormatUint(size, 10),
		"size": strconv.FormatUint(content, 10), "uid": strconv.Itoa(h.Uid), "gid": strconv.Itoa(h.Gid),
		"mtime": strconv.FormatInt(h.ModTime.Unix(), 10),
	})
	var pax strings.Builder
	for _, k := range slices.Sorted(maps.Keys(records)) {
		pax.WriteString(paxRecord(k, records[k]))
	}
	base := path.Base(h.Name)
	for _, part := range []string{
		block("PaxHeaders.0/"+base, 'x', &tar.Header{}, uint64(pax.Len())),
		pax.String(), strings.Repeat("\x00", padding(uint64(pax.Len()))),
		block("GNUSparseFile.0/"+base, '0', h, content),
		m.String(),
	} {
		if _, err := io.WriteString(w, part); err != nil {
			return err
		}
	}
	if err := copyData(w); err != nil {
		return err
	}
	_, err := w.Write(zeros[:padding(data)])
	return err
}

func padding(n uint64) int { return int(-n % blockSize) }

// paxRecord is "LENGTH KEY=VALUE\n", where the length counts itself.
func paxRecord(k, v string) string {
	const rest = len(" =\n")
	n := len(k) + len(v) + rest
	size := n + len(strconv.Itoa(n))
	size = n + len(strconv.Itoa(size))
	return fmt.Sprintf("%d %s=%s\n", size, k, v)
}

// block returns a header of the format ustar. Numbers that do not fit are in the
// preceding records.
func block(name string, typ byte, h *tar.Header, size uint64) string {
	b := make([]byte, blockSize)
	octal := func(at, digits int, n uint64) {
		if s := strconv.FormatUint(n, 8); len(s) <= digits {
			copy(b[at:], strings.Repeat("0", digits-len(s))+s)
		} else {
			copy(b[at:], strings.Repeat("0", digits))
		}
	}
	copy(b[:100], name)
	octal(100, 7, uint64(h.Mode))
	octal(108, 7, uint64(h.Uid))
	octal(116, 7, uint64(h.Gid))
	octal(124, 11, size)
	octal(136, 11, uint64(max(0, h.ModTime.Unix())))
	b[156] = typ
	copy(b[257:], "ustar\x0000")
	copy(b[148:], "        ")
	var sum uint64
	for _, c := range b {
		sum += uint64(c)
	}
	octal(148, 6, sum)
	b[154] = 0
	return string(b)
}
