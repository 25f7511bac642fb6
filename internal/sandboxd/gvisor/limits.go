package gvisor

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/cayhq/cay/internal/sandboxd/machine"
)

// SetLimits implements machine.Instance.
func (in *instance) SetLimits(vcpus float64, memoryMB int64) error {
	in.limiting.Lock()
	defer in.limiting.Unlock()
	res := resources(machine.Spec{VCPUs: vcpus, MemoryMB: memoryMB})
	if err := in.group.change(res); err != nil {
		return fmt.Errorf("change limits of machine %s: %w", in.st.ID, err)
	}
	in.st.Limits = res
	// The other fields of in.st are changed under other locks, so the stored state is
	// reloaded.
	kept, err := in.r.load(in.st.ID)
	if err != nil {
		return err
	}
	kept.Limits = res
	return writeJSON(filepath.Join(in.r.dir(in.st.ID), "state.json"), kept)
}

// memoryLimit returns how many MiB the machine may use.
func (in *instance) memoryLimit() int64 {
	in.limiting.Lock()
	defer in.limiting.Unlock()
	return *in.st.Limits.Memory.Limit >> 20
}

// change bounds a group by res. Lower limits are written in the order of the first ones,
// because version 1 refuses a bound on memory above the bound on memory and swap
// together.
func (g *group) change(res *specs.LinuxResources) error {
	if g == nil {
		return nil
	}
	changed := group{v2: g.v2, dirs: g.dirs, res: res}
	for _, f := range changed.limits() {
		if err := write(g.dir(f.controller), f.name, f.value); err != nil && !(f.optional && errors.Is(err, fs.ErrNotExist)) {
			return err
		}
	}
	return nil
}
