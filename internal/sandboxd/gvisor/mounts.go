package gvisor

import (
	"maps"
	"slices"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd/machine"
)

// checkMounts returns an error unless each mount is either an image or a drive.
func checkMounts(spec machine.Spec) error {
	for _, m := range spec.Mounts {
		switch {
		case (m.Source == "") != (m.Drive != nil):
			return cay.Errorf(cay.Invalid, "the mount at %s is not either an image or a drive", m.Target)
		case m.Drive != nil && m.Drive.SizeMB <= 0:
			return cay.Errorf(cay.Invalid, "the drive at %s has a size of %d MB", m.Target, m.Drive.SizeMB)
		}
	}
	return nil
}

// imageMounts is where spec has images beside the root.
func imageMounts(spec machine.Spec) []string {
	mounts := []string{}
	for _, m := range spec.Mounts {
		if m.Drive == nil {
			mounts = append(mounts, m.Target)
		}
	}
	return mounts
}

// sameMounts returns an error if images does not have exactly the root and mounts as its
// keys.
func sameMounts(mounts []string, images map[string]string) error {
	want := append([]string{"/"}, mounts...)
	slices.Sort(want)
	if got := slices.Sorted(maps.Keys(images)); !slices.Equal(got, want) {
		return cay.Errorf(cay.Invalid, "images are given for %q, and the machine has them at %q", got, want)
	}
	return nil
}

// sameDrives returns an error if spec's drives differ from the drives of the machine
// whose state it starts from.
func sameDrives(spec machine.Spec, drives []machine.StateDrive) error {
	if got := spec.Drives(); !slices.Equal(got, drives) {
		return cay.Errorf(cay.Invalid, "the drives %+v were asked for, and what is to go on has %+v", got, drives)
	}
	return nil
}
