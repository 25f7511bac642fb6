package gvisor

import (
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/runsc/specutils"
)

// chosen is the program that sentries execute, if not this program.
var chosen struct {
	once sync.Once
	file *os.File // open for as long as there is this process
	err  error
}

// UseProgram makes the sentries that this process starts execute the program in a file,
// cay-sentry, instead of this program: cay-sentry has less to initialize, and needs less
// memory. The first call applies to all Runtimes of the process, because gVisor has one
// program for a process, and must come before any machine starts; later calls return the
// result of the first. The file stays open, so it may be removed.
func UseProgram(path string) error {
	chosen.once.Do(func() {
		if chosen.file, chosen.err = openProgram(path); chosen.err == nil {
			specutils.ExePath = executable(chosen.file)
		}
	})
	return chosen.err
}

func openProgram(path string) (*os.File, error) {
	// Root may execute a file without the execute bit for root, and the user nobody
	// cannot execute a file on a file system mounted noexec.
	if err := unix.Faccessat(unix.AT_FDCWD, path, unix.X_OK, 0); err != nil {
		return nil, fmt.Errorf("execute %s: %w", path, err)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	// In the child that executes the program, the sentry's files replace the descriptors
	// with low numbers. See aboveProgram.
	return dupAbove(f, tableFile)
}

// executable is the path by which a sentry's process executes an open program. The path of
// its file would not do: a sentry runs as nobody before it executes the program, and only
// root can reach that path.
func executable(program *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", program.Fd()) }

// aboveProgram returns f, a file for the sentry, as a descriptor above the descriptor of
// the program that the sentry executes, and closes f. In the child, Go's os/exec moves
// files to descriptors that follow the highest descriptor it hands over. So the program's
// descriptor stays below these, and above the final descriptors of the files.
func aboveProgram(f, program *os.File) (*os.File, error) {
	if program == nil {
		return f, nil
	}
	defer f.Close()
	return dupAbove(f, int(program.Fd())+1)
}

// starting guards specutils.ExePath, the program that gVisor executes. Many goroutines may
// start the chosen program at the same time, and no goroutine while another program starts.
var starting sync.RWMutex

// startProgram calls start, which starts a sentry. Nil for program means the chosen one.
func startProgram(program *os.File, start func() error) error {
	if program == nil {
		starting.RLock()
		defer starting.RUnlock()
		return start()
	}
	starting.Lock()
	defer starting.Unlock()
	usual := specutils.ExePath
	specutils.ExePath = executable(program)
	defer func() { specutils.ExePath = usual }()
	return start()
}

// ProgramID identifies a program by the build id that the Go linker wrote into it, which
// stands for its contents, or by a hash of the whole file if there is no build id. The ID
// has 32 characters, 0-9 and a-f.
func ProgramID(program io.ReaderAt) (string, error) {
	h := sha256.New()
	if id := linkedID(program); id != nil {
		h.Write(id) // the id is long, and may contain slashes
	} else if _, err := io.Copy(h, io.NewSectionReader(program, 0, 1<<62)); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)[:16]), nil
}

// linkedID returns the Go build id of a program, nil if the program has no build id.
func linkedID(r io.ReaderAt) []byte {
	program, err := elf.NewFile(r)
	if err != nil {
		return nil
	}
	section := program.Section(".note.go.buildid")
	if section == nil {
		return nil
	}
	note, err := section.Data()
	if err != nil || len(note) <= 16 { // the header: sizes, kind, "Go"
		return nil
	}
	return note[16:]
}
