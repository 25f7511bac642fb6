package sandbox

import (
	"cmp"
	"fmt"
	"time"
)

const maxForks = 100

// Validate returns an invalid error that names the first field with a bad
// value. The limits of the source are checked by the daemon alone.
func (p ForkParams) Validate() error {
	switch {
	case p.Count < 0 || p.Count > maxForks:
		return invalid("count %d is not 1 to %d", p.Count, maxForks)
	case len(p.Names) > maxForks:
		return invalid("there are %d names, more than %d", len(p.Names), maxForks)
	case p.Count != 0 && len(p.Names) != 0 && p.Count != len(p.Names):
		return invalid("count is %d, but there are %d names", p.Count, len(p.Names)).WithHint("leave one of the two out")
	}
	first := map[string]int{}
	for i, name := range p.Names {
		if err := checkSandboxName(fmt.Sprintf("names[%d]", i), name); err != nil {
			return err
		}
		if j, ok := first[name]; ok {
			return invalid("names[%d] and names[%d] are both %q", j, i, name)
		}
		first[name] = i
	}
	if p.Kind != "" {
		if err := p.Kind.Validate(); err != nil {
			return err
		}
	}
	if p.Network != nil {
		if err := p.Network.Validate(); err != nil {
			return err
		}
	}
	if err := checkMounts(p.Mounts); err != nil {
		return err
	}
	if n := max(p.Count, len(p.Names)); n > 1 {
		for i, m := range p.Mounts {
			if m.Mode == "" || m.Mode == MountReadWrite {
				return invalid("mounts[%d] is %s, which only one of the %d copies can have", i, MountReadWrite, n).
					WithHint("mount it as %s or as %s", MountReadOnly, MountCopy)
			}
		}
	}
	if err := cmp.Or(
		checkEnv(p.Env), checkTags(p.Tags), checkAnnotations(p.Annotations), checkPorts(p.Ports), checkMachine(p.VCPUs, p.MemoryMB, p.Timeout),
		checkIdlePtr(p.IdleTimeout), checkExpiration("snapshot_expiration", p.SnapshotExpiration),
	); err != nil {
		return err
	}
	if p.Retention != nil {
		return p.Retention.Validate()
	}
	return nil
}

// checkMachine checks the sizes of a machine, except nil ones.
func checkMachine(vcpus *float64, memoryMB *int64, timeout *Duration) error {
	switch {
	case vcpus != nil && !(*vcpus >= 0.1 && *vcpus <= 64): // this form refuses NaN
		return invalid("vcpus %v is not 0.1 to 64", *vcpus)
	case memoryMB != nil && *memoryMB < 128:
		return invalid("memory_mb %d is less than 128", *memoryMB)
	case timeout != nil && *timeout < Duration(time.Second):
		return invalid("timeout %v is less than 1s", *timeout)
	}
	return nil
}

func checkIdlePtr(d *Duration) error {
	if d == nil {
		return nil
	}
	return checkIdle(*d)
}
