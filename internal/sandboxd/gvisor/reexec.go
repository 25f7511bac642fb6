package gvisor

import (
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/runsc/cli/maincli"
	"gvisor.dev/gvisor/runsc/cmd/sandboxsetup"

	_ "github.com/cayhq/cay/internal/sandboxd/gvisor/early" // the umounter
	"github.com/cayhq/cay/internal/sandboxd/gvisor/filter"
)

// HandleReexec turns this process into a gVisor helper if it was started as
// one, and then never returns. gVisor starts its sentry (and a short-lived
// umounter) by executing /proc/self/exe again, so main must call this before
// anything else, and so must TestMain of every test that starts sandboxes.
func HandleReexec() {
	switch os.Args[0] {
	case "runsc-sandbox":
		dieOfFaults()
		spendMemory()
		filter.Use()
		args, err := inOneGo(pagedDisk(os.Args))
		if err == nil {
			os.Args, err = args, dropStrayFiles(args)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "cay:", err)
			os.Exit(128)
		}
	case pagerName:
		os.Exit(pager(os.Args[1:]))
	case "runsc-gofer", "/proc/self/exe":
	default:
		return
	}
	maincli.Main()
	os.Exit(0)
}

// dieOfFaults has a sentry that is sent a signal of a crash say so, where a panic
// would, and end. gVisor passes signals on to the guest's init, so that it would look
// as if that had been killed from inside.
func dieOfFaults() {
	faults := make(chan os.Signal, 1)
	signal.Notify(faults, unix.SIGSEGV, unix.SIGBUS, unix.SIGFPE, unix.SIGILL, unix.SIGABRT, unix.SIGTRAP, unix.SIGSYS)
	go func() {
		fmt.Fprintf(os.Stderr, "fatal error: the sentry was sent signal %d\n", <-faults)
		os.Exit(exitFault)
	}()
}

// exitFault is the exit code of a sentry that ends so.
const exitFault = 128

const (
	// bootTime is about how long a sentry starts, and bootMemory what its own heap
	// may grow to meanwhile.
	bootTime   = time.Second
	bootMemory = 48 << 20
)

// spendMemory has a sentry collect no garbage while it starts, which would take a
// tenth of that time, and then once, giving back to the host what it has left.
func spendMemory() {
	percent := debug.SetGCPercent(-1)
	limit := debug.SetMemoryLimit(bootMemory)
	time.AfterFunc(bootTime, func() {
		debug.SetMemoryLimit(limit)
		debug.SetGCPercent(percent)
		debug.FreeOSMemory()
	})
}

// setUpCapabilities are what a sentry needs, in its own user namespace, to make
// itself an empty root.
var setUpCapabilities = []string{"CAP_SYS_ADMIN", "CAP_SYS_CHROOT"}

// inOneGo has a sentry, which is nobody already, give up its capabilities where it
// is, in all of its threads, instead of in a second life: to execute this program
// once more takes a tenth of its start. gVisor does so by itself for sentries that
// are less isolated, and lets them keep one for its platform, if they have it. Ours
// gets by without, as it does after a second life, and so has it no more; nor any
// that it could come by, nor the right to give those up, which gVisor would do once
// more, by 40 calls for which all threads stop.
func inOneGo(args []string) ([]string, error) {
	i := slices.Index(args, "--setup-root")
	if i < 0 {
		return args, nil
	}
	caps := &specs.LinuxCapabilities{
		Effective: setUpCapabilities, Permitted: setUpCapabilities,
		Inheritable: setUpCapabilities, Ambient: setUpCapabilities, // the umounter's
	}
	if err := sandboxsetup.ApplyCapsAllThreads(caps, nil); err != nil {
		return nil, fmt.Errorf("give up capabilities: %w", err)
	}
	return slices.Insert(slices.Clone(args), i, "--apply-caps"), nil
}

// pagedDisk tells a sentry that the last of its image files, if there is one
// more than it has images, is a pager's socket, from which it gets the writable
// layers to begin with. gVisor has the flags for that, but sets them only for
// checkpoints in a cloud's object store.
func pagedDisk(args []string) []string {
	images, last, files := 0, -1, 0
	for i, arg := range args {
		if v, ok := strings.CutPrefix(arg, "--gofer-mount-confs="); ok {
			for conf := range strings.SplitSeq(v, ",") {
				if strings.HasPrefix(conf, "erofs:") {
					images++
				}
			}
		}
		if strings.HasPrefix(arg, "--io-fds=") {
			last, files = i, files+1
		}
	}
	if files != images+1 {
		return args
	}
	args = slices.Clone(args)
	args[last] = "--fs-restore-fds=" + strings.TrimPrefix(args[last], "--io-fds=")
	return slices.Insert(args, last, "--fs-restore-checkpoint-gofer")
}

// fileFlags matches the flags by which gVisor tells a helper which open files
// are for it: --controller-fd=5, --io-fds=7, --pass-fd=9:3. It is compiled only in
// those that need it.
var fileFlags = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^--[a-z-]+-fds?=([0-9]+)(:[0-9]+)?$`)
})

// dropStrayFiles closes what this process has inherited beyond the files named
// on its command line. Parts of gVisor open files without close-on-exec, and a
// daemon starts many sandboxes at once: without this a sentry would hold
// descriptors that belong to others. Of what the Go runtime has opened in this
// process, which is close-on-exec, stays what is no file of the host: it looks up
// there how many processors it may use, and is told instead.
func dropStrayFiles(args []string) error {
	runtime.GOMAXPROCS(runtime.NumCPU())
	keep := map[string]bool{"0": true, "1": true, "2": true}
	for _, arg := range args {
		if m := fileFlags().FindStringSubmatch(arg); m != nil {
			keep[m[1]] = true
		}
	}
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return fmt.Errorf("list open files: %w", err)
	}
	for _, e := range open {
		fd, err := strconv.Atoi(e.Name())
		if err != nil || keep[e.Name()] {
			continue
		}
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if err != nil {
			continue // gone meanwhile: the listing's own
		}
		if flags&unix.FD_CLOEXEC != 0 {
			if link, err := os.Readlink("/proc/self/fd/" + e.Name()); err != nil || !strings.HasPrefix(link, "/") {
				continue
			}
		}
		if err := unix.Close(fd); err != nil {
			return fmt.Errorf("close stray file %d: %w", fd, err)
		}
	}
	return nil
}

// DetachStdio points os.Stdin, os.Stdout and os.Stderr at /dev/null. gVisor
// hands whatever these variables hold to the init process of each sandbox it
// starts, and a guest must not get the daemon's log or the user's terminal. So
// main takes what it needs of them first and then calls this. The file
// descriptors 0 to 2 stay as they are: a crash of this process is still reported.
func DetachStdio() error {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", os.DevNull, err)
	}
	os.Stdin, os.Stdout, os.Stderr = null, null, null
	return nil
}
