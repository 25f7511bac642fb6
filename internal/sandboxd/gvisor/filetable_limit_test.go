package gvisor

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay"
)

// If the limit of open files is too low, the error says so, with its value and a remedy.
func TestDupAbove_Limit(t *testing.T) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	f, err := dupAbove(null, int(limit.Cur))
	if err == nil {
		f.Close()
		t.Fatalf("descriptor %d was opened, and the limit is that", f.Fd())
	}
	var e *cay.Error
	if !errors.As(err, &e) || e.Code != cay.NotSupported || !strings.Contains(e.Message, strconv.FormatUint(limit.Cur, 10)+" files") || !strings.Contains(e.Hint, "ulimit -n") {
		t.Errorf("got %v", err)
	}
}
