package guest

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/netip"
	"path"

	"github.com/cayhq/cay"
)

// Port is the TCP port on which the agent listens in a sandbox, and the port of the
// gateway that the agent dials once when it is ready.
const Port = 1

// ConfigEnv is the environment variable that carries Config to cay-guest.
const ConfigEnv = "CAY_GUEST_CONFIG"

// Config is the configuration of a sandbox's init, given at its start.
type Config struct {
	// Sandbox is the id of the machine's sandbox, or empty. A machine that starts from
	// saved files of the same sandbox keeps its machine id, and users' changes in /etc;
	// see IdentityFile.
	Sandbox     string     `json:"sandbox,omitempty"`
	Hostname    string     `json:"hostname"`            // 1 to 63 characters
	TokenSHA256 string     `json:"token_sha256"`        // HashToken of the token requests carry
	Port        uint16     `json:"port,omitempty"`      // to listen on; 0 means Port
	Gateway     netip.Addr `json:"gateway,omitzero"`    // the only peer; unset: any
	Nameserver  netip.Addr `json:"nameserver,omitzero"` // for /etc/resolv.conf; unset: leave the image's
	User        string     `json:"user,omitempty"`      // default user, a name or uid[:gid]; empty means root
	WorkDir     string     `json:"workdir,omitempty"`   // default working directory, absolute; empty means /
	// Certificates are PEM, of authorities that programs are to trust in addition to the
	// image's authorities; see TrustRequest. At most MaxConfigCertificates bytes.
	Certificates string `json:"certificates,omitempty"`
	// MachineID is 32 hex digits for /etc/machine-id; empty: see IdentityRequest.
	MachineID string `json:"machine_id,omitempty"`
	// Owned are directories to give to the default user: the roots of drives that were
	// never written. Absolute.
	Owned []string `json:"owned,omitempty"`
	// MaxProcesses is RLIMIT_NPROC of commands, for each user but root. 0 means 4096.
	MaxProcesses uint64 `json:"max_processes,omitempty"`
}

// HashToken returns the value of Config.TokenSHA256 for a token.
func HashToken(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

// ParseConfig reads a Config from JSON and fills in its defaults. Errors: invalid.
func ParseConfig(data []byte) (Config, error) {
	var c Config
	if err := json.Unmarshal(data, &c); err != nil {
		return Config{}, cay.Errorf(cay.Invalid, "guest config: %w", err)
	}
	if _, err := ParseTokenHash(c.TokenSHA256); err != nil {
		return Config{}, fmt.Errorf("guest config: %w", err)
	}
	if err := checkName("hostname", c.Hostname, 63); err != nil {
		return Config{}, fmt.Errorf("guest config: %w", err)
	}
	if c.MachineID != "" && !ValidMachineID(c.MachineID) {
		return Config{}, cay.Errorf(cay.Invalid, "guest config: machine_id %q is not 32 hex digits", c.MachineID)
	}
	for _, dir := range c.Owned {
		if !path.IsAbs(dir) {
			return Config{}, cay.Errorf(cay.Invalid, "guest config: owned directory %q is not absolute", dir)
		}
	}
	if c.WorkDir == "" {
		c.WorkDir = "/"
	}
	if !path.IsAbs(c.WorkDir) {
		return Config{}, cay.Errorf(cay.Invalid, "guest config: workdir %q is not absolute", c.WorkDir)
	}
	if len(c.Certificates) > MaxConfigCertificates {
		return Config{}, cay.Errorf(cay.Invalid, "guest config: certificates have %d bytes, more than %d", len(c.Certificates), MaxConfigCertificates)
	}
	if c.Port == 0 {
		c.Port = Port
	}
	if c.MaxProcesses == 0 {
		c.MaxProcesses = 4096
	}
	return c, nil
}
