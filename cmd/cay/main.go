// Command cay is the whole of cay: the daemon, the command line, and the helper
// processes they start. Each noun of the command line has a file of its own,
// which holds, for each verb, a constructor, an options struct with its flags,
// and a run method that returns an error. Only main prints errors and exits.
package main

import (
	"os"
)

func main() {
	reexec() // first of all: this process may be a helper, not the command line
	os.Exit(newApp().main(os.Args[1:]))
}
