package fuse

import (
	"context"

	"gvisor.dev/gvisor/pkg/sentry/vfs"
	"gvisor.dev/gvisor/pkg/state"
)

// Name implements vfs.FilesystemType.Name.
func (t FilesystemType) Name() string {
	if t.subtype == "" {
		return Name
	}
	return Name + "." + t.subtype
}

// WithSubtype returns the type of a file system that is mounted as "fuse.SUBTYPE".
func (FilesystemType) WithSubtype(subtype string) vfs.FilesystemType {
	return FilesystemType{subtype: subtype}
}

// StateFields implements state.Type.StateFields.
func (t *FilesystemType) StateFields() []string { return []string{"subtype"} }

// StateSave implements state.SaverLoader.StateSave.
func (t *FilesystemType) StateSave(sink state.Sink) { sink.Save(0, &t.subtype) }

// StateLoad implements state.SaverLoader.StateLoad.
func (t *FilesystemType) StateLoad(_ context.Context, source state.Source) {
	source.Load(0, &t.subtype)
}
