package pages

import (
	"os"
	"sort"
)

// Common has the blocks that two saves share. A nil *Common has none.
type Common struct {
	blocks map[place]uint32 // the sizes of the blocks, by where they begin
}

// place is an offset of a part.
type place struct {
	part string
	at   uint64
}

// CommonOf returns the blocks that a and b share.
func CommonOf(a, b *Reader) (*Common, error) {
	same := map[string]bool{}
	for i, p := range a.m.Parts {
		for j, q := range b.m.Parts {
			if p != q {
				continue
			}
			one, err := a.files[i].Stat()
			if err != nil {
				return nil, err
			}
			two, err := b.files[j].Stat()
			if err != nil {
				return nil, err
			}
			same[p.Name] = os.SameFile(one, two)
		}
	}
	of := map[place]uint32{}
	for _, e := range a.m.entries {
		if p := a.m.Parts[e.part].Name; same[p] {
			of[place{p, e.at}] = e.size
		}
	}
	c := &Common{map[place]uint32{}}
	for _, e := range b.m.entries {
		p := place{b.m.Parts[e.part].Name, e.at}
		if size, ok := of[p]; ok && size == e.size {
			c.blocks[p] = size
		}
	}
	return c, nil
}

// Where returns the place of r's pages from off on, if they are in a block of c: a part, an
// offset there, and how many of at most n bytes are in the block. Equal places of two saves
// have the same content.
func (c *Common) Where(r *Reader, off int64, n uint64) (part string, at, found uint64) {
	if c == nil || off < 0 || off >= r.Size() {
		return "", 0, 0
	}
	i := sort.Search(len(r.m.ends), func(i int) bool { return r.m.ends[i] > off })
	e := r.m.entries[i]
	into := uint64(off - (r.m.ends[i] - int64(e.size)))
	part = r.m.Parts[e.part].Name
	if c.blocks[place{part, e.at}] != e.size {
		return "", 0, 0
	}
	return part, e.at + into, min(n, uint64(e.size)-into)
}
