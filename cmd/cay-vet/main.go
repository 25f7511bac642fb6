// Cay-vet reports what workflows must not do: clocks, randomness, goroutines,
// I/O, package variables; see package workflow/vet.
//
//	go build -o cay-vet github.com/cayhq/cay/cmd/cay-vet
//	go vet -vettool=$PWD/cay-vet ./...
//
// Called with packages itself, it is its own driver: cay-vet ./...
package main

import (
	"os"
	"strings"

	"golang.org/x/tools/go/analysis/singlechecker"
	"golang.org/x/tools/go/analysis/unitchecker"

	"github.com/cayhq/cay/workflow/vet"
)

func main() {
	if byGo(os.Args[1:]) {
		unitchecker.Main(vet.Analyzer)
	}
	singlechecker.Main(vet.Analyzer)
}

// byGo reports whether go vet is the caller: it asks for the version or the
// flags, or passes the configuration of one package.
func byGo(args []string) bool {
	for _, a := range args {
		if strings.HasPrefix(a, "-V=") || a == "-flags" || strings.HasSuffix(a, ".cfg") {
			return true
		}
	}
	return false
}
