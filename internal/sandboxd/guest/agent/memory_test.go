package agent

import (
	"archive/tar"
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
)

// unpackWith unpacks an archive on a machine with the given memory use, and returns how
// many members exist afterwards.
func unpackWith(t *testing.T, dir string, use memoryUse, n int, size int64) (int, error) {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for i := range n {
		if err := w.WriteHeader(&tar.Header{Name: fmt.Sprint(i), Size: size, Mode: 0o644}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(make([]byte, size)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	root, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	x := &extractor{ctx: t.Context(), root: root, own: owner{-1, -1}}
	x.taking.memory = &memory{look: func() (memoryUse, error) { return use, nil }}
	defer x.leaveDirs()
	err = x.staying(x.extract(&b, sandbox.Tar))
	entries, readErr := os.ReadDir(dir)
	if readErr != nil {
		t.Fatal(readErr)
	}
	return len(entries), err
}

const mib = 1 << 20

// Memory for files, wherever they are unpacked, is counted before the files are made.
func TestExtract_memory(t *testing.T) {
	t.Parallel()
	roomy := memoryUse{limit: 256 * mib, programs: 32 * mib}
	full := memoryUse{limit: 256 * mib, programs: 225 * mib}
	for _, tt := range []struct {
		name     string
		use      memoryUse
		files    int
		min, max int // that stay
	}{
		{"room", roomy, 2000, 2000, 2000},
		{"few", full, 500, 500, 500},
		{"full", full, 2000, 500, 1000},
		{"much of gVisor's", memoryUse{limit: 256 * mib, programs: 8 * mib, sentry: 190 * mib, heap: 180 * mib, inUse: 180 * mib}, 2000, 500, 1000},
		{"garbage of gVisor's", memoryUse{limit: 256 * mib, programs: 8 * mib, sentry: 190 * mib, heap: 180 * mib, inUse: 150 * mib}, 2000, 2000, 2000},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			stayed, err := unpackWith(t, t.TempDir(), tt.use, tt.files, 0)
			if stayed < tt.min || stayed > tt.max || stayed == tt.files && err != nil {
				t.Fatalf("%d files were unpacked, %v", stayed, err)
			}
			if stayed < tt.files && (cay.CodeOf(err) != cay.NoSpace || !strings.Contains(err.Error(), fmt.Sprintf("256 MiB of memory have no room for it beside what runs; members unpacked before, which stay: %d", stayed))) {
				t.Errorf("%d stay: %v", stayed, err)
			}
		})
	}
}

// On a memory file system their content does, too.
func TestExtract_memoryContent(t *testing.T) {
	t.Parallel()
	var fs unix.Statfs_t
	if err := unix.Statfs("/dev/shm", &fs); err != nil || fs.Type != unix.TMPFS_MAGIC {
		t.Skip("no memory file system at /dev/shm:", err)
	}
	for left, want := range map[int64]int{0: 6, 2 * mib: 10} { // beyond the first 2 MiB
		dir, err := os.MkdirTemp("/dev/shm", "cay-test-")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(dir) })
		stayed, err := unpackWith(t, dir, memoryUse{limit: 256 * mib, programs: (224 - left/mib) * mib}, 10, 300<<10)
		if stayed != want || want < 10 && cay.CodeOf(err) != cay.NoSpace || want == 10 && err != nil {
			t.Errorf("with %d bytes left %d files were unpacked, %v", left, stayed, err)
		}
	}
}

// The last IdentityRequest sets the memory limit, if the kernel was told a higher limit.
func TestMemoryUse(t *testing.T) {
	t.Parallel()
	s, err := New(Config{Root: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	told, err := s.memoryUse()
	if err != nil || told.limit <= 64*mib || told.programs <= 0 {
		t.Fatalf("%+v, %v", told, err)
	}
	for _, bytes := range []int64{64 * mib, 1 << 60} {
		now := *s.self()
		now.request.MemoryBytes = bytes
		s.identity.now.Store(&now)
		if use, err := s.memoryUse(); err != nil || use.limit != min(bytes, told.limit) {
			t.Errorf("told %d bytes: %+v, %v", bytes, use, err)
		}
	}
}
