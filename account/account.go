// Package account is the SDK for teams, projects, tokens and quotas, which limit
// the use of a cay daemon.
//
// Every object belongs to a project, every project to a team. A daemon starts with
// team "team_default" and project "prj_default". A token acts for a team, or for
// one project of it. The admin token, which the daemon writes to admin.token in
// the data directory at the first start, can act for every team.
//
//	var c account.Client // the daemon and token of this machine, or CAY_URL and CAY_TOKEN
//	token, err := c.CreateToken(ctx, account.CreateTokenParams{Name: "ci"})
//	fmt.Println(token.Secret) // shown this once
package account

import "time"

// The team and the project that a daemon has from its first start. Neither can be
// deleted.
const (
	DefaultTeam    = "team_default"
	DefaultProject = "prj_default"
)

// Team is a tenant: teams never see each other's objects.
type Team struct {
	ID        string    `json:"id"`    // "team_default", or "team_" and 20 characters
	Name      string    `json:"name"`  // unique among teams
	Quota     Quota     `json:"quota"` // its own if one was set, else the daemon's default
	CreatedAt time.Time `json:"created_at"`
}

// Project groups a team's objects; names of sandboxes are unique within a project.
type Project struct {
	ID        string    `json:"id"` // "prj_default", or "prj_" and 20 characters
	TeamID    string    `json:"team_id"`
	Name      string    `json:"name"` // unique among the team's projects
	CreatedAt time.Time `json:"created_at"`
}

// Quota bounds the concurrent use of a team's sandboxes. A field of 0 means no
// bound. A request beyond the quota fails with quota_exceeded.
type Quota struct {
	Sandboxes        int     `json:"sandboxes"` // running at once
	VCPUs            float64 `json:"vcpus"`     // sum over running sandboxes
	MemoryMB         int64   `json:"memory_mb"`
	DiskMB           int64   `json:"disk_mb"`
	CreatesPerMinute int     `json:"creates_per_minute"`
	// SnapshotMB is how many MiB snapshots, hibernated sandboxes and drives may
	// take on the host's disk.
	SnapshotMB int64 `json:"snapshot_mb"`
	// ImageMB is how many MiB the team's own images may take on the host's disk,
	// and ImageDownloadMB how many may be downloaded for them in a day (UTC).
	ImageMB         int64 `json:"image_mb"`
	ImageDownloadMB int64 `json:"image_download_mb"`
}

// Right is a right of a token of a project beyond working with the project. Admin
// tokens and tokens of a whole team have all rights.
type Right string

// ImagesWrite is the right to add images from registries and archives, and to
// remove images of the team.
const ImagesWrite Right = "images:write"

// Token is a credential. The daemon shows the secret once, when the token is
// created, and keeps only a hash.
type Token struct {
	ID         string     `json:"id"` // "tok_" and 20 characters
	Name       string     `json:"name"`
	TeamID     string     `json:"team_id"`
	ProjectID  string     `json:"project_id,omitempty"` // empty: every project of the team
	Admin      bool       `json:"admin,omitempty"`
	Rights     []Right    `json:"rights,omitempty"` // of a token of a project; see Right
	CreatedAt  time.Time  `json:"created_at"`
	ExpiresAt  *time.Time `json:"expires_at,omitempty"`
	LastUsedAt *time.Time `json:"last_used_at,omitempty"` // to the minute
	// Secret is "cay_" and 43 characters, or a JWT if CreateTokenParams asked for
	// one. It is set only in the answer to CreateToken.
	Secret string `json:"secret,omitempty"`
}

// JWT is a token in the form of a JSON Web Token, for one project.
type JWT struct {
	Secret    string    `json:"secret"`
	ProjectID string    `json:"project_id"`
	ExpiresAt time.Time `json:"expires_at"`
}

// LoginStatus is the state of a login.
type LoginStatus string

// The decisions about a login.
const (
	LoginApproved LoginStatus = "approved"
	LoginDenied   LoginStatus = "denied"
)

// DeviceLogin is a program's request for a token, which a person approves or
// denies.
type DeviceLogin struct {
	Status LoginStatus `json:"status"`
	// ClientID and Agent are the program's own description of itself. Address is
	// the program's IP address, or a network of IPv6.
	ClientID string `json:"client_id"`
	Agent    string `json:"agent,omitempty"`
	Address  string `json:"address"`
	// TeamID is the team that the token acts for, and ProjectID the project if the
	// token is for a single one. Empty if the login gets no token.
	TeamID    string    `json:"team_id,omitempty"`
	ProjectID string    `json:"project_id,omitempty"`
	CreatedAt time.Time `json:"created_at"`
	ExpiresAt time.Time `json:"expires_at"` // the request, not the token
}

// ApproveParams describes the token for a login. The zero value is a token for all
// projects of the caller's team.
type ApproveParams struct {
	// ProjectID binds the token to one project of the team. Empty means all
	// projects.
	ProjectID string `json:"project_id,omitempty"`
}

// Identity is the team, and possibly the project, that a request acts for.
type Identity struct {
	Token Token `json:"token"`
	// Team is the token's team, or the team that an admin token chose.
	Team Team `json:"team"`
	// Project is nil unless the token is bound to a project.
	Project *Project `json:"project,omitempty"`
}

// LoginLink logs a browser in to the web inspector.
type LoginLink struct {
	// Code is appended to the daemon's address and "/ui/login#". It can be used
	// once.
	Code      string    `json:"code"`
	ExpiresAt time.Time `json:"expires_at"` // of the code, not of the login
}

// Daemon describes a daemon.
type Daemon struct {
	Version string `json:"version"` // of cay
}

// CreateTeamParams describes a team to create.
type CreateTeamParams struct {
	// Name is 1 to 64 of A-Z a-z 0-9 _ -.
	Name string `json:"name"`
}

// CreateProjectParams describes a project to create in the caller's team.
type CreateProjectParams struct {
	// Name is 1 to 64 of A-Z a-z 0-9 _ -.
	Name string `json:"name"`
}

// CreateTokenParams describes a token to create in the caller's team. The zero
// value makes a token for all projects of the team that does not expire.
type CreateTokenParams struct {
	// Name describes the token's purpose: at most 128 characters, no control
	// characters.
	Name string `json:"name,omitempty"`
	// ProjectID binds the token to one project of the team. Empty means all
	// projects.
	ProjectID string `json:"project_id,omitempty"`
	// Admin makes an operator's token, which reaches every team. Only an admin
	// token may create one; not together with ProjectID.
	Admin bool `json:"admin,omitempty"`
	// Rights are the rights of the token beyond working with its project. Only
	// together with a project: see Right.
	Rights []Right `json:"rights,omitempty"`
	// ExpiresAt must be in the future. Nil means never. A token that expires can
	// only create tokens that expire no later; nil then means the same time.
	ExpiresAt *time.Time `json:"expires_at,omitempty"`
	// JWT makes the secret a JSON Web Token signed by the daemon, for clients that
	// need one: RS256, with the claims owner_id and owner (the team), project_id
	// and project, jti (the token's id), iss, sub, iat and exp. A JWT is for one
	// project: an empty ProjectID means the default project, which only the
	// default team has. A nil ExpiresAt means in ten years. Not together with
	// Admin.
	JWT bool `json:"jwt,omitempty"`
}

// ListParams pages through a list, newest first.
type ListParams struct {
	Limit  int    // 1 to 200; 0 means 50
	Cursor string // Next of the page before
}

// Page is one page of a list.
type Page[T any] struct {
	Items []T    `json:"items"`
	Next  string `json:"next,omitempty"` // cursor of the next page; empty on the last
}
