// Command cay-sentry is the process of a sandbox. The cay binary has it
// embedded, and starts it; see package sentry.
package main

import (
	"fmt"
	"os"

	"github.com/cayhq/cay/internal/sandboxd/gvisor/sentry"
)

func main() {
	sentry.Main()
	fmt.Fprintln(os.Stderr, "cay-sentry is started by cay, for each sandbox")
	os.Exit(2)
}
