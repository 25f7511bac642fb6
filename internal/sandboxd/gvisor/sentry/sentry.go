// Package sentry is the program of a sandbox's process: gVisor's sentry, with its kernel
// and network stack, after some preparations of our own. It knows only its command line,
// and nothing else of the daemon that starts it.
//
// Each sandbox executes it once, so that its linked packages determine the time of a
// start: each package initializes, and each touched page of the program is a page fault.
package sentry

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
	_ "unsafe" // linkname

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/runsc/cli"
	"gvisor.dev/gvisor/runsc/cmd/sandboxsetup"
	"gvisor.dev/gvisor/runsc/cmd/sentry/sentrycmd"
	"gvisor.dev/gvisor/runsc/cmd/util"

	_ "github.com/cayhq/cay/internal/sandboxd/gvisor/sentry/early" // the umounter
	"github.com/cayhq/cay/internal/sandboxd/gvisor/sentry/filter"
)

// Name is argv[0] of a sentry, which gVisor chooses.
const Name = "runsc-sandbox"

// Main is the main function of a sentry, and of the umounter that it starts, which is
// this program too. It returns if this process is neither.
func Main() {
	switch os.Args[0] {
	case Name:
		dieOfFaults()
		spendMemory()
		traceNothing()
		filter.Use()
		args, err := inOneGo(pagedDisk(os.Args))
		if err == nil {
			os.Args, err = args, dropStrayFiles(args)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "cay:", err)
			os.Exit(128)
		}
	case "/proc/self/exe":
	default:
		return
	}
	cli.Run(nil, map[util.SubCommand]string{new(sentrycmd.Boot): "", new(sentrycmd.Umount): ""}, nil)
}

// dieOfFaults makes a sentry that gets the signal of a crash report the signal where a
// panic would be reported, and end. gVisor would pass the signal on to the guest's init,
// as if init had been killed from inside.
func dieOfFaults() {
	faults := make(chan os.Signal, 1)
	signal.Notify(faults, unix.SIGSEGV, unix.SIGBUS, unix.SIGFPE, unix.SIGILL, unix.SIGABRT, unix.SIGTRAP, unix.SIGSYS)
	go func() {
		fmt.Fprintf(os.Stderr, "fatal error: the sentry was sent signal %d\n", <-faults)
		os.Exit(exitFault)
	}()
}

// exitFault is the exit code of a sentry that dieOfFaults ends.
const exitFault = 128

const (
	// bootTime is about how long a sentry takes to start, and bootMemory is the size to
	// which its own heap may grow meanwhile.
	bootTime   = time.Second
	bootMemory = 48 << 20
)

// spendMemory switches garbage collection off while a sentry starts, which saves 1/10 of
// the start. Afterwards the sentry collects once and returns the free memory to the host.
func spendMemory() {
	percent := debug.SetGCPercent(-1)
	limit := debug.SetMemoryLimit(bootMemory)
	time.AfterFunc(bootTime, func() {
		debug.SetMemoryLimit(limit)
		debug.SetGCPercent(percent)
		debug.FreeOSMemory()
	})
}

// traceInit is the Once by which gVisor initializes the points at which system calls can
// be traced, about 1000.
//
//go:linkname traceInit gvisor.dev/gvisor/pkg/sentry/seccheck.initOnce
var traceInit sync.Once

// traceNothing keeps gVisor from initializing its trace points, which would take 1/20 of
// a start: nobody asks our sentries for traces.
func traceNothing() { traceInit.Do(func() {}) }

// setUpCapabilities are the capabilities that a sentry needs, in its own user namespace,
// to make itself an empty root.
var setUpCapabilities = []string{"CAP_SYS_ADMIN", "CAP_SYS_CHROOT"}

// inOneGo makes a sentry, which runs as nobody already, give up its capabilities in
// place, in all of its threads, instead of by executing this program again, which takes a
// tenth of a start. gVisor does so by itself for sentries that are less isolated, and
// lets them keep one capability for its platform, if they have it. Our sentry needs no
// capability, so it gives up that one as well, empties the bounding set, and gives up the
// right to change the bounding set, which gVisor would otherwise clear again, by 40 calls
// for which all threads stop. early.Start has done all this already, if this program
// began there.
func inOneGo(args []string) ([]string, error) {
	i := slices.Index(args, "--setup-root")
	if i < 0 {
		return args, nil
	}
	if !gaveUp() {
		caps := &specs.LinuxCapabilities{
			Effective: setUpCapabilities, Permitted: setUpCapabilities,
			Inheritable: setUpCapabilities, Ambient: setUpCapabilities, // the umounter's
		}
		if err := sandboxsetup.ApplyCapsAllThreads(caps, nil); err != nil {
			return nil, fmt.Errorf("give up capabilities: %w", err)
		}
	}
	return slices.Insert(slices.Clone(args), i, "--apply-caps"), nil
}

// gaveUp reports whether this thread has no capabilities except setUpCapabilities, and
// can gain none. Then the same holds for all threads: a new thread inherits the
// capabilities of the thread that starts it, and none has ever had more.
func gaveUp() bool {
	const setUp = 1<<unix.CAP_SYS_ADMIN | 1<<unix.CAP_SYS_CHROOT
	var has [2]unix.CapUserData
	if err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &has[0]); err != nil {
		return false
	}
	if has != [2]unix.CapUserData{{Effective: setUp, Permitted: setUp, Inheritable: setUp}} {
		return false
	}
	for c := range uintptr(64) {
		if bound, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, c, 0, 0, 0); err == nil && bound != 0 {
			return false
		}
	}
	return true
}

// pagedDisk tells a sentry that its last image file, if the command line has one file
// more than images, is a pager's socket, from which it gets the initial writable layers.
// gVisor has flags for that, but sets them only for checkpoints in a cloud's object
// store.
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

// fileFlags matches the flags by which gVisor tells a helper which open files are for it:
// --controller-fd=5, --io-fds=7, --pass-fd=9:3. It is compiled at first use, because most
// processes do not need it.
var fileFlags = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^--[a-z-]+-fds?=([0-9]+)(:[0-9]+)?$`)
})

// dropStrayFiles closes the inherited files that the command line does not name. Parts of
// gVisor open files without close-on-exec, and a daemon starts many sandboxes at once:
// without this a sentry would hold descriptors that belong to other sandboxes.
// Descriptors that the Go runtime opened in this process, which are close-on-exec, stay
// open unless they are files of the host: the runtime reads the number of CPUs from such
// a file, so GOMAXPROCS is set explicitly instead.
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
