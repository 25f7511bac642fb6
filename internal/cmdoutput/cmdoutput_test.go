package cmdoutput

import (
	"bytes"
	"io"
	"testing"
	"unicode/utf8"

	"github.com/cayhq/cay/sandbox"
)

// reusing is an Output whose events share their memory.
type reusing struct {
	buf  [1]byte
	left int
}

func (r *reusing) Next() (sandbox.Event, error) {
	if r.left == 0 {
		return sandbox.Event{}, io.EOF
	}
	r.left--
	r.buf[0] = byte('a' + r.left)
	return sandbox.Event{Data: r.buf[:]}, nil
}

func (r *reusing) Close() error { return nil }

func TestOwn(t *testing.T) {
	out := Own(&reusing{left: 2})
	first, err := out.Next()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := out.Next(); err != nil {
		t.Fatal(err)
	}
	if string(first.Data) != "b" {
		t.Errorf("the first event became %q", first.Data)
	}
	if _, err := out.Next(); err != io.EOF {
		t.Errorf("the end is %v", err)
	}
}

func FuzzSplitter(f *testing.F) {
	f.Add([]byte("a\u00e9\u20ac\U0001f600"), 1)
	f.Add([]byte{0xff, 0xe2, 0x82}, 2)
	f.Fuzz(func(t *testing.T, b []byte, size int) {
		if size < 1 {
			return
		}
		var s Splitter
		var all []byte
		for p := b; len(p) > 0; {
			n := min(size, len(p))
			part := s.Whole(p[:n])
			if utf8.Valid(b) && !utf8.Valid(part) {
				t.Errorf("%q has half a character", part)
			}
			all = append(all, part...)
			p = p[n:]
		}
		if rest := s.Rest(); len(rest) >= utf8.UTFMax {
			t.Errorf("%d bytes were held", len(rest))
		} else if all = append(all, rest...); !bytes.Equal(all, b) {
			t.Errorf("%q became %q", b, all)
		}
	})
}

func FuzzPartial(f *testing.F) {
	for _, s := range []string{"", "a", "\xc3", "\xf0\x9f\x98", "\x80\x80", "\xff"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		n := Partial(b)
		if n < 0 || n > 3 || n > len(b) {
			t.Fatalf("%q: %d", b, n)
		}
		if utf8.Valid(b) && n != 0 {
			t.Errorf("%q is whole, but %d", b, n)
		}
		if n > 0 && utf8.FullRune(b[len(b)-n:]) {
			t.Errorf("%q: the last %d are a whole character", b, n)
		}
	})
}
