// Package filter is the filter of system calls of a sentry, compiled beforehand.
//
// gVisor's own build compiles its filters when it is built, and so do we, as the
// form in which it comes as a Go module leaves that out: each sentry would compile
// the same rules again, which takes a tenth of its start. The rules stay gVisor's. A
// test holds what is here against them, so that another version of gVisor cannot run
// with the filter of this one; where there is none that fits, as for another
// architecture, a sentry compiles its own.
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

// Use has the sentry that this process becomes take its filter from here.
func Use() {
	filter.ListPrecompiled() // which makes the map, once
	for _, p := range compiled() {
		programs[p.Name] = p
	}
}
