// Command cay is the whole of cay: the daemon, the command line, and the helper
// processes they start. Each noun of the command line has a file of its own,
// which holds, for each verb, a constructor, an options struct with its flags,
// and a run method that returns an error. Only main prints errors and exits.
package main

import (
	"io"
	"log"
	"os"

	"github.com/cayhq/cay/internal/sandboxd/gvisor"
)

func main() {
	reexec() // first of all: this process may be a helper, not the command line
	// Silence the standard logger. Libraries that use it may quote a server's
	// answer, which can contain a credential set on a guest's request. cay has
	// its own logger.
	log.SetOutput(io.Discard)
	a := newApp() // takes the standard streams, which sandboxes must not inherit
	if err := gvisor.DetachStdio(); err != nil {
		os.Exit(a.report(err))
	}
	os.Exit(a.main(dockerArgs(os.Args)))
}
