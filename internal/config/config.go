// Package config is the daemon's configuration: one struct, filled from the
// defaults, then a YAML file, then the environment, then flags.
//
// Every setting has one key, and its other names follow from it: the key
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
)

// Config says how a daemon runs. Make one with Default or Load.
type Config struct {
	// Data is the directory of everything the daemon keeps; made if missing.
	// Default: /var/lib/cay for root, else .local/share/cay in the home directory.
	Data string `yaml:"data"`
	// Listen is the host:port of the API. Port 0 takes any free one. A host
	// that is not this machine's loopback requires TLSCert and TLSKey, or Insecure.
	Listen string `yaml:"listen"`
	// TLSCert and TLSKey are PEM files; both or neither. They are read again when
	// they have changed.
	TLSCert string `yaml:"tls_cert"`
	TLSKey  string `yaml:"tls_key"`
	// Insecure allows other hosts to be served without TLS, as behind a proxy
	// that ends it. Tokens then cross the network readable.
	Insecure bool `yaml:"insecure"`
	// AllowedHosts are the names, without port, under which clients may address
	// the daemon, besides loopback names and the host in Listen. Others are
	// refused, so that a web page cannot reach it by DNS rebinding.
	// "*.example.com" stands for all names below example.com.
	AllowedHosts []string `yaml:"allowed_hosts"`
	// PreviewDomain is the domain one label below which previews are served:
	// <label>.localhost. Its names have to lead here, by a wildcard DNS record,
	// except those of localhost, which browsers know. The API cannot be at such
	// a name itself.
	PreviewDomain string `yaml:"preview_domain"`
	// PreviewTemplate is the URL of a preview as visitors see it, if that is not
	// <scheme>://<label>.<preview_domain>:<port of listen>, as behind a proxy:
	// https://{label}.preview.example.com. Its host is a label below PreviewDomain.
	PreviewTemplate string `yaml:"preview_url"`
	// PreviewTLSCert and PreviewTLSKey are PEM files of a certificate for
	// *.<preview_domain>. Empty: TLSCert is for those names too.
	PreviewTLSCert string `yaml:"preview_tls_cert"`
	PreviewTLSKey  string `yaml:"preview_tls_key"`
	// InsecureNoLimits starts sandboxes even where cgroups cannot bound their
	// CPU, memory and processes.
	InsecureNoLimits bool `yaml:"insecure_no_limits"`

	// AllowRanges are address ranges, in CIDR form, outside the public internet
	// that sandboxes and image pulls may reach all the same: a package mirror, a
	// registry of one's own. By default there is none.
	AllowRanges []string `yaml:"allow_ranges"`
	// GuestTrust makes sandboxes trust the certificate authorities that were
	// added to those this machine trusts, such as a company's own.
	GuestTrust bool `yaml:"guest_trust"`
	// Nameservers are the addresses, with or without a port, of the name servers
	// that resolve names for sandboxes. Empty: those of this machine.
	Nameservers []string `yaml:"nameservers"`

	// LogLevel is debug, info, warn or error; LogFormat text or json.
	LogLevel  slog.Level `yaml:"log_level"`
	LogFormat string     `yaml:"log_format"`

	// DebianMirror is the package archive the default image is built from, as a
	// URL. Empty: the one mmdebstrap would use.
	DebianMirror string `yaml:"debian_mirror"`
	// NPMRegistry is where language runtimes come from, as a URL. Empty: what
	// npm on this machine is configured to use.
	NPMRegistry string `yaml:"npm_registry"`

	// Quota bounds teams that have none of their own.
	Quota Quota `yaml:"quota"`
	// Limits bound every single sandbox, whoever makes it.
	Limits Limits `yaml:"limits"`
}

// Quota bounds what a team's sandboxes may use at one time. 0 means no bound.
type Quota struct {
	Sandboxes        int     `yaml:"sandboxes"` // running at once
	VCPUs            float64 `yaml:"vcpus"`
	Memory           Size    `yaml:"memory"`
	Disk             Size    `yaml:"disk"`
	CreatesPerMinute int     `yaml:"creates_per_minute"`
}

// Account returns q in the terms of package account.
func (q Quota) Account() account.Quota {
	return account.Quota{
		Sandboxes:        q.Sandboxes,
		VCPUs:            q.VCPUs,
		MemoryMB:         q.Memory.MiB(),
		DiskMB:           q.Disk.MiB(),
		CreatesPerMinute: q.CreatesPerMinute,
	}
}

// Limits are the most one sandbox may ask for.
type Limits struct {
	Timeout time.Duration `yaml:"timeout"` // from its start to its end, extensions included
	VCPUs   float64       `yaml:"vcpus"`
	Memory  Size          `yaml:"memory"`
	Disk    Size          `yaml:"disk"`
	// Starts is how many sandboxes boot at the same time; others wait.
	Starts int `yaml:"starts"`
	// Connections to the outside that may be open, and ConnectionRate how many
	// may be opened in a second, after a burst of as many.
	Connections    int `yaml:"connections"`
	ConnectionRate int `yaml:"connection_rate"`
	// Bandwidth is bytes in a second in each direction, and Traffic all bytes in
	// both directions in the sandbox's life. 0 means no bound.
	Bandwidth Size `yaml:"bandwidth"`
	Traffic   Size `yaml:"traffic"`
}

// Default returns the configuration of a daemon that is told nothing.
func Default() Config {
	return Config{
		Data:          wire.DataDir(),
		Listen:        "127.0.0.1:7070",
		PreviewDomain: "localhost",

		GuestTrust: true,
		LogLevel:   slog.LevelInfo,
		LogFormat:  "text",
		Quota:      Quota{Sandboxes: 200, CreatesPerMinute: 600},
		Limits: Limits{
			Timeout: 24 * time.Hour,
			VCPUs:   64,
			Memory:  1024 * GiB,
			Disk:    1024 * GiB,
			Starts:  8,

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

// AdminTokenFile is where the daemon writes the admin token.
func (c *Config) AdminTokenFile() string { return filepath.Join(c.Data, "admin.token") }

// DatabaseFile is the daemon's database.
func (c *Config) DatabaseFile() string { return filepath.Join(c.Data, "cay.db") }

// ImageDir is the image store. Commands that run without a daemon share it.
func (c *Config) ImageDir() string { return filepath.Join(c.Data, "images") }
