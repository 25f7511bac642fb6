package gvisor

import (
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"sync"
)

// buildID identifies this program: what the Go linker has written into it, which
// stands for its contents, or a hash of it if that was left out.
var buildID = sync.OnceValues(func() (string, error) {
	f, err := os.Open("/proc/self/exe")
	if err != nil {
		return "", fmt.Errorf("identify this build: %w", err)
	}
	defer f.Close()
	h := sha256.New()
	if id := linkedID(f); id != nil {
		h.Write(id) // it is long, and may have slashes
	} else if _, err := io.Copy(h, f); err != nil {
		return "", fmt.Errorf("identify this build: %w", err)
	}
	return hex.EncodeToString(h.Sum(nil)[:16]), nil
})

// linkedID returns the Go build id of a program, or nil if it has none.
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
