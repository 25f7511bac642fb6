package sentry

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	"gvisor.dev/gvisor/pkg/sentry/seccheck"
)

// The umounter unmounts when it is told to, and ends before the sentry and most other
// packages are initialized.
func TestUmounter(t *testing.T) {
	told, tell, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer told.Close()
	var said strings.Builder
	cmd := exec.Command("/proc/self/exe", "umount", "--sync-fd=3", "/nowhere")
	cmd.ExtraFiles, cmd.Stderr = []*os.File{told}, &said
	cmd.Env = append(os.Environ(), "GODEBUG=inittrace=1")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := tell.Write([]byte{1}); err != nil {
		t.Fatal(err)
	}
	if err := tell.Close(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 1 {
		t.Errorf("there is nothing to unmount, and it ended with %v", err)
	}
	if !strings.Contains(said.String(), "init runtime ") || strings.Contains(said.String(), "init gvisor.dev/gvisor/pkg/sentry/") {
		t.Errorf("it has initialized\n%s", said.String())
	}
}

// The points that traceNothing skips are all the points that gVisor would initialize.
func TestTraceNothing(t *testing.T) {
	traceNothing()
	before := len(seccheck.Points)
	if seccheck.Initialize(); len(seccheck.Points) != before {
		t.Errorf("gVisor made %d points ready", len(seccheck.Points)-before)
	}
	traceInit = sync.Once{}
	if seccheck.Initialize(); len(seccheck.Points) < 500 {
		t.Errorf("without it there are %d points only", len(seccheck.Points))
	}
}

// A sentry with a pager's socket gets gVisor's flags for such a socket.
func TestPagedDisk(t *testing.T) {
	t.Parallel()
	const boot, confs = "boot", "--gofer-mount-confs=erofs:anon:size=1m,erofs:none"
	for _, c := range []struct {
		name       string
		args, want []string
	}{
		{"NoPager",
			[]string{Name, boot, confs, "--io-fds=5", "--io-fds=6", "--gofer-filestore-fds=7", "id"},
			[]string{Name, boot, confs, "--io-fds=5", "--io-fds=6", "--gofer-filestore-fds=7", "id"}},
		{"Pager",
			[]string{Name, boot, confs, "--io-fds=5", "--io-fds=6", "--io-fds=7", "--gofer-filestore-fds=8", "id"},
			[]string{Name, boot, confs, "--io-fds=5", "--io-fds=6", "--fs-restore-checkpoint-gofer", "--fs-restore-fds=7", "--gofer-filestore-fds=8", "id"}},
		{"RootAlone",
			[]string{Name, "--gofer-mount-confs=erofs:anon", "--io-fds=5", "--io-fds=6"},
			[]string{Name, "--gofer-mount-confs=erofs:anon", "--io-fds=5", "--fs-restore-checkpoint-gofer", "--fs-restore-fds=6"}},
		{"Drives",
			[]string{Name, confs + ",none:anon", "--io-fds=5", "--io-fds=6", "--io-fds=7"},
			[]string{Name, confs + ",none:anon", "--io-fds=5", "--io-fds=6", "--fs-restore-checkpoint-gofer", "--fs-restore-fds=7"}},
		{"DrivesWithoutPager",
			[]string{Name, confs + ",none:anon", "--io-fds=5", "--io-fds=6"},
			[]string{Name, confs + ",none:anon", "--io-fds=5", "--io-fds=6"}},
		{"NoMounts", []string{Name, boot, "id"}, []string{Name, boot, "id"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			given := slices.Clone(c.args)
			if got := pagedDisk(c.args); !slices.Equal(got, c.want) {
				t.Errorf("got %q\nwant %q", got, c.want)
			}
			if !slices.Equal(c.args, given) {
				t.Error("the arguments given were changed")
			}
		})
	}
}

func TestFileFlags(t *testing.T) {
	for arg, want := range map[string]string{
		"--controller-fd=5": "5", "--io-fds=12": "12", "--pass-fd=9:3": "9", "--gofer-filestore-fds=6": "6",
		"--mounts-fd=-1": "", "--root=/x-fd=3": "", "boot": "", "--cpu-num": "",
	} {
		got := ""
		if m := fileFlags().FindStringSubmatch(arg); m != nil {
			got = m[1]
		}
		if got != want {
			t.Errorf("%s names file %q, want %q", arg, got, want)
		}
	}
}
