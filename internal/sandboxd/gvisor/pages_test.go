package gvisor

import (
	"bytes"
	"crypto/rand"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/sentry/memmap"
	"gvisor.dev/gvisor/pkg/sentry/state/checkpointfiles"
	"gvisor.dev/gvisor/pkg/sentry/state/stateio"

	"github.com/cayhq/cay/internal/sandboxd/machine"
)

// served returns a pager's server of one pages file, and a sentry's file.
func served(t testing.TB, content []byte, sums bool) (*checkpointServer, *os.File, *os.File) {
	t.Helper()
	dir := t.TempDir()
	f, err := os.Create(filepath.Join(dir, checkpointfiles.PagesFileName))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if _, err := f.Write(content); err != nil {
		t.Fatal(err)
	}
	var state *machine.State
	if sums {
		state = &machine.State{Kind: machine.MemoryState}
		if err := machine.SealState(t.Context(), dir, state, []*os.File{f}); err != nil {
			t.Fatal(err)
		}
	}
	s := &checkpointServer{does: loads, files: map[string][]servedFile{checkpointfiles.PagesFileName: {{File: f, state: state}}}}
	fd, err := unix.MemfdCreate("sentry", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	mem := os.NewFile(uintptr(fd), "sentry")
	t.Cleanup(func() { mem.Close() })
	return s, f, mem
}

func openPages(t testing.TB, s *checkpointServer, mem *os.File) (*pageReader, stateio.DestinationFile) {
	t.Helper()
	r, err := s.OpenRead(checkpointfiles.PagesFileName)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	dst, err := r.RegisterDestinationFD(int32(mem.Fd()), 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	return r.(*pageReader), dst
}

const somePages = 5*machine.SumBlock + 4096

func random(n int) []byte {
	b := make([]byte, n)
	rand.Read(b)
	return b
}

func TestPageReader(t *testing.T) {
	t.Parallel()
	content := random(somePages)
	for _, verify := range []bool{false, true} {
		s, f, mem := served(t, content, verify)
		r, dst := openPages(t, s, mem)
		for i, c := range []struct {
			off    int64
			ranges []memmap.FileRange
			n      uint64
			err    error
		}{
			{0, []memmap.FileRange{{Start: 0, End: 4096}}, 4096, nil},
			{machine.SumBlock - 4096, []memmap.FileRange{{Start: 8192, End: 12288}, {Start: 0, End: 4096}}, 8192, nil},
			{4096, []memmap.FileRange{{Start: 1 << 20, End: 1<<20 + 3*machine.SumBlock}}, 3 * machine.SumBlock, nil},
			{somePages - 4096, []memmap.FileRange{{Start: 0, End: 8192}}, 4096, io.EOF},
			{somePages, []memmap.FileRange{{Start: 0, End: 4096}}, 0, io.EOF},
			{1 << 62, []memmap.FileRange{{Start: 0, End: 4096}}, 0, io.EOF},
			{-1, []memmap.FileRange{{Start: 0, End: 4096}}, 0, unix.EINVAL},
		} {
			r.AddReadv(i, c.off, 0, dst, c.ranges, nil)
			cs, err := r.Wait(nil, 1)
			if err != nil || len(cs) != 1 || cs[0].ID != i || cs[0].N != c.n || !errors.Is(cs[0].Err, c.err) {
				t.Fatalf("%+v: %+v, %v", c, cs, err)
			}
			var got []byte
			for _, fr := range c.ranges {
				part := make([]byte, fr.Length())
				if _, err := mem.ReadAt(part, int64(fr.Start)); err != nil && err != io.EOF {
					t.Fatal(err)
				}
				got = append(got, part...)
			}
			if c.n > 0 && !bytes.Equal(got[:c.n], content[c.off:c.off+int64(c.n)]) {
				t.Errorf("%+v: wrong bytes", c)
			}
		}
		if s.failed.Load() != nil {
			t.Errorf("what a sentry asks for is no failure of the pager's: %v", *s.failed.Load())
		}
		if _, err := r.Wait(nil, 1); err == nil {
			t.Error("waited for nothing")
		}
		// A file that shrinks or changes under it.
		if err := f.Truncate(2 * machine.SumBlock); err != nil {
			t.Fatal(err)
		}
		r.AddRead(1, 4*machine.SumBlock, dst, memmap.FileRange{Start: 0, End: 4096}, nil)
		if cs, err := r.Wait(nil, 1); err != nil || cs[0].Err == nil || verify && s.failed.Load() == nil {
			t.Errorf("read beyond the end: %+v, %v", cs, err)
		}
	}
}

func TestPageReader_Damaged(t *testing.T) {
	t.Parallel()
	s, f, mem := served(t, random(somePages), true)
	if _, err := f.WriteAt([]byte("damage"), 2*machine.SumBlock+100); err != nil {
		t.Fatal(err)
	}
	r, dst := openPages(t, s, mem)
	for _, c := range []struct {
		off, n int64
		ok     bool
	}{
		{0, 2 * machine.SumBlock, true},
		{2*machine.SumBlock + 4096, 4096, false}, // the same block, but not the damage
		{machine.SumBlock, 2 * machine.SumBlock, false},
		{3 * machine.SumBlock, machine.SumBlock, true},
	} {
		r.AddRead(0, c.off, dst, memmap.FileRange{Start: 0, End: uint64(c.n)}, nil)
		if cs, err := r.Wait(nil, 1); err != nil || (cs[0].Err == nil) != c.ok {
			t.Errorf("%+v: %+v, %v", c, cs, err)
		}
	}
}

// Descriptors that a sentry passes must not keep the pager alive, and their number is
// bounded.
func TestClientFDs(t *testing.T) {
	t.Parallel()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fds[0])
	defer unix.Close(fds[1])
	_, f, _ := served(t, nil, false)
	var c clientFDs
	defer func() {
		if err := c.close(); err != nil {
			t.Error(err)
		}
	}()
	for _, fd := range []int{fds[0], -1} {
		if _, err := c.register(int32(fd)); err == nil {
			t.Errorf("descriptor %d was taken", fd)
		}
	}
	for i := range maxClientFDs + 1 {
		if _, err := c.register(int32(f.Fd())); (err != nil) != (i == maxClientFDs) {
			t.Fatalf("file %d: %v", i, err)
		}
	}
}

func TestPageWriter(t *testing.T) {
	t.Parallel()
	s, f, mem := served(t, nil, false)
	s.does, s.bounded = saves, true
	s.left.Store(20000)
	content := random(16384)
	if _, err := mem.WriteAt(content, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := s.OpenRead(checkpointfiles.PagesFileName); err == nil {
		t.Error("opened for reading")
	}
	if _, err := s.OpenWrite("../else"); err == nil {
		t.Error("opened another file")
	}
	w, err := s.OpenWrite(checkpointfiles.PagesFileName)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if _, err := s.OpenWrite(checkpointfiles.PagesFileName); err == nil {
		t.Error("opened twice")
	}
	src, err := w.RegisterSourceFD(int32(mem.Fd()), 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	w.AddWrite(0, src, memmap.FileRange{Start: 4096, End: 8192}, nil)
	w.AddWritev(1, 12288, src, []memmap.FileRange{{Start: 8192, End: 16384}, {Start: 0, End: 4096}}, nil)
	cs, err := w.Wait(nil, 2)
	if err != nil || len(cs) != 2 || cs[0].Err != nil || cs[1].Err != nil {
		t.Fatal(cs, err)
	}
	got, err := os.ReadFile(f.Name())
	if err != nil || !bytes.Equal(got, slices.Concat(content[4096:], content[:4096])) {
		t.Errorf("wrote %d bytes, not the right ones: %v", len(got), err)
	}
	if _, err := w.Wait(nil, 1); err == nil {
		t.Error("waited for nothing")
	}
	w.AddWrite(0, src, memmap.FileRange{Start: 0, End: 4096}, nil)
	if cs, err := w.Wait(nil, 1); err != nil || !errors.Is(cs[0].Err, unix.EFBIG) || !errors.Is(*s.failed.Load(), errTooLarge) {
		t.Errorf("more than may be written: %+v, %v", cs, err)
	}
	if info, err := f.Stat(); err != nil || info.Size() != 16384 {
		t.Errorf("%d bytes were written, %v", info.Size(), err)
	}
}

// A sentry may request anything within the sizes that its server has checked.
func FuzzPageReader(f *testing.F) {
	f.Add(int64(0), uint64(0), uint64(4096), uint64(8192), uint64(12288))
	f.Add(int64(-1), uint64(0), uint64(0), uint64(1), uint64(0))
	f.Add(int64(somePages-1), uint64(1<<63), uint64(1<<63+4096), uint64(0), uint64(1))
	content := random(somePages)
	s, _, mem := served(f, content, true)
	r, dst := openPages(f, s, mem)
	f.Fuzz(func(t *testing.T, off int64, a, b, c, d uint64) {
		ranges := []memmap.FileRange{{Start: a, End: b}, {Start: c, End: d}}
		if b < a || d < c || b-a > r.maxRead || d-c > r.maxRead || b-a+d-c > r.maxRead || b > 1<<40 || d > 1<<40 {
			t.Skip("the server refuses it")
		}
		r.AddReadv(0, off, 0, dst, ranges, nil)
		cs, err := r.Wait(nil, 1)
		if err != nil || len(cs) != 1 {
			t.Fatal(cs, err)
		}
		if want := b - a + d - c; cs[0].Err == nil && cs[0].N != want || cs[0].N > want {
			t.Fatalf("%+v of %d", cs, want)
		}
	})
}
