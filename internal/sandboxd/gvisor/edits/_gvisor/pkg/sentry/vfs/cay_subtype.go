package vfs

import "strings"

// getFilesystemType returns the type of a file system by its name, "fuse.sshfs" for one with
// a subtype, which is then part of the name that mounts are listed with.
func (vfs *VirtualFilesystem) getFilesystemType(name string) *registeredFilesystemType {
	registered := vfs.findFilesystemType(name)
	_, subtype, _ := strings.Cut(name, ".")
	if registered == nil || !isSubtype(subtype) {
		return registered
	}
	if t, ok := registered.fsType.(interface{ WithSubtype(string) FilesystemType }); ok {
		return &registeredFilesystemType{fsType: t.WithSubtype(subtype), opts: registered.opts}
	}
	return registered
}

// isSubtype reports whether a name can stand in the list of mounts as it is.
func isSubtype(name string) bool {
	return name != "" && len(name) <= 64 && !strings.ContainsFunc(name, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_.", r))
	})
}
