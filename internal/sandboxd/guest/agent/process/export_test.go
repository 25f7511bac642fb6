package process

// StartPortable is Start on architectures without assembly.
var StartPortable = startPortable
