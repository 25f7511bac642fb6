package daemon

import (
	"bytes"
	"log/slog"
	"os"
	"strings"
	"testing"
)

// settle frees only pages that can be read again: the program goes on, with less of
// its file in memory.
func TestSettle(t *testing.T) {
	before := fileMemory(t)
	var log bytes.Buffer
	settle(t.Context(), slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})))
	if log.Len() > 0 {
		t.Error(log.String())
	}
	if after := fileMemory(t); after >= before {
		t.Errorf("%d kB of files are in memory, before it were %d", after, before)
	}
}

// fileMemory returns the file-backed part of this process's memory, in kB.
func fileMemory(t *testing.T) (kB int) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(status), "RssFile:")
	if !ok {
		t.Skip("this kernel does not tell how much memory is that of files")
	}
	for _, c := range strings.TrimSpace(rest) {
		if c < '0' || c > '9' {
			break
		}
		kB = kB*10 + int(c-'0')
	}
	return kB
}
