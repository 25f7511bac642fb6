package main

const (
	fuseDir    = "pkg/sentry/fsimpl/fuse/"
	overlayDir = "pkg/sentry/fsimpl/overlay/"
)

// changes are all that cay changes in gVisor.
var changes = []change{
	{
		name: "fuse-optional",
		reason: "servers of FUSE file systems leave out operations: bindfs and squashfuse have no flush or access, many have no " +
			"extended attributes, and answer a name that does not exist with node id 0; gVisor gives programs ENOSYS and EIO",
		issue: "google/gvisor #7469",
		test:  "TestFUSE/optional",
		edits: []declaration{
			{file: fuseDir + "connection.go", name: "connection", sum: "06a318998af5", field: "absent absentOperations"},
			{file: fuseDir + "connection.go", name: "connection.Call", sum: "9e0603d26fdb", renamed: "ask"},
			{file: fuseDir + "inode.go", name: "inode.NewFile", sum: "d812bf1bdc30", renamed: "create"},
			{file: fuseDir + "file.go", name: "fileDescription.Sync", sum: "dbca31b059b9", renamed: "syncLater"},
		},
	},
	{
		name:   "fuse-init",
		reason: "fuse-overlayfs does not start if FUSE_DONT_MASK is not offered, libfuse 2 writes pages of 4 KiB without FUSE_BIG_WRITES",
		issue:  "gvisor.dev/issue/3199",
		test:   "TestFUSE/init",
		edits:  []declaration{{file: fuseDir + "connection_control.go", name: "fuseDefaultInitFlags", sum: "abc30f8b941d", value: "offeredFlags"}},
	},
	{
		name: "fuse-write",
		reason: "a write of as many bytes as several requests hold, not at the start of a file, ended with an empty request, " +
			"at which sshfs aborts",
		issue: "none known",
		test:  "TestFUSE/writes",
		edits: []declaration{{file: fuseDir + "read_write.go", name: "filesystem.Write", sum: "80a9093c627a", renamed: "writeLoop"}},
	},
	{
		name:   "fuse-truncate",
		reason: "a file that is opened to be overwritten was truncated by its name before it was opened, which rclone refuses",
		issue:  "none known",
		test:   "TestFUSE/truncates",
		edits:  []declaration{{file: fuseDir + "inode.go", name: "inode.Open", sum: "fd95f4d32cd2", renamed: "openServer"}},
	},
	{
		name: "fuse-mountinfo",
		reason: "reading /proc/self/mountinfo waits for each FUSE file system in use: a server that reads it, as each program in Go does " +
			"when it starts, waits for itself",
		issue: "none known",
		test:  "TestFUSE/mountinfo",
		edits: []declaration{{file: "pkg/sentry/vfs/vfs.go", name: "VirtualFilesystem.StatAt", sum: "d40f11b79418", renamed: "statAt"}},
	},
	{
		name: "fuse-attributes",
		reason: "cached attributes had other inode numbers than fresh ones, no blocks and no devices, statx answered without its mask and, " +
			"if only asked for the type, without the type; touch set the time of access alone",
		issue: "gvisor.dev/issue/3679",
		test:  "TestFUSE/attributes",
		edits: []declaration{
			{file: fuseDir + "inode.go", name: "inode", sum: "7f7760ffce05", field: "extra inodeExtra"},
			{file: fuseDir + "inode.go", name: "inode.getFUSEAttr", sum: "f642e96d4356", renamed: "cachedAttr"},
			{file: fuseDir + "inode.go", name: "inode.updateAttrs", sum: "82434172ff05", renamed: "cacheAttrs"},
			{file: fuseDir + "inode.go", name: "statFromFUSEAttr", sum: "cc822bf7194c", renamed: "statxOf"},
		},
	},
	{
		name:   "fuse-mmap",
		reason: "no file on a FUSE mount can be mapped, so no program there can be executed, and git cannot read packs",
		issue:  "gvisor.dev/issue/3234",
		test:   "TestFUSE/mapped",
		edits: []declaration{
			{file: fuseDir + "regular_file.go", name: "regularFileFD", sum: "00430523e05d", field: "cached cachedPages"},
			{file: fuseDir + "regular_file.go", name: "regularFileFD.ConfigureMMap", sum: "307bc06a735c", renamed: "configureNoMMap"},
			{file: fuseDir + "regular_file.go", name: "regularFileFD.pwrite", sum: "92ef9390ca2c", renamed: "writeServer"},
			{file: fuseDir + "regular_file.go", name: "regularFileFD.Allocate", sum: "e8710252613f", renamed: "allocateServer"},
			{file: fuseDir + "inode.go", name: "inode.setAttr", sum: "02af0f2c0e99", renamed: "setServerAttr"},
			{file: "pkg/sentry/mm/syscalls.go", name: "MemoryManager.HandleUserFault", sum: "47264323b3a2", renamed: "handleFault"},
		},
	},
	{
		name: "fuse-signals",
		reason: "a signal for which a program has a handler broke off the call that waited for the server, whose work was then done twice " +
			"or reported as failed: git, and programs in Go, get such signals all the time",
		issue: "none known",
		test:  "TestFUSE/signals",
		edits: []declaration{{file: fuseDir + "connection.go", name: "deviceConn.call", sum: "07767f038093", renamed: "callUntilSignal"}},
	},
	{
		name:   "fuse-subtype",
		reason: "a mount of type fuse.rclone is listed as fuse, so rclone does not find its own mount, and findmnt -t fuse.sshfs finds none",
		issue:  "none known",
		test:   "TestFUSE/subtype",
		edits: []declaration{
			{file: "pkg/sentry/vfs/filesystem_type.go", name: "VirtualFilesystem.getFilesystemType", sum: "b76421e90aa2", renamed: "findFilesystemType"},
			{file: fuseDir + "fusefs.go", name: "FilesystemType", sum: "dbd50e2da4f2", field: "subtype string"},
			{file: fuseDir + "fusefs.go", name: "FilesystemType.Name", sum: "5f10af140eb9", renamed: "baseName"},
			{file: fuseDir + "fuse_state_autogen.go", name: "FilesystemType.StateFields", sum: "4b24fd1faf4f", renamed: "noFields"},
			{file: fuseDir + "fuse_state_autogen.go", name: "FilesystemType.StateSave", sum: "cdb58aeb44a4", renamed: "saveNothing"},
			{file: fuseDir + "fuse_state_autogen.go", name: "FilesystemType.StateLoad", sum: "d72b4fdac912", renamed: "loadNothing"},
		},
	},
	{
		name: "docker-layers",
		reason: "the root of a sandbox is an overlay, which can be the upper layer of no other overlay: dockerd falls back to copying " +
			"all files of an image for each container",
		issue: "none known",
		test:  "TestDocker/layers",
		edits: []declaration{{file: overlayDir + "overlay.go", name: "FilesystemType.GetFilesystem", sum: "a5196ade360d", renamed: "newFilesystem"}},
	},
	{
		name:   "docker-nat",
		reason: "a packet to which rules of iptables-legacy and of nftables both apply NAT made the sentry panic",
		issue:  "none known",
		test:   "TestDocker/nat",
		edits:  []declaration{{file: "pkg/tcpip/stack/nat.go", name: "handlePacket", sum: "5c843ddd20f2", renamed: "performNAT"}},
	},
	{
		name: "docker-restored",
		reason: "a machine whose processes have a network namespace of their own could not be restored from memory: its nftables waited " +
			"for the clock, which starts after the restore",
		issue: "none known",
		test:  "TestDocker/restored",
		edits: []declaration{{file: "pkg/tcpip/nftables/nftables.go", name: "NewNFTables", sum: "9061c897b7a4", renamed: "newNFTables"}},
	},
	{
		name:   "raw-empty",
		reason: "an empty frame on a packet socket made the sentry panic",
		issue:  "none known",
		test:   "TestDocker/empty",
		edits:  []declaration{{file: "pkg/tcpip/transport/packet/endpoint.go", name: "endpoint.Write", sum: "04b159fd70d7", renamed: "writeFrame"}},
	},
}
