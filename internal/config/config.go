// Package config is the daemon's configuration: a single struct, filled from the
// defaults, then a YAML file, then the environment, then flags.
//
// Every setting has a key, from which its other names are derived: the key
// quota.creates_per_minute is the variable CAY_QUOTA_CREATES_PER_MINUTE and the
// flag --quota-creates-per-minute. A file looks like this; unknown and repeated
// keys are refused, so that a typing error cannot pass for a setting:
//
//	listen: 0.0.0.0:7070
//	tls_cert: /etc/cay/cert.pem
//	tls_key: /etc/cay/key.pem
//	quota:
//	  sandboxes: 50
//	  memory: 64GiB
//	pools:
//	- {runtime: python3.13, vcpus: 1, size: 10}
//
// To add a setting: 1. a field of Config with its yaml key and a comment; 2. its
// default in Default; 3. its line in Settings, with the usage shown by help;
// 4. a check in Validate if some values are wrong; 5. a use of it.
package config

import (
	"log/slog"
	"net/netip"
	"path/filepath"
	"time"

	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/internal/wire"
	"github.com/cayhq/cay/sandbox"
)

// Config says how a daemon runs. Make one with Default or Load.
type Config struct {
	// Data is the directory of all data that the daemon keeps; it is created if
	// missing. Default: /var/lib/cay for root, else .local/share/cay in the home
	// directory.
	Data string `yaml:"data"`
	// Listen is the host:port of the API. Port 0 takes any free one. A host
	// that is not this machine's loopback requires TLSCert and TLSKey, or Insecure.
	Listen string `yaml:"listen"`
	// TLSCert and TLSKey are PEM files; both or neither. The daemon reads them
	// again when they have changed.
	TLSCert string `yaml:"tls_cert"`
	TLSKey  string `yaml:"tls_key"`
	// Insecure allows other hosts to be served without TLS, as behind a proxy
	// that ends it. Tokens then cross the network readable.
	Insecure bool `yaml:"insecure"`
	// AllowedHosts are the names, without port, under which clients may address the
	// daemon, besides loopback names and the host in Listen. Other names are
	// refused, so that a web page cannot reach the daemon by DNS rebinding.
	// "*.example.com" means all names below example.com.
	AllowedHosts []string `yaml:"allowed_hosts"`
	// PublicURL is the URL at which clients reach the API, such as
	// https://cay.example.com. It is the issuer of the daemon's JWTs, and people
	// approve logins there. Empty means the host of each request, and the address
	// in Listen for JWTs that are signed without a request. PublicURL must be set
	// behind a proxy that ends TLS.
	PublicURL string `yaml:"public_url"`
	// PreviewDomain is the domain one label below which previews are served:
	// <label>.localhost. Its names have to resolve to this machine, by a wildcard
	// DNS record, except names below localhost, which browsers resolve themselves.
	// The API cannot have such a name itself.
	PreviewDomain string `yaml:"preview_domain"`
	// PreviewTemplate is the public URL of a preview, if it differs from
	// <scheme>://<label>.<preview_domain>:<port of listen>, as behind a proxy:
	// https://{label}.preview.example.com. Its host is a label below PreviewDomain.
	PreviewTemplate string `yaml:"preview_url"`
	// PreviewTLSCert and PreviewTLSKey are PEM files of a certificate for
	// *.<preview_domain>. Empty means that TLSCert is for those names, too.
	PreviewTLSCert string `yaml:"preview_tls_cert"`
	PreviewTLSKey  string `yaml:"preview_tls_key"`
	// InsecureNoLimits starts sandboxes even where cgroups cannot bound their
	// CPU, memory and processes.
	InsecureNoLimits bool `yaml:"insecure_no_limits"`

	// AllowRanges are address ranges, in CIDR form, outside the public internet
	// that sandboxes and image pulls may still reach: a package mirror, or a
	// private registry. By default there are none.
	AllowRanges []string `yaml:"allow_ranges"`
	// GuestTrust makes sandboxes trust the certificate authorities that were added
	// to this machine's, such as a company's own.
	GuestTrust bool `yaml:"guest_trust"`
	// GuestPrivileges is full or restricted: the privileges of root in sandboxes, see
	// sandbox.Privileges. A sandbox may be restricted where others are not.
	GuestPrivileges string `yaml:"guest_privileges"`
	// Nameservers are the addresses, with or without a port, of the name servers
	// that resolve names for sandboxes. Empty means this machine's name servers.
	Nameservers []string `yaml:"nameservers"`

	// VercelHeaderDelay is the delay after which clients of Vercel's get the
	// headers of a slow answer, and the interval of the white space that follows
	// until the answer is ready.
	VercelHeaderDelay time.Duration `yaml:"vercel_header_delay"`
	// CloudflareImage is the image of sandboxes that clients of the bridge make; see
	// docs/cloudflare.md. Empty: the default image.
	CloudflareImage string `yaml:"cloudflare_image"`

	// LogLevel is debug, info, warn or error; LogFormat text or json.
	LogLevel  slog.Level `yaml:"log_level"`
	LogFormat string     `yaml:"log_format"`

	// DebianMirror is the URL of the package archive that the default image is
	// built from. Empty means mmdebstrap's default.
	DebianMirror string `yaml:"debian_mirror"`
	// NPMRegistry is the URL of the registry that language runtimes come from.
	// Empty means the registry that npm on this machine is configured to use.
	NPMRegistry string `yaml:"npm_registry"`

	// DiskReserve is how much of the disk of Data stays free: with less free space
	// no sandbox is created and nothing is saved.
	DiskReserve Size `yaml:"disk_reserve"`
	// SnapshotExpiration is how long snapshots are kept of sandboxes without an
	// expiration of their own.
	SnapshotExpiration time.Duration `yaml:"snapshot_expiration"`

	// Pool is the number of booted machines for sandboxes with default settings:
	// the default image and runtime, CPUs, memory and disk.
	Pool int `yaml:"pool"`
	// Pools has further pools, of other kinds of machines. Pools can be set in a
	// file only.
	Pools []Pool `yaml:"pools"`

	// WorkflowDatabase is the postgres:// URL of the database of workflows, if it
	// is not workflows.db in Data. It may be shared with other daemons and
	// programs.
	WorkflowDatabase string `yaml:"workflow_database"`
	// WorkflowSync makes the data of workflows survive a power cut, not only a
	// crash of the daemon. PostgreSQL always does so, unless PostgreSQL is
	// configured otherwise.
	WorkflowSync bool `yaml:"workflow_sync"`
	// WorkflowRetention is how long ended runs of apps in other languages are kept
	// by default; definitions of the SDK in Go set their own. 0 keeps them.
	WorkflowRetention time.Duration `yaml:"workflow_retention"`

	// GatewayListen is the host:port of the AI gateway, which has its own origin;
	// "off" disables the gateway. Port 0 takes any free port. Empty means the port
	// after the port of Listen, on the same host. TLSCert, TLSKey and Insecure
	// apply to both.
	GatewayListen string `yaml:"gateway_listen"`
	// GatewayConfig is the YAML file of providers, models and rules; the daemon
	// reads it again when it has changed. Empty means gateway.yaml in Data, if that
	// file exists.
	GatewayConfig string `yaml:"gateway_config"`
	// GatewayRetention is how long records of requests are kept; 0 for ever.
	GatewayRetention time.Duration `yaml:"gateway_retention"`
	// GatewayMaxBody is how large a request may be, 1 KiB to 100 MiB.
	GatewayMaxBody Size `yaml:"gateway_max_body"`
	// GatewayBodies bounds the memory for the bodies of all requests in progress;
	// the requests of one key may take half of it. At least twice GatewayMaxBody.
	GatewayBodies Size `yaml:"gateway_bodies"`

	// Quota bounds teams without a quota of their own.
	Quota Quota `yaml:"quota"`
	// Limits bound every single sandbox.
	Limits Limits `yaml:"limits"`
}

// Pool is a stock of booted machines of one kind. A sandbox takes a machine of the
// pool if it has the same image or runtime and the same disk, and no more vCPUs and
// memory. Omitted fields have the defaults of a sandbox.
type Pool struct {
	Image   string  `yaml:"image"`   // or Runtime
	Runtime string  `yaml:"runtime"` // on the default image
	VCPUs   float64 `yaml:"vcpus"`
	Memory  Size    `yaml:"memory"`
	Disk    Size    `yaml:"disk"`
	// Size is the number of waiting machines, at least 1.
	Size int `yaml:"size"`
}

// Quota bounds the concurrent use of a team's sandboxes. 0 means no bound.
type Quota struct {
	Sandboxes        int     `yaml:"sandboxes"` // running at once
	VCPUs            float64 `yaml:"vcpus"`
	Memory           Size    `yaml:"memory"`
	Disk             Size    `yaml:"disk"`
	CreatesPerMinute int     `yaml:"creates_per_minute"`
	// Snapshots bounds the disk space of snapshots, hibernated sandboxes and
	// drives.
	Snapshots Size `yaml:"snapshots"`
	// Images bounds the disk space of the team's own images, and ImageDownloads the
	// downloads for them in a day (UTC).
	Images         Size `yaml:"images"`
	ImageDownloads Size `yaml:"image_downloads"`
}

// Account converts q to an account.Quota.
func (q Quota) Account() account.Quota {
	return account.Quota{
		Sandboxes:        q.Sandboxes,
		VCPUs:            q.VCPUs,
		MemoryMB:         q.Memory.MiB(),
		DiskMB:           q.Disk.MiB(),
		CreatesPerMinute: q.CreatesPerMinute,
		SnapshotMB:       q.Snapshots.MiB(),
		ImageMB:          q.Images.MiB(),
		ImageDownloadMB:  q.ImageDownloads.MiB(),
	}
}

// Limits are the maxima for one sandbox.
type Limits struct {
	Timeout time.Duration `yaml:"timeout"` // from its start to its end, extensions included
	VCPUs   float64       `yaml:"vcpus"`
	Memory  Size          `yaml:"memory"`
	Disk    Size          `yaml:"disk"`
	// Snapshot bounds the size of one snapshot.
	Snapshot Size `yaml:"snapshot"`
	// Starts is how many sandboxes boot at the same time; others wait.
	Starts int `yaml:"starts"`
	// Connections is how many connections to the outside may be open, and
	// ConnectionRate how many may be opened in a second, after a burst of the same
	// number.
	Connections    int `yaml:"connections"`
	ConnectionRate int `yaml:"connection_rate"`
	// Bandwidth is the bytes in a second in each direction, and Traffic the bytes
	// in both directions in the sandbox's life. 0 means no bound.
	Bandwidth Size `yaml:"bandwidth"`
	Traffic   Size `yaml:"traffic"`
}

// Default returns the configuration of a daemon without any settings.
func Default() Config {
	return Config{
		Data:          wire.DataDir(),
		Listen:        "127.0.0.1:7070",
		PreviewDomain: "localhost",

		GuestTrust:      true,
		GuestPrivileges: string(sandbox.FullPrivileges),

		VercelHeaderDelay: 20 * time.Second,

		LogLevel:  slog.LevelInfo,
		LogFormat: "text",

		DiskReserve:        GiB,
		SnapshotExpiration: 30 * 24 * time.Hour,
		WorkflowRetention:  30 * 24 * time.Hour,

		GatewayRetention: 90 * 24 * time.Hour,
		GatewayMaxBody:   32 * MiB,
		GatewayBodies:    512 * MiB,

		Quota: Quota{Sandboxes: 200, CreatesPerMinute: 600, Images: 50 * GiB, ImageDownloads: 200 * GiB},
		Limits: Limits{
			Timeout:  24 * time.Hour,
			VCPUs:    64,
			Memory:   1024 * GiB,
			Disk:     1024 * GiB,
			Snapshot: 64 * GiB,
			Starts:   8,

			Connections:    2048,
			ConnectionRate: 1000,
		},
	}
}

// Ranges returns AllowRanges, which must be valid.
func (c *Config) Ranges() []netip.Prefix {
	var ranges []netip.Prefix
	for _, r := range c.AllowRanges {
		ranges = append(ranges, netip.MustParsePrefix(r))
	}
	return ranges
}

// AdminTokenFile is the path of the file with the admin token.
func (c *Config) AdminTokenFile() string { return filepath.Join(c.Data, "admin.token") }

// DatabaseFile is the daemon's database.
func (c *Config) DatabaseFile() string { return filepath.Join(c.Data, "cay.db") }

// FlowFile is the database of the records of flows.
func (c *Config) FlowFile() string { return filepath.Join(c.Data, "flows.db") }

// WorkflowFile is the database of workflows, unless WorkflowDatabase is set.
func (c *Config) WorkflowFile() string { return filepath.Join(c.Data, "workflows.db") }

// GatewayFile is the database of the AI gateway: keys, budgets, records.
func (c *Config) GatewayFile() string { return filepath.Join(c.Data, "gateway.db") }

// ImageDir is the image store. Commands that run without a daemon share it.
func (c *Config) ImageDir() string { return filepath.Join(c.Data, "images") }
