package gvisor

import (
	"context"
	"encoding/json"
	"errors"
	"strings"

	"github.com/cayhq/cay/internal/sandboxd/guest"
	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/internal/sandboxd/snapshot/disk"
)

// volatile has the differences between the disks of two sessions in which no program
// wrote anything: the guest's agent replaces guest.IdentityFile at every start, with
// another BootID.
var volatile = disk.Volatile{
	Times:    []string{"etc/cay", inRoot(guest.IdentityFile)},
	Contents: map[string]func([]byte) []byte{inRoot(guest.IdentityFile): withoutBoot},
}

func inRoot(path string) string { return strings.TrimPrefix(path, "/") }

// withoutBoot removes the BootID from the content of guest.IdentityFile. Content in any
// other format is returned unchanged.
func withoutBoot(content []byte) []byte {
	var who guest.Identity
	if err := json.Unmarshal(content, &who); err != nil {
		return content
	}
	written, err := json.Marshal(who)
	if err != nil || string(written)+"\n" != string(content) {
		return content
	}
	who.BootID = ""
	if written, err = json.Marshal(who); err != nil {
		return content
	}
	return written
}

// SameDisk implements machine.Runtime.
func (r *Runtime) SameDisk(ctx context.Context, a, b string) (bool, error) {
	for _, dir := range []string{a, b} {
		s, err := machine.ReadState(dir)
		if err != nil {
			return false, err
		}
		if s.Kind != machine.DiskState || s.Runtime != runtimeName || len(s.Mounts) > 0 {
			return false, nil
		}
	}
	one, err := disk.Open(a, disk.Limits{})
	if err != nil {
		return false, err
	}
	defer one.Close()
	two, err := disk.Open(b, disk.Limits{})
	if err != nil {
		return false, err
	}
	same, err := disk.Same(ctx, one, two, volatile)
	return same, errors.Join(err, two.Close())
}
