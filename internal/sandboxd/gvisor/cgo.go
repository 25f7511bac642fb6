//go:build cgo

package gvisor

// cgoEnabled reports whether this is a build with cgo. Sentries of such a build do not
// start: the C runtime has threads before gVisor has set up its namespaces.
const cgoEnabled = true
