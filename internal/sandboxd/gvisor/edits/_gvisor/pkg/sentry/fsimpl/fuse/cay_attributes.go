package fuse

import "gvisor.dev/gvisor/pkg/abi/linux"

// inodeExtra is the state of an inode beside gVisor's. It is not saved with memory:
// attributes are 0 until the server is asked again.
type inodeExtra struct {
	blocks uint64 // attrMu of the inode protects it
	rdev   uint32 // attrMu of the inode protects it
	mapped mappedFiles
}

// updateAttrs caches the attributes that the server gave.
//
// +checklocks:i.attrMu
func (i *inode) updateAttrs(attr linux.FUSEAttr, validSec, validNSec int64) {
	i.extra.blocks, i.extra.rdev = attr.Blocks, attr.Rdev
	i.cacheAttrs(attr, validSec, validNSec)
}

// getFUSEAttr returns the cached attributes.
//
// +checklocks:i.attrMu
func (i *inode) getFUSEAttr() linux.FUSEAttr {
	attr := i.cachedAttr()
	attr.Ino = i.ino.Load()
	attr.Blocks, attr.Rdev = i.extra.blocks, i.extra.rdev
	return attr
}

// statFromFUSEAttr returns the attributes that the mask asks for, and says which.
func statFromFUSEAttr(attr linux.FUSEAttr, mask, devMinor uint32) linux.Statx {
	mask &= linux.STATX_BASIC_STATS
	wanted := mask
	if mask&linux.STATX_TYPE != 0 {
		wanted |= linux.STATX_MODE
	}
	stat := statxOf(attr, wanted, devMinor)
	stat.Mask = mask
	return stat
}

// Device returns the device of the file system, without asking the server and without locks.
func (fs *filesystem) Device() (major, minor uint32) { return linux.UNNAMED_MAJOR, fs.devMinor }
