// Package account is the SDK for teams, projects, tokens and quotas: who may
// use a cay daemon, and how much of it.
//
// Every object belongs to a project, every project to a team. A daemon starts
// with team "team_default" and project "prj_default". A token speaks for a team,
// or for one project of it; the admin token, written to admin.token in the data
// directory at the first start, for every team.
package account

import "time"

const (
	DefaultTeam    = "team_default"
	DefaultProject = "prj_default"
)

// Team is a tenant: teams never see each other's objects.
type Team struct {
	ID        string    `json:"id"`
	Name      string    `json:"name"`
	Quota     Quota     `json:"quota"`
	CreatedAt time.Time `json:"created_at"`
}

// Project groups a team's objects; names of sandboxes are unique within one.
type Project struct {
	ID        string    `json:"id"`
	TeamID    string    `json:"team_id"`
	Name      string    `json:"name"`
	CreatedAt time.Time `json:"created_at"`
}

// Quota bounds what a team's sandboxes may use at one time. A field of 0 means
// no bound. Exceeding one is answered with quota_exceeded.
type Quota struct {
	Sandboxes        int     `json:"sandboxes"` // running at once
	VCPUs            float64 `json:"vcpus"`     // sum over running sandboxes
	MemoryMB         int64   `json:"memory_mb"`
	DiskMB           int64   `json:"disk_mb"`
	CreatesPerMinute int     `json:"creates_per_minute"`
}

// Token is a credential. Its secret is shown once, when it is made; the daemon
// keeps only a hash.
type Token struct {
	ID         string     `json:"id"` // "tok_" and 20 characters
	Name       string     `json:"name"`
	TeamID     string     `json:"team_id"`
	ProjectID  string     `json:"project_id,omitempty"` // empty: every project of the team
	Admin      bool       `json:"admin,omitempty"`
	CreatedAt  time.Time  `json:"created_at"`
	ExpiresAt  *time.Time `json:"expires_at,omitempty"`
	LastUsedAt *time.Time `json:"last_used_at,omitempty"` // to the minute
	// Secret is "cay_" and 43 characters; only in the answer to Create.
	Secret string `json:"secret,omitempty"`
}
