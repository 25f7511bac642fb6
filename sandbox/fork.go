package sandbox

// ForkParams describe copies of a sandbox, or sandboxes to start from a snapshot.
// Nil and zero fields take the source sandbox's values. With a snapshot as the
// source, nil and zero fields have the defaults of CreateParams.Snapshot, and
// sandboxes without Names are not persistent.
//
// Copied processes have the whole memory of the originals. The kernel's random
// numbers differ in each copy, and so do its host name, machine id and boot id of
// /etc/cay/identity.json. Random numbers that a program drew before the fork, or
// draws from a generator of its own, are the same in all copies until the
// generator is seeded anew: Python's random, say, and OpenSSL's, which Node's
// crypto and the keys of TLS connections rely on. Start programs that need secrets
// of their own after the fork, or fork with Kind FilesystemSnapshot.
type ForkParams struct {
	// Count is the number of copies: 1 to 100. 0 means 1, or the number of Names.
	Count int `json:"count,omitempty"`
	// Names has Count names, or none: a copy then has the source's name and a
	// number.
	Names []string `json:"names,omitempty"`
	// Kind is the state that the copies begin with. FilesystemSnapshot: the files
	// as they were last saved. MemorySnapshot: files and memory of a sandbox that
	// runs, is paused or is hibernated; processes continue in each copy. Empty:
	// MemorySnapshot if possible, otherwise FilesystemSnapshot.
	Kind SnapshotKind `json:"kind,omitempty"`

	Env         map[string]string `json:"env,omitzero"`         // replaces all; an empty map clears
	Tags        map[string]string `json:"tags,omitzero"`        // likewise
	Annotations map[string]string `json:"annotations,omitzero"` // likewise
	Network     *Network          `json:"network,omitempty"`
	Ports       []PortParams      `json:"ports,omitzero"` // labels are the copies' own in any case
	Mounts      []Mount           `json:"mounts,omitzero"`
	VCPUs       *float64          `json:"vcpus,omitempty"`
	MemoryMB    *int64            `json:"memory_mb,omitempty"`
	Timeout     *Duration         `json:"timeout_ms,omitempty"`
	IdleTimeout *Duration         `json:"idle_timeout_ms,omitempty"`
	Persistent  *bool             `json:"persistent,omitempty"`

	SnapshotExpiration *Duration  `json:"snapshot_expiration_ms,omitempty"`
	Retention          *Retention `json:"retention,omitempty"`
}

// Fork is the result of a fork: all copies, or none.
type Fork struct {
	Sandboxes []Sandbox    `json:"sandboxes"`
	Kind      SnapshotKind `json:"kind"`
	// SnapshotID is the snapshot that the copies began with; empty if they began
	// with the image, or a sandbox's processes.
	SnapshotID string `json:"snapshot_id,omitempty"`
	// CopiedBytes is the size of the copy of the source's memory and files, which
	// was made once for all forks; each fork then loads a copy of its own. 0 if
	// the state was saved before. SharedBytes is the size of the host files,
	// those of their images, that the copies and the source read together.
	CopiedBytes int64      `json:"copied_bytes"`
	SharedBytes int64      `json:"shared_bytes"`
	Phases      ForkPhases `json:"phases"`
}

// ForkPhases has the durations of the parts of a fork. They overlap.
type ForkPhases struct {
	Paused Duration `json:"paused_ms"` // for how long the source stood still
	Start  Duration `json:"start_ms"`  // until the machines ran
	Ready  Duration `json:"ready_ms"`  // until all were told who they are, and answered
}
