package cay

import "runtime/debug"

// version is set at link time (-ldflags "-X github.com/cayhq/cay.version=...").
var version string

// Version returns the version of this build: the version given at link time,
// else the VCS revision that Go recorded, else "devel".
func Version() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" && len(s.Value) >= 12 {
				return "devel-" + s.Value[:12]
			}
		}
	}
	return "devel"
}
