//go:build !amd64

package filter

import "gvisor.dev/gvisor/pkg/seccomp/precompiledseccomp"

func compiled() []precompiledseccomp.Program { return nil }
