package cay_test

import (
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// maxFile is the largest file that belongs into the repository, in bytes. The largest today is
// the terminal of the inspector, 330 KB of built JavaScript.
const maxFile = 512 << 10

// A build output or another project's source tree that is committed by mistake stays in every
// clone for ever, also after its removal.
func TestFiles_Size(t *testing.T) {
	t.Parallel()
	names, err := exec.Command("git", "ls-files", "-z").Output()
	if err != nil {
		t.Skipf("this is no git checkout: %v", err)
	}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(names), "\x00"), "\x00") {
		info, err := os.Lstat(name)
		if os.IsNotExist(err) {
			continue // removed, and not committed yet
		}
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode()&fs.ModeType == 0 && info.Size() > maxFile {
			t.Errorf("%s has %d bytes; files above %d are made by make, or downloaded, and not committed", name, info.Size(), maxFile)
		}
	}
}
