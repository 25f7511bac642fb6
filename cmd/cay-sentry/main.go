// Command cay-sentry is the process of a sandbox. It is started by cay, which
// carries it; see package sentry.
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
