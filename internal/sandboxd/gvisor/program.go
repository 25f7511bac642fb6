package gvisor

import (
	"crypto/sha256"
	"debug/elf"
	"embed"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/runsc/specutils"
)

// chosen is the program that sentries execute, if not this program.
var chosen struct {
	once sync.Once
	file *os.File // open for as long as there is this process
	id   string   // of what can read saved memory; "" if that is this very program
	err  error
}

// UseProgram makes the sentries that this process starts execute the program in a file,
// cay-sentry, instead of this program: cay-sentry has less to initialize, and needs less
// memory. The first call applies to all Runtimes of the process, because gVisor has one
// program for a process, and must come before any machine starts; later calls return the
// result of the first. The file stays open, so it may be removed.
//
// sentryID and guestID are the ProgramIDs of cay-sentry and of the guest's program, with
// which another build of cay that has the same two reads the memory that this one saves.
// If guestID is empty, only this very build reads it.
func UseProgram(path, sentryID, guestID string) error {
	chosen.once.Do(func() {
		if guestID != "" {
			chosen.id = memoryID(sentryID, guestID, restorers)
		}
		if chosen.file, chosen.err = openProgram(path); chosen.err == nil {
			// The path would not do: a sentry runs as nobody before it executes the
			// program, and only root can reach the path.
			specutils.ExePath = fmt.Sprintf("/proc/self/fd/%d", chosen.file.Fd())
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

// aboveProgram returns f, a file for the sentry, as a descriptor above the descriptor of
// the program that the sentry executes, and closes f. In the child, Go's os/exec moves
// files to descriptors that follow the highest descriptor it hands over. So the program's
// descriptor stays below these, and above the final descriptors of the files.
func aboveProgram(f *os.File) (*os.File, error) {
	if chosen.file == nil {
		return f, nil
	}
	defer f.Close()
	return dupAbove(f, int(chosen.file.Fd())+1)
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

// restorers are the sources that decide how memory is saved and read, beside the programs
// of a sandbox: the files of a saved state, the pager that reads them, and the
// specification that a machine is restored with, which gVisor compares with the saved
// one.
//
//go:embed checkpoint.go fork.go layers.go load.go mounts.go pager.go pages.go restore.go runtime.go spec.go
var restorers embed.FS

// memoryID identifies what can read saved memory.
func memoryID(sentryID, guestID string, sources fs.FS) string {
	h := sha256.New()
	fmt.Fprintf(h, "%s %s\n", sentryID, guestID) // a hash takes everything
	names, _ := fs.Glob(sources, "*.go")         // the pattern is right
	for _, name := range names {
		text, _ := fs.ReadFile(sources, name) // it is in memory
		fmt.Fprintf(h, "%s %d\n%s", name, len(text), text)
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// buildID identifies the builds that can read the memory that this program saves. Saved
// memory contains the guest's program and is a state of the sentry. If both are separate
// programs, buildID is a hash of them and of the sources that save and restore memory;
// otherwise it is the build id of this program.
func buildID() (string, error) {
	if chosen.id != "" {
		return chosen.id, nil
	}
	return ownID()
}

// ownID identifies this program, and with it the programs that it embeds.
var ownID = sync.OnceValues(func() (string, error) {
	f, err := os.Open("/proc/self/exe")
	if err != nil {
		return "", fmt.Errorf("identify this build: %w", err)
	}
	defer f.Close()
	id, err := ProgramID(f)
	if err != nil {
		return "", fmt.Errorf("identify this build: %w", err)
	}
	return id, nil
})

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
