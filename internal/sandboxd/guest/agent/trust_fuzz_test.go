package agent

import (
	"bytes"
	"slices"
	"testing"
)

// For any bundle, adding the same section again changes nothing, and all bytes outside
// the section stay.
func FuzzSection(f *testing.F) {
	f.Add([]byte(""), []byte("extra\n"))
	f.Add([]byte("no line end"), []byte("extra\n"))
	f.Add([]byte("a\n"+sectionBegin+"old\n"+sectionEnd+"b\n"), []byte("extra\n"))
	f.Add([]byte(sectionEnd+"a\n"+sectionBegin+"b\n"), []byte("extra\n"))
	f.Add([]byte(sectionBegin+sectionBegin+"a\n"+sectionEnd+sectionEnd), []byte("extra\n"))
	f.Add([]byte(sectionBegin+"a\n"+"# cay: end"), []byte("extra\n"))
	f.Fuzz(func(t *testing.T, bundle, extra []byte) {
		if bytes.Contains(extra, []byte("#")) || !bytes.HasSuffix(extra, []byte("\n")) { // no PEM
			t.Skip()
		}
		add := func(b []byte) []byte { return withSection(slices.Clip(withoutSection(slices.Clone(b))), extra) }
		once := add(bundle)
		if twice := add(once); !bytes.Equal(once, twice) {
			t.Errorf("once %q, twice %q", once, twice)
		}
		if !bytes.Contains(once, extra) {
			t.Errorf("%q has no %q", once, extra)
		}
		if !bytes.Contains(bundle, []byte("# cay: ")) && !bytes.HasPrefix(once, bundle) {
			t.Errorf("%q became %q", bundle, once)
		}
	})
}
