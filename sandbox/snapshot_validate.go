package sandbox

import (
	"slices"
	"strings"
	"time"
)

// Bounds of snapshots that their comments name.
const (
	minKept        = Duration(time.Minute) // that a snapshot is kept, if it expires at all
	maxRetained    = 100
	maxTreeNodes   = 100
	snapshotIDHead = "snap_"
)

// Validate returns an invalid error for an unknown kind.
func (k SnapshotKind) Validate() error {
	if k != FilesystemSnapshot && k != MemorySnapshot {
		return invalid("kind %q is not one of %s, %s", k, FilesystemSnapshot, MemorySnapshot)
	}
	return nil
}

// Validate returns an invalid error that names the first field with a bad value.
func (p SnapshotParams) Validate() error {
	if p.Kind != "" {
		if err := p.Kind.Validate(); err != nil {
			return err
		}
	}
	if err := checkSnapshotName(p.Name); err != nil {
		return err
	}
	if p.Replace && p.Name == "" {
		return invalid("replace is given without a name").WithHint("say in name which one to take over")
	}
	if err := checkEnv(p.Env); err != nil {
		return err
	}
	return checkExpiration("expiration", p.Expiration)
}

// WithDefaults returns p with an empty kind filled in.
func (p SnapshotParams) WithDefaults() SnapshotParams {
	if p.Kind == "" {
		p.Kind = FilesystemSnapshot
	}
	return p
}

// Validate returns an invalid error that names the first field with a bad value.
func (p SnapshotListParams) Validate() error {
	if err := checkPage(p.ProjectID, p.Limit); err != nil {
		return err
	}
	if p.Sandbox != "" {
		if err := checkRef("sandbox", p.Sandbox); err != nil {
			return err
		}
	}
	if p.Name != "" && !validName().MatchString(p.Name) {
		return invalid("name %.150q is not 1 to 128 of A-Z a-z 0-9 _ -", p.Name)
	}
	return nil
}

// Validate returns an invalid error that names the first field with a bad value.
func (p PruneSnapshotsParams) Validate() error {
	if err := checkPage(p.ProjectID, 0); err != nil {
		return err
	}
	if p.OlderThan != 0 && p.OlderThan < minKept {
		return invalid("older_than %v is less than %v", p.OlderThan, minKept).WithHint("0 means any age")
	}
	return nil
}

// Validate returns an invalid error that names the first field with a bad value.
func (p SnapshotTreeParams) Validate() error {
	if p.Limit < 0 || p.Limit > maxTreeNodes {
		return invalid("limit %d is not 1 to %d", p.Limit, maxTreeNodes)
	}
	return nil
}

// WithDefaults returns p with a zero limit filled in.
func (p SnapshotTreeParams) WithDefaults() SnapshotTreeParams {
	if p.Limit == 0 {
		p.Limit = 10
	}
	return p
}

// Validate returns an invalid error that names the first field with a bad value.
func (p ImportParams) Validate() error {
	if err := checkPage(p.ProjectID, 0); err != nil {
		return err
	}
	if err := checkSnapshotName(p.Name); err != nil {
		return err
	}
	return checkExpiration("expiration", p.Expiration)
}

// Validate returns an invalid error that names the first field with a bad value.
func (p SessionParams) Validate() error { return checkPage("", p.Limit) }

// Validate returns an invalid error that names the first field with a bad value.
func (p SessionListParams) Validate() error { return checkPage(p.ProjectID, p.Limit) }

// Validate returns an invalid error that names the first field with a bad value.
func (r Retention) Validate() error {
	switch {
	case r.All && (r.Keep != 0 || r.KeepEvicted):
		return invalid("retention.all is given with retention.keep or retention.keep_evicted").WithHint("all keeps them in any case")
	case !r.All && (r.Keep < 1 || r.Keep > maxRetained):
		return invalid("retention.keep %d is not 1 to %d", r.Keep, maxRetained).WithHint("retention.all keeps all")
	case r.MaxAge != 0 && r.MaxAge < minKept:
		return invalid("retention.max_age %v is less than %v", r.MaxAge, minKept).WithHint("0 means no limit")
	case r.Expiration != nil && *r.Expiration != 0 && *r.Expiration < minKept:
		return invalid("retention.expiration %v is less than %v", *r.Expiration, minKept).WithHint("0 means never")
	}
	return nil
}

// checkSnapshotName checks the name of a snapshot. An empty name is valid, and
// means no name.
func checkSnapshotName(name string) error {
	switch {
	case name == "":
		return nil
	case !validName().MatchString(name):
		return invalid("name %.150q is not 1 to 128 of A-Z a-z 0-9 _ -", name)
	case strings.HasPrefix(name, snapshotIDHead):
		return invalid("name %q begins like an id", name).WithHint("choose one that does not begin with %s", snapshotIDHead)
	}
	return nil
}

// checkExpiration checks how long something is kept; nil and 0 are valid.
func checkExpiration(field string, d *Duration) error {
	if d != nil && *d != 0 && *d < minKept {
		return invalid("%s %v is less than %v", field, *d, minKept).WithHint("0 means for ever")
	}
	return nil
}

// checkRef checks the id or the name of an object.
func checkRef(field, ref string) error {
	if !validName().MatchString(ref) {
		return invalid("%s %.150q is not an id or a name: 1 to 128 of A-Z a-z 0-9 _ -", field, ref)
	}
	return nil
}

// checkPage checks the parameters of a page of a list.
func checkPage(projectID string, limit int) error {
	switch {
	case limit < 0 || limit > 200:
		return invalid("limit %d is not 1 to 200", limit)
	case len(projectID) > 64:
		return invalid("project_id %.70q is not an id", projectID)
	}
	return nil
}

// Names of sandboxes must differ from ids and from words in the API's paths,
// because some parameters accept the ids or names of several kinds of objects.
var (
	otherIDs      = []string{"sbx_", "ses_", snapshotIDHead}
	reservedNames = []string{"sessions", "snapshots", "drives"}
)

// checkSandboxName checks a name for a sandbox; field is the field's name for
// errors.
func checkSandboxName(field, name string) error {
	if !validName().MatchString(name) {
		return invalid("%s %.150q is not 1 to 128 of A-Z a-z 0-9 _ -", field, name)
	}
	for _, head := range otherIDs {
		if strings.HasPrefix(name, head) {
			return invalid("%s %q begins like an id", field, name).WithHint("choose one that does not begin with %s", head)
		}
	}
	if slices.Contains(reservedNames, name) {
		return invalid("%s %q is taken by the API itself", field, name).WithHint("choose another")
	}
	return nil
}
