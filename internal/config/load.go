package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
)

// Sources are the sources of settings for Load, weakest first.
type Sources struct {
	// File is the path of a YAML file. Empty: none.
	File string
	// Env looks up a variable. An empty variable counts as not set.
	Env func(name string) string
	// Flags are values given on the command line, by key.
	Flags map[string]string
}

// Load returns the configuration of the sources, validated, with absolute paths. Errors:
// invalid, with the setting's name in its source.
func Load(s Sources) (Config, error) {
	c := Default()
	if s.File != "" {
		if err := c.readFile(s.File); err != nil {
			return Config{}, err
		}
	}
	for _, setting := range c.Settings() {
		if s.Env != nil {
			if v := s.Env(setting.Env()); v != "" {
				if err := set(setting, setting.Env(), v); err != nil {
					return Config{}, err
				}
			}
		}
		if v, ok := s.Flags[setting.Key]; ok {
			if err := set(setting, "--"+setting.Flag(), v); err != nil {
				return Config{}, err
			}
		}
	}
	if err := c.absolute(); err != nil {
		return Config{}, err
	}
	return c, c.Validate()
}

// set adds the source's name to the error.
func set(s Setting, name, value string) error {
	err := s.Set(value)
	var e *cay.Error
	if errors.As(err, &e) {
		named := *e
		named.Message = name + ": " + e.Message
		return &named
	}
	return err
}

const maxFile = 1 << 20

func (c *Config) readFile(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return cay.Errorf(cay.Invalid, "cannot read the configuration: %w", err).WithHint("check --config and CAY_CONFIG")
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return cay.Errorf(cay.Invalid, "cannot read the configuration: %w", err)
	}
	if len(b) > maxFile {
		return cay.Errorf(cay.Invalid, "configuration %s is larger than 1 MiB", path)
	}
	return c.readYAML(path, b)
}

func (c *Config) readYAML(path string, b []byte) error {
	d := yaml.NewDecoder(bytes.NewReader(b), yaml.Strict())
	read := *c // the library empties it if there is nothing but comments
	err := d.Decode(&read)
	if errors.Is(err, io.EOF) {
		return nil
	}
	if err == nil {
		if err = d.Decode(new(any)); errors.Is(err, io.EOF) {
			*c = read
			return nil
		}
		if err == nil {
			err = errors.New("more than one YAML document")
		}
	}
	// The library's first line is "[line:column] what is wrong"; the rest quotes the file.
	what, _, _ := strings.Cut(err.Error(), "\n")
	return cay.Errorf(cay.Invalid, "configuration %s: %s", path, what).WithHint("\"cay serve --help\" lists the settings")
}

// absolute makes paths independent of the working directory.
func (c *Config) absolute() error {
	for _, p := range []*string{&c.Data, &c.TLSCert, &c.TLSKey, &c.PreviewTLSCert, &c.PreviewTLSKey, &c.GatewayConfig} {
		if *p == "" {
			continue
		}
		abs, err := filepath.Abs(*p)
		if err != nil {
			return fmt.Errorf("make %q absolute: %w", *p, err)
		}
		*p = abs
	}
	return nil
}

// Validate returns an error of code invalid that names the first wrong setting
// by its key, and its value.
func (c *Config) Validate() error {
	if c.Data == "" {
		return wrong("data", c.Data, "it must be a directory")
	}
	if err := c.validateListen(); err != nil {
		return err
	}
	for _, h := range c.AllowedHosts {
		if !validHost(strings.TrimPrefix(h, "*.")) {
			return wrong("allowed_hosts", h, "it must be a host name or address without scheme and port")
		}
	}
	if err := c.validateGateway(); err != nil {
		return err
	}
	if err := c.validatePublicURL(); err != nil {
		return err
	}
	if err := c.validatePreview(); err != nil {
		return err
	}
	for _, r := range c.AllowRanges {
		if p, err := netip.ParsePrefix(r); err != nil || p != p.Masked() {
			return wrong("allow_ranges", r, "it must be a range such as 10.1.0.0/16")
		}
	}
	for _, s := range c.Nameservers {
		if !validServer(s) {
			return wrong("nameservers", s, "it must be an address such as 10.0.0.53 or 10.0.0.53:5353")
		}
	}
	if u, err := url.Parse(c.WorkflowDatabase); c.WorkflowDatabase != "" && (err != nil || u.Scheme != "postgres" && u.Scheme != "postgresql") {
		// The error leaves the value out, which may have a password in it.
		return cay.Errorf(cay.Invalid, "workflow_database is not the postgres:// URL of a database")
	}
	if p := sandbox.Privileges(c.GuestPrivileges); p != sandbox.FullPrivileges && p != sandbox.RestrictedPrivileges {
		return wrong("guest_privileges", c.GuestPrivileges, "use full or restricted")
	}
	if c.LogFormat != "text" && c.LogFormat != "json" {
		return wrong("log_format", c.LogFormat, "use text or json")
	}
	for _, u := range []struct{ key, value string }{{"debian_mirror", c.DebianMirror}, {"npm_registry", c.NPMRegistry}} {
		if u.value == "" {
			continue
		}
		parsed, err := url.Parse(u.value)
		if err != nil || parsed.Scheme != "http" && parsed.Scheme != "https" || parsed.Host == "" {
			return wrong(u.key, u.value, "it must be an http:// or https:// URL")
		}
	}
	if err := c.validatePools(); err != nil {
		return err
	}
	return c.validateNumbers()
}

// maxPool is how many machines may wait in one pool.
const maxPool = 1000

func (c *Config) validatePools() error {
	if c.Pool < 0 || c.Pool > maxPool {
		return wrong("pool", strconv.Itoa(c.Pool), fmt.Sprintf("it must be 0 to %d", maxPool))
	}
	kinds := map[Pool]bool{}
	if c.Pool > 0 {
		kinds[Pool{}.kind()] = true
	}
	for i, p := range c.Pools {
		key := func(field string) string { return fmt.Sprintf("pools[%d].%s", i, field) }
		kind := p.kind()
		asked := sandbox.CreateParams{
			Image: p.Image, Runtime: p.Runtime, VCPUs: p.VCPUs, MemoryMB: p.Memory.MiB(), DiskMB: p.Disk.MiB(),
		}
		switch err := asked.Validate(); {
		case err != nil:
			return cay.Errorf(cay.Invalid, "pools[%d]: %w", i, err)
		case p.Size < 1 || p.Size > maxPool:
			return wrong(key("size"), strconv.Itoa(p.Size), fmt.Sprintf("it must be 1 to %d", maxPool))
		case kind.VCPUs > c.Limits.VCPUs:
			return wrong(key("vcpus"), fmt.Sprint(kind.VCPUs), fmt.Sprintf("limits.vcpus is %g", c.Limits.VCPUs))
		case kind.Memory > c.Limits.Memory:
			return wrong(key("memory"), kind.Memory.String(), fmt.Sprintf("limits.memory is %s", c.Limits.Memory))
		case kind.Disk > c.Limits.Disk:
			return wrong(key("disk"), kind.Disk.String(), fmt.Sprintf("limits.disk is %s", c.Limits.Disk))
		case kinds[kind]:
			return cay.Errorf(cay.Invalid, "pools[%d] is of the same kind as another pool", i).WithHint("make that one larger")
		}
		kinds[kind] = true
	}
	return nil
}

// kind returns the pool with defaults filled in, and without its size.
func (p Pool) kind() Pool {
	all := sandbox.CreateParams{VCPUs: p.VCPUs, MemoryMB: p.Memory.MiB(), DiskMB: p.Disk.MiB()}.WithDefaults()
	return Pool{Image: p.Image, Runtime: p.Runtime, VCPUs: all.VCPUs, Memory: Size(all.MemoryMB) * MiB, Disk: Size(all.DiskMB) * MiB}
}

func (c *Config) validateListen() error {
	host, port, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return wrong("listen", c.Listen, "it must be host:port, as in 127.0.0.1:7070")
	}
	if _, err := net.LookupPort("tcp", port); err != nil {
		return wrong("listen", c.Listen, "its port must be 0 to 65535")
	}
	if (c.TLSCert == "") != (c.TLSKey == "") {
		return cay.Errorf(cay.Invalid, "tls_cert is %q and tls_key is %q; set both or neither", c.TLSCert, c.TLSKey)
	}
	if c.TLSCert == "" && !c.Insecure && !IsLoopback(host) {
		return cay.Errorf(cay.Invalid, "listen is %q: other hosts could reach it, and tokens would cross the network readable", c.Listen).
			WithHint("set tls_cert and tls_key, or insecure if a proxy in front ends TLS")
	}
	return nil
}

func (c *Config) validateNumbers() error {
	for _, n := range []struct {
		key     string
		value   float64
		text    string
		atLeast float64
		bound   string
	}{
		{"quota.sandboxes", float64(c.Quota.Sandboxes), fmt.Sprint(c.Quota.Sandboxes), 0, "0"},
		{"quota.vcpus", c.Quota.VCPUs, fmt.Sprint(c.Quota.VCPUs), 0, "0"},
		{"quota.memory", float64(c.Quota.Memory), c.Quota.Memory.String(), 0, "0"},
		{"quota.disk", float64(c.Quota.Disk), c.Quota.Disk.String(), 0, "0"},
		{"quota.creates_per_minute", float64(c.Quota.CreatesPerMinute), fmt.Sprint(c.Quota.CreatesPerMinute), 0, "0"},
		{"quota.snapshots", float64(c.Quota.Snapshots), c.Quota.Snapshots.String(), 0, "0"},
		{"quota.images", float64(c.Quota.Images), c.Quota.Images.String(), 0, "0"},
		{"quota.image_downloads", float64(c.Quota.ImageDownloads), c.Quota.ImageDownloads.String(), 0, "0"},
		{"disk_reserve", float64(c.DiskReserve), c.DiskReserve.String(), 0, "0"},
		{"snapshot_expiration", float64(c.SnapshotExpiration), c.SnapshotExpiration.String(), float64(time.Minute), "1m"},
		{"workflow_retention", float64(c.WorkflowRetention), c.WorkflowRetention.String(), 0, "0"},
		{"vercel_header_delay", float64(c.VercelHeaderDelay), c.VercelHeaderDelay.String(), float64(time.Millisecond), "1ms"},
		{"gateway_retention", float64(c.GatewayRetention), c.GatewayRetention.String(), 0, "0"},
		{"gateway_max_body", float64(c.GatewayMaxBody), c.GatewayMaxBody.String(), 1024, "1KiB"},
		{"gateway_bodies", float64(c.GatewayBodies), c.GatewayBodies.String(), float64(2 * c.GatewayMaxBody), "twice gateway_max_body"},
		{"limits.timeout", float64(c.Limits.Timeout), c.Limits.Timeout.String(), float64(time.Second), "1s"},
		{"limits.vcpus", c.Limits.VCPUs, fmt.Sprint(c.Limits.VCPUs), 0.1, "0.1"},
		{"limits.memory", float64(c.Limits.Memory), c.Limits.Memory.String(), float64(128 * MiB), "128MiB"},
		{"limits.disk", float64(c.Limits.Disk), c.Limits.Disk.String(), float64(16 * MiB), "16MiB"},
		{"limits.snapshot", float64(c.Limits.Snapshot), c.Limits.Snapshot.String(), float64(MiB), "1MiB"},
		{"limits.starts", float64(c.Limits.Starts), fmt.Sprint(c.Limits.Starts), 1, "1"},
		{"limits.connections", float64(c.Limits.Connections), fmt.Sprint(c.Limits.Connections), 1, "1"},
		{"limits.connection_rate", float64(c.Limits.ConnectionRate), fmt.Sprint(c.Limits.ConnectionRate), 1, "1"},
		{"limits.bandwidth", float64(c.Limits.Bandwidth), c.Limits.Bandwidth.String(), 0, "0"},
		{"limits.traffic", float64(c.Limits.Traffic), c.Limits.Traffic.String(), 0, "0"},
	} {
		if math.IsNaN(n.value) || math.IsInf(n.value, 0) || n.value < n.atLeast {
			return wrong(n.key, n.text, "it must be at least "+n.bound)
		}
	}
	return nil
}

func wrong(key, value, want string) error {
	return cay.Errorf(cay.Invalid, "%s is %q; %s", key, value, want)
}

// IsLoopback reports whether a host, without a port, can be reached from this machine
// only.
func IsLoopback(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.Unmap().IsLoopback()
}

// validServer accepts an address with or without a port.
func validServer(s string) bool {
	if _, err := netip.ParseAddr(s); err == nil {
		return true
	}
	addr, err := netip.ParseAddrPort(s)
	return err == nil && addr.Port() != 0
}

// validHost accepts an IP address, or the labels of a host name.
func validHost(host string) bool {
	if _, err := netip.ParseAddr(host); err == nil {
		return true
	}
	if host == "" || len(host) > 253 {
		return false
	}
	for label := range strings.SplitSeq(host, ".") {
		if label == "" || len(label) > 63 {
			return false
		}
		for _, r := range label {
			if !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_') {
				return false
			}
		}
	}
	return true
}
