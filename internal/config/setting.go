package config

import (
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/cayhq/cay"
)

// Setting is one field of a Config, with all its names.
type Setting struct {
	// Key names it in the file: "listen", "quota.sandboxes".
	Key string
	// Usage is one line for help.
	Usage string

	field any // *string, *bool, *int, *float64, *Size, *time.Duration, *slog.Level, *[]string
}

// Settings lists the fields of c in the order of help, except for lists of
// objects, which only a file can have.
func (c *Config) Settings() []Setting {
	return []Setting{
		{"data", "directory of all the daemon keeps", &c.Data},
		{"listen", "host:port of the API; beyond loopback it takes --tls-cert and --tls-key, or --insecure", &c.Listen},
		{"tls_cert", "PEM file with the certificate chain", &c.TLSCert},
		{"tls_key", "PEM file with the certificate's private key", &c.TLSKey},
		{"insecure", "serve other hosts without TLS", &c.Insecure},
		{"allowed_hosts", "names clients may address the daemon by, besides loopback ones (comma-separated)", &c.AllowedHosts},
		{"public_url", "URL at which clients reach the API, if that is not how they address it (behind a proxy)", &c.PublicURL},
		{"preview_domain", "domain below which previews are served; its names, *.<domain>, have to lead here", &c.PreviewDomain},
		{"preview_url", "URL of previews if a proxy makes it another one, as in https://{label}.preview.example.com", &c.PreviewTemplate},
		{"preview_tls_cert", "PEM file with a certificate for *.<preview_domain>, if --tls-cert is not for it", &c.PreviewTLSCert},
		{"preview_tls_key", "PEM file with its private key", &c.PreviewTLSKey},
		{"insecure_no_limits", "start sandboxes even if their CPU and memory cannot be bounded", &c.InsecureNoLimits},
		{"allow_ranges", "address ranges outside the public internet that sandboxes and image pulls may reach (comma-separated)", &c.AllowRanges},
		{"guest_trust", "sandboxes trust the certificate authorities that were added to this machine's", &c.GuestTrust},
		{"guest_privileges", "full, or restricted: without raw sockets, packet sockets and nftables, which Docker in sandboxes needs", &c.GuestPrivileges},
		{"nameservers", "name servers for sandboxes, as addresses with or without a port (comma-separated)", &c.Nameservers},
		{"vercel_header_delay", "after how long clients of Vercel's get the headers of an answer that is not there yet", &c.VercelHeaderDelay},
		{"cloudflare_image", "image of sandboxes of the bridge's clients (default the default image)", &c.CloudflareImage},
		{"log_level", "debug, info, warn or error", &c.LogLevel},
		{"log_format", "text or json", &c.LogFormat},
		{"debian_mirror", "URL of the package archive the default image is built from", &c.DebianMirror},
		{"npm_registry", "URL of the registry language runtimes come from", &c.NPMRegistry},
		{"disk_reserve", "free room on the data directory's disk without which no sandbox is created or saved", &c.DiskReserve},
		{"snapshot_expiration", "how long snapshots are kept of sandboxes that do not say", &c.SnapshotExpiration},
		{"pool", "booted machines that wait for sandboxes of the default kind; pools in the file adds other kinds", &c.Pool},
		{"workflow_database", "postgres:// URL of the database of workflows (default workflows.db in the data directory)", &c.WorkflowDatabase},
		{"workflow_sync", "workflows survive a power cut, not only a crash; slower", &c.WorkflowSync},
		{"workflow_retention", "how long ended runs of JavaScript apps are kept; 0 keeps them", &c.WorkflowRetention},
		{"gateway_listen", "host:port of the AI gateway, or off (default the port after that of --listen)", &c.GatewayListen},
		{"gateway_config", "YAML file of the gateway's providers, models and rules (default gateway.yaml in the data directory)", &c.GatewayConfig},
		{"gateway_retention", "how long records of the gateway's requests are kept; 0 for ever", &c.GatewayRetention},
		{"gateway_max_body", "largest request to the gateway, at most 100MiB", &c.GatewayMaxBody},
		{"gateway_bodies", "memory for the gateway's requests that are under way; half of it for one key", &c.GatewayBodies},
		{"quota.sandboxes", "sandboxes a team may run at once; 0 for no bound, as for all quotas", &c.Quota.Sandboxes},
		{"quota.vcpus", "vCPUs of a team's running sandboxes", &c.Quota.VCPUs},
		{"quota.memory", "memory of a team's running sandboxes", &c.Quota.Memory},
		{"quota.disk", "disk of a team's running sandboxes", &c.Quota.Disk},
		{"quota.creates_per_minute", "sandboxes a team may create in a minute", &c.Quota.CreatesPerMinute},
		{"quota.snapshots", "disk for a team's snapshots, hibernated sandboxes and drives", &c.Quota.Snapshots},
		{"quota.images", "disk for images that a team has brought", &c.Quota.Images},
		{"quota.image_downloads", "what a team may download for images in a day", &c.Quota.ImageDownloads},
		{"limits.timeout", "longest a sandbox may run", &c.Limits.Timeout},
		{"limits.vcpus", "most vCPUs of a sandbox", &c.Limits.VCPUs},
		{"limits.memory", "most memory of a sandbox", &c.Limits.Memory},
		{"limits.disk", "most disk of a sandbox", &c.Limits.Disk},
		{"limits.snapshot", "largest size of a snapshot", &c.Limits.Snapshot},
		{"limits.starts", "sandboxes that boot at the same time", &c.Limits.Starts},
		{"limits.connections", "connections of a sandbox to the outside", &c.Limits.Connections},
		{"limits.connection_rate", "connections a sandbox may open in a second", &c.Limits.ConnectionRate},
		{"limits.bandwidth", "bytes a second of a sandbox, in each direction; 0 for no bound", &c.Limits.Bandwidth},
		{"limits.traffic", "bytes of a sandbox in its life, in both directions; 0 for no bound", &c.Limits.Traffic},
	}
}

// Flag is the setting's name on the command line, without dashes.
func (s Setting) Flag() string { return strings.NewReplacer("_", "-", ".", "-").Replace(s.Key) }

// Env is the setting's name in the environment.
func (s Setting) Env() string {
	return "CAY_" + strings.ToUpper(strings.ReplaceAll(s.Key, ".", "_"))
}

// String returns the value in the form that Set accepts.
func (s Setting) String() string {
	switch f := s.field.(type) {
	case *string:
		return *f
	case *[]string:
		return strings.Join(*f, ",")
	case *bool:
		return strconv.FormatBool(*f)
	case *int:
		return strconv.Itoa(*f)
	case *float64:
		return strconv.FormatFloat(*f, 'g', -1, 64)
	case *Size:
		return f.String()
	case *time.Duration:
		return f.String()
	case *slog.Level:
		return strings.ToLower(f.String())
	}
	panic(fmt.Sprintf("config: setting %s is a %T", s.Key, s.field))
}

// Type returns the type of the value, for help; a "bool" needs no value on the
// command line.
func (s Setting) Type() string {
	switch s.field.(type) {
	case *string, *slog.Level:
		return "string"
	case *[]string:
		return "strings"
	case *bool:
		return "bool"
	case *int:
		return "int"
	case *float64:
		return "number"
	case *Size:
		return "size"
	case *time.Duration:
		return "duration"
	}
	panic(fmt.Sprintf("config: setting %s is a %T", s.Key, s.field))
}

// Set gives the field a value from text. Errors: invalid, without the
// setting's name.
func (s Setting) Set(text string) error {
	var err error
	switch f := s.field.(type) {
	case *string:
		*f = text
	case *[]string:
		*f = nil
		for item := range strings.SplitSeq(text, ",") {
			if item = strings.TrimSpace(item); item != "" {
				*f = append(*f, item)
			}
		}
	case *bool:
		if *f, err = strconv.ParseBool(text); err != nil {
			return cay.Errorf(cay.Invalid, "%q is neither true nor false", text)
		}
	case *int:
		if *f, err = strconv.Atoi(text); err != nil {
			return cay.Errorf(cay.Invalid, "%q is not a whole number", text)
		}
	case *float64:
		if *f, err = strconv.ParseFloat(text, 64); err != nil {
			return cay.Errorf(cay.Invalid, "%q is not a number", text)
		}
	case *Size:
		*f, err = ParseSize(text)
		return err
	case *time.Duration:
		if *f, err = time.ParseDuration(text); err != nil {
			return cay.Errorf(cay.Invalid, "%q is not a duration", text).WithHint("write for example 90s, 5m or 24h")
		}
	case *slog.Level:
		return setLevel(f, text)
	default:
		panic(fmt.Sprintf("config: setting %s is a %T", s.Key, s.field))
	}
	return nil
}

func setLevel(l *slog.Level, text string) error {
	for _, known := range []slog.Level{slog.LevelDebug, slog.LevelInfo, slog.LevelWarn, slog.LevelError} {
		if strings.EqualFold(text, known.String()) {
			*l = known
			return nil
		}
	}
	return cay.Errorf(cay.Invalid, "%q is no log level", text).WithHint("use debug, info, warn or error")
}
