// Package filter is the system call filter of a sentry, compiled beforehand.
//
// gVisor's own build compiles its filters at build time, but gVisor's Go module leaves
// the compiled filters out. Compiling the same rules again would take each sentry a tenth
// of its start. The rules stay gVisor's. A test compares the compiled filters with the
// rules, so that another version of gVisor cannot run with the filter of this version;
// where no compiled filter fits, as on another architecture, a sentry compiles its own.
package filter

import (
	_ "unsafe" // linkname

	"gvisor.dev/gvisor/pkg/seccomp/precompiledseccomp"
	"gvisor.dev/gvisor/runsc/boot/filter"
)

// programs is where gVisor looks for filters, by the options they are for.
//
//go:linkname programs gvisor.dev/gvisor/runsc/boot/filter.precompiledPrograms
var programs map[string]precompiledseccomp.Program

// Use makes the sentry that this process becomes use the filters of this package.
func Use() {
	filter.ListPrecompiled() // which makes the map, once
	for _, p := range compiled() {
		programs[p.Name] = p
	}
}
