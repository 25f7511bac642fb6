package torture

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay/internal/db/dbtest"
)

// hardship is an adverse condition in a life of the daemon, in addition to the kill at
// its end.
type hardship string

const (
	// fullDisk: no bytes, or only a few, can be written in the installation's directory
	// while the daemon opens and recovers.
	fullDisk hardship = "full disk"
	// fewFiles: the daemon can open only a few more files while it recovers.
	fewFiles hardship = "few file descriptors"
	// powerCut: when the daemon dies, all processes of the installation die, too, and its
	// database returns to its state at the last sync.
	powerCut hardship = "power cut"
	// upgrade: a process of another build takes over in the midst of the life, and either
	// process is killed.
	upgrade hardship = "upgrade"
)

var hardships = []hardship{fullDisk, fewFiles, powerCut, upgrade}

// chooseHardships returns the hardships of the lives of a number of installations: each
// kind occurs in one of ten lives, in a test of few rounds in one life. The first life of
// an installation has no hardship, because it has no data to lose.
func chooseHardships(r *rand.Rand, installations, lives int) [][]hardship {
	all := make([][]hardship, installations)
	for n := range all {
		all[n] = make([]hardship, lives)
	}
	each := max(1, installations*lives/10)
	for n, place := range r.Perm(installations * max(0, lives-1)) {
		if n == each*len(hardships) {
			break
		}
		all[place%installations][1+place/installations] = hardships[n%len(hardships)]
	}
	return all
}

// ownMountsEnv is set in a process with a mount namespace of its own.
const ownMountsEnv = "CAY_TEST_OWN_MOUNTS"

// runWithOwnMounts runs this program again with the same arguments, in a mount namespace
// of its own, and returns its exit status.
func runWithOwnMounts() int {
	runtime.LockOSThread() // the child is killed when this thread ends
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Env = append(os.Environ(), ownMountsEnv+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return cmd.ProcessState.ExitCode()
}

// diskSize is the size of an installation's disk in bytes. It takes no memory until it
// is written to.
const diskSize = 4 << 30

// mountDisk mounts a disk at a directory, until the test ends.
func mountDisk(t *testing.T, dir string) {
	t.Helper()
	if err := unix.Mount("cay-torture", dir, "tmpfs", 0, "mode=700,size="+strconv.Itoa(diskSize)); err != nil {
		t.Fatalf("mount tmpfs at %s: %v", dir, err)
	}
	t.Cleanup(func() {
		endProcesses(t, dir)
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
}

// fillDisk fills the disk at a directory until room bytes are left.
func fillDisk(dir string, room int64) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return fmt.Errorf("look at the disk: %w", err)
	}
	return resizeDisk(dir, int64(st.Blocks-st.Bfree)*st.Bsize+room)
}

func resizeDisk(dir string, size int64) error {
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT, "size="+strconv.FormatInt(size, 10)); err != nil {
		return fmt.Errorf("resize the disk to %d bytes: %w", size, err)
	}
	return nil
}

// limitFiles limits this process to more further open files, until restore is called.
func limitFiles(more int) (restore func() error, err error) {
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		return nil, fmt.Errorf("read the limit on open files: %w", err)
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	next := uint64(null.Fd()) // all lower numbers are taken
	if err := null.Close(); err != nil {
		return nil, err
	}
	set := func(l unix.Rlimit) error {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
			return fmt.Errorf("limit open files to %d: %w", l.Cur, err)
		}
		return nil
	}
	return func() error { return set(was) }, set(unix.Rlimit{Cur: next + uint64(more), Max: was.Max})
}

// endProcesses kills all other processes that have files below dir open, and waits until
// they are gone.
func endProcesses(t *testing.T, dir string) {
	t.Helper()
	for left := holders(t, dir); len(left) > 0; left = holders(t, dir) {
		for pid, file := range left {
			if err := endProcess(pid); err != nil {
				t.Fatalf("end process %d, which has %s open: %v", pid, file, err)
			}
		}
	}
}

// endProcess kills a process and waits, for at most 1 min, until it has ended.
func endProcess(pid int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return err
	}
	for deadline := time.Now().Add(time.Minute); ; {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(time.Until(deadline).Milliseconds())+1)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return err
		case n == 0:
			return errors.New("it does not end")
		default:
			return nil
		}
	}
}

// holders returns the other processes that have files below dir open, each with the name
// of such a file.
func holders(t *testing.T, dir string) map[int]string {
	t.Helper()
	fds, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	found := make(map[int]string)
	for _, fd := range fds {
		target, err := os.Readlink(fd)
		if err != nil || !strings.HasPrefix(target, dir+"/") {
			continue
		}
		if pid, err := strconv.Atoi(strings.Split(fd, "/")[2]); err == nil && pid != os.Getpid() {
			found[pid] = fd + " -> " + target
		}
	}
	return found
}

// syncedCopies stores a copy of a database at each of the database's syncs, in a
// directory below dir whose name is the number of the sync.
type syncedCopies struct {
	dir  string
	next int
}

// copy stores a copy of the database at path and removes the previous copy. The copy with
// the highest number is complete, whenever the process is killed.
func (c *syncedCopies) copy(path string) error {
	files, err := dbtest.Files(path)
	if err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(filepath.Dir(c.dir), "copy")
	if err != nil {
		return err
	}
	for suffix, b := range files {
		if err := os.WriteFile(filepath.Join(tmp, "db"+suffix), b, 0o600); err != nil {
			return err
		}
	}
	c.next++
	if err := os.Rename(tmp, c.path(c.next)); err != nil {
		return err
	}
	return os.RemoveAll(c.path(c.next - 1))
}

func (c *syncedCopies) path(n int) string { return filepath.Join(c.dir, fmt.Sprintf("%08d", n)) }

// cutPower simulates a power cut for an installation whose daemon was killed: it ends the
// installation's processes, restores the database as of its last sync, and empties some
// of the files in the machines' directories, which the daemon does not sync.
func cutPower(t *testing.T, i installation, synced string, r *rand.Rand) {
	t.Helper()
	endProcesses(t, i.Dir)
	path := filepath.Join(i.Dir, databaseFile)
	copies, err := os.ReadDir(synced)
	if err != nil {
		t.Fatal(err)
	}
	for _, suffix := range []string{"", "-wal", "-shm"} {
		err := os.Remove(path + suffix)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		if len(copies) == 0 {
			continue
		}
		b, err := os.ReadFile(filepath.Join(synced, copies[len(copies)-1].Name(), "db"+suffix))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = os.WriteFile(path+suffix, b, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	err = filepath.WalkDir(filepath.Join(i.Dir, "machines"), func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() || r.IntN(2) == 0 {
			return err
		}
		return os.Truncate(path, 0)
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
}
