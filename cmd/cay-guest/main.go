// Command cay-guest is the init of a sandbox. cay starts it as the first
// process of the machine; see package initd.
package main

import (
	"os"

	"github.com/cayhq/cay/internal/sandboxd/guest/initd"
)

func main() { os.Exit(initd.Main()) }
