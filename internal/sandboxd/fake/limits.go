package fake

import "github.com/cayhq/cay"

// SetLimits stores the limits; they are not enforced.
func (i *instance) SetLimits(vcpus float64, memoryMB int64) error {
	i.m.mu.Lock()
	defer i.m.mu.Unlock()
	i.m.spec.VCPUs, i.m.spec.MemoryMB = vcpus, memoryMB
	return nil
}

// Limits returns the limits of a running machine.
func (r *Runtime) Limits(id string) (vcpus float64, memoryMB int64, err error) {
	m := find(r.machineDir(id))
	if m == nil {
		return 0, 0, cay.Errorf(cay.NotFound, "machine %q does not run", id)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.spec.VCPUs, m.spec.MemoryMB, nil
}
