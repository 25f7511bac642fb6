package initd

import (
	"os"
	"strings"
	"sync"
	"unsafe"
)

// A title is the memory that the kernel shows as this process's command line
// (/proc/1/cmdline). execve writes the arguments there, and the environment behind them. A
// process may overwrite both: if the last byte of the arguments is no NUL any more, the
// kernel goes on into the environment, up to a NUL (proc(5)).
type title struct {
	own string     // the arguments that this process was started with
	mu  sync.Mutex // guards mem
	mem []byte
}

// newTitle takes the memory of the arguments and of the environment. Nothing may read os.Args
// afterwards: its text changes. Go has copied the environment.
func newTitle() *title {
	t := &title{own: strings.Join(os.Args, " ")}
	begin := unsafe.StringData(os.Args[0])
	n := len(t.own) + 1 // each string ends with a NUL
	env := strings.Join(append(os.Environ(), ""), "\x00")
	// The environment and more lies above the arguments, so this many bytes can be read.
	if all := unsafe.Slice(begin, n+len(env)); string(all[n:]) == env {
		n = len(all)
	}
	t.mem = unsafe.Slice(begin, n)
	return t
}

// set shows argv behind this process's own arguments, as much of argv as there is memory for.
func (t *title) set(argv []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := copy(t.mem[:len(t.mem)-1], t.own+" -- "+strings.Join(argv, " "))
	clear(t.mem[n:])
}
