package sandbox

import (
	"fmt"
	"path"
	"regexp"
	"strings"
	"sync"
	"unicode/utf8"
)

// Bounds of drives and mounts.
const (
	maxMounts   = 8
	minDriveMB  = 16
	defDriveMB  = 1024
	driveIDHead = "drv_"
)

// reserved are directories of a sandbox that drives must not be mounted at or
// below. Drives must not be mounted at their parent directories either, because
// a drive would hide them.
var reserved = []string{"/proc", "/sys", "/dev", "/vercel/runtimes", "/.cay"}

// validDrive matches ids and names of drives; see validName.
var validDrive = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)
})

// Validate returns an invalid error that names the first field with a bad value.
// The daemon alone checks whether the drive exists.
func (m Mount) Validate() error { return m.check("") }

// check is Validate with a prefix for the fields' names, such as "mounts[2].".
func (m Mount) check(where string) error {
	if err := CheckPath(where+"path", m.Path); err != nil {
		return err
	}
	switch {
	case !utf8.ValidString(m.Path):
		return invalid("%spath %q is not UTF-8", where, m.Path)
	case !path.IsAbs(m.Path):
		return invalid("%spath %q is not absolute", where, m.Path)
	case path.Clean(m.Path) != m.Path:
		return invalid("%spath %q is not in its shortest form", where, m.Path).WithHint("write it as %q", path.Clean(m.Path))
	case m.Path == "/":
		return invalid("%spath is /, which is the sandbox's own", where).WithHint("choose a directory below it")
	case m.Drive == "":
		return invalid("%sdrive is empty", where).WithHint("name the drive to mount at %s", m.Path)
	case !validDrive().MatchString(m.Drive):
		return invalid("%sdrive %.100q is not an id or a name: 1 to 64 of A-Z a-z 0-9 _ -", where, m.Drive)
	}
	for _, dir := range reserved {
		if within(m.Path, dir) || within(dir, m.Path) {
			return invalid("%spath %q is not for drives: %s is the sandbox's own", where, m.Path, dir)
		}
	}
	switch m.Mode {
	case "", MountReadWrite, MountReadOnly, MountCopy:
		return nil
	}
	return invalid("%smode %q is not one of %s, %s, %s", where, m.Mode, MountReadWrite, MountReadOnly, MountCopy)
}

// within reports whether a clean path is dir or below it.
func within(p, dir string) bool {
	rest, ok := strings.CutPrefix(p, dir)
	return ok && (rest == "" || rest[0] == '/')
}

func checkMounts(mounts []Mount) error {
	if len(mounts) > maxMounts {
		return invalid("there are %d mounts, more than %d", len(mounts), maxMounts)
	}
	for i, m := range mounts {
		if err := m.check(fmt.Sprintf("mounts[%d].", i)); err != nil {
			return err
		}
		for j, other := range mounts[:i] {
			switch {
			case m.Path == other.Path:
				return invalid("mounts[%d] and mounts[%d] have the same path %q", j, i, m.Path)
			case within(m.Path, other.Path) || within(other.Path, m.Path):
				return invalid("mounts[%d] at %q and mounts[%d] at %q are one in the other", j, other.Path, i, m.Path).
					WithHint("mount them beside each other")
			}
		}
	}
	return nil
}

// Validate returns an invalid error that names the first field with a bad value.
// The limits of the operator and of quotas are checked by the daemon alone.
func (p CreateDriveParams) Validate() error {
	switch {
	case !validDrive().MatchString(p.Name):
		return invalid("name %.100q is not 1 to 64 of A-Z a-z 0-9 _ -", p.Name)
	case strings.HasPrefix(p.Name, driveIDHead):
		return invalid("name %q begins like an id", p.Name).WithHint("choose one that does not begin with %s", driveIDHead)
	case p.MaxMB != 0 && p.MaxMB < minDriveMB:
		return invalid("max_mb %d is less than %d", p.MaxMB, minDriveMB)
	case p.From != "" && !validDrive().MatchString(p.From):
		return invalid("from %.100q is not an id or a name of a drive: 1 to 64 of A-Z a-z 0-9 _ -", p.From)
	case len(p.ProjectID) > 64:
		return invalid("project_id %.70q is not an id", p.ProjectID)
	}
	return checkAnnotations(p.Annotations)
}

// WithDefaults returns p with an empty size filled in, unless the drive is a
// clone.
func (p CreateDriveParams) WithDefaults() CreateDriveParams {
	if p.MaxMB == 0 && p.From == "" {
		p.MaxMB = defDriveMB
	}
	return p
}

// Validate returns an invalid error that names the first field with a bad value.
func (p DriveListParams) Validate() error {
	switch {
	case p.Limit < 0 || p.Limit > 200:
		return invalid("limit %d is not 1 to 200", p.Limit)
	case p.NamePrefix != "" && !validDrive().MatchString(p.NamePrefix):
		return invalid("name prefix %.100q is not at most 64 of A-Z a-z 0-9 _ -", p.NamePrefix)
	case len(p.ProjectID) > 64:
		return invalid("project_id %.70q is not an id", p.ProjectID)
	}
	return checkOrder(p.Order, ByCreation, ByUpdate, ByName)
}
