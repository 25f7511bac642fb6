// Package early runs code in a sentry, and in its umounter, before anything else.
//
// The umounter is the process that unmounts /proc for a sentry as the last step of the
// sentry's start. It is this program, executed by the sentry, and makes one system call.
// Start describes the early code of a sentry.
//
// Go initializes packages in the order of their import paths as far as their imports
// allow, so this package, which imports next to nothing, is initialized before gVisor and
// most other packages. Therefore it works in an init function, which does not return: the
// rest of the initialization would take several times as long, for every sandbox. With
// another order of initialization the program would still be correct, but slower.
package early

import (
	"os"
	"syscall"
)

// The umounter's command line is gVisor's:
//
//	/proc/self/exe umount --sync-fd=3 /proc
const syncFD = 3

func init() {
	if len(os.Args) != 4 || os.Args[0] != "/proc/self/exe" || os.Args[1] != "umount" || os.Args[2] != "--sync-fd=3" {
		return
	}
	os.Exit(umount(os.Args[3]))
}

// umount unmounts dir when it is told to. If umount fails, the sentry, which waits for it
// and checks that /proc is gone, ends.
func umount(dir string) int {
	var told [1]byte
	for {
		n, err := syscall.Read(syncFD, told[:])
		if err == syscall.EINTR {
			continue
		}
		if n != 1 || err != nil {
			return 1
		}
		break
	}
	if syscall.Unmount(dir, syscall.MNT_DETACH) != nil {
		return 1
	}
	return 0
}
