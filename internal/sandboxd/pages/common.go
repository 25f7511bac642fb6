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

// Where returns the place of r's n bytes of pages from off on, if one block of c has them
// all. Equal places of two saves have the same content.
func (c *Common) Where(r *Reader, off int64, n int) (part string, at int64, ok bool) {
	if c == nil || off < 0 || off >= r.Size() {
		return "", 0, false
	}
	i := sort.Search(len(r.m.ends), func(i int) bool { return r.m.ends[i] > off })
	e := r.m.entries[i]
	into := off - (r.m.ends[i] - int64(e.size))
	part = r.m.Parts[e.part].Name
	if size := c.blocks[place{part, e.at}]; int64(size) < into+int64(n) {
		return "", 0, false
	}
	return part, int64(e.at) + into, true
}
