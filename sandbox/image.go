package sandbox

import "time"

// Image is a root file system, or a language runtime, kept by the daemon.
type Image struct {
	Digest    string      `json:"digest"`              // "sha256:..." of its content; two equal images have one
	Refs      []string    `json:"refs"`                // names it is known by, to the caller
	TeamRefs  []string    `json:"team_refs,omitempty"` // names that belong to the caller's team alone
	Source    string      `json:"source"`              // "oci", "import", "debian", "runtime", "snapshot"
	Arch      string      `json:"arch"`                // "amd64", "arm64"
	SizeBytes int64       `json:"size_bytes"`          // on disk
	CreatedAt time.Time   `json:"created_at"`          // when it was put into the store
	UsedAt    time.Time   `json:"used_at"`             // when a sandbox was last started from it
	Config    ImageConfig `json:"config"`
	// Packages are the Debian packages that were added to the default image.
	Packages []string `json:"packages,omitempty"`
}

// ImageConfig is an image's own settings for running it.
type ImageConfig struct {
	Env        []string `json:"env,omitempty"` // K=V
	User       string   `json:"user,omitempty"`
	WorkDir    string   `json:"workdir,omitempty"`
	Entrypoint []string `json:"entrypoint,omitempty"`
	Cmd        []string `json:"cmd,omitempty"`
	// Labels and ExposedPorts ("8080/tcp") have no effect on sandboxes. Clients of
	// other protocols read them.
	Labels       map[string]string `json:"labels,omitempty"`
	ExposedPorts []string          `json:"exposed_ports,omitempty"`
}

// ImageSnapshotParams describes the image to make of the files of a snapshot.
// Empty fields take the values of the snapshot's sandbox.
type ImageSnapshotParams struct {
	Snapshot string `json:"snapshot"` // id or name
	Ref      string `json:"ref"`      // name of the image
	// Env has K=V entries, which are added to the variables of the sandbox's image
	// and runtime. The runtime becomes a part of the new image.
	Env     []string `json:"env,omitempty"`
	User    string   `json:"user,omitempty"`
	WorkDir string   `json:"workdir,omitempty"` // absolute
	// Entrypoint and Cmd default to the values of the snapshot's image if both are
	// empty.
	Entrypoint []string `json:"entrypoint,omitempty"`
	Cmd        []string `json:"cmd,omitempty"`
	// Labels and ExposedPorts are added to those of the snapshot's image.
	Labels       map[string]string `json:"labels,omitempty"`        // at most 64 KiB
	ExposedPorts []string          `json:"exposed_ports,omitempty"` // "8080/tcp", "53/udp"; at most 200
}

// ImagePushParams says which image to send to a registry, and with what credentials.
type ImagePushParams struct {
	Ref  string       `json:"ref"` // a name of the image, which is also its name in the registry
	Auth RegistryAuth `json:"auth,omitzero"`
}

// RegistryAuth are credentials for a registry of images: a name and a password, or
// one of the tokens. Without any, a daemon uses the credentials of docker or podman
// on its machine if the token is an admin token, and none otherwise.
type RegistryAuth struct {
	Username      string `json:"username,omitempty"`
	Password      string `json:"password,omitempty"`
	IdentityToken string `json:"identity_token,omitempty"`
	RegistryToken string `json:"registry_token,omitempty"`
}

// ImageProgress is one step of a build, pull, import or push.
type ImageProgress struct {
	// Phase is "resolve", "download", "unpack", "build", "pack", "upload" or "done", or
	// "pushed": then Item is the digest of the manifest in the registry, and Total its size.
	Phase   string `json:"phase"`
	Item    string `json:"item,omitempty"`    // a layer's digest, a package
	Current int64  `json:"current,omitempty"` // bytes so far
	Total   int64  `json:"total,omitempty"`   // bytes in all; 0 if unknown
	Image   *Image `json:"image,omitempty"`   // with phase "done"
}

// ImageGCParams says how to collect content that no image and no sandbox needs.
type ImageGCParams struct {
	DryRun bool // only tell what would be removed
}

// ImageGC is the result of a garbage collection of images: the freed space, or the
// space that would be freed.
type ImageGC struct {
	Removed    int     `json:"removed"`     // images
	FreedBytes int64   `json:"freed_bytes"` // on disk, also of what is no image: downloads that were given up, old files of cay's own
	Images     []Image `json:"images"`      // the deleted images, which have no names any more
}
