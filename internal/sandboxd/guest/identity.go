package guest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"path"
	"strings"

	"github.com/cayhq/cay"
)

// IdentityFile tells the programs of a guest the identity of their machine: an Identity
// as JSON. The agent replaces it atomically whenever the machine starts, and whenever the
// machine gets a new identity: as the copy of a running machine, or when a machine that
// was started in advance gets its sandbox. The kernel's random numbers differ in every
// copy; the numbers of a program's own generator do not. So a program should seed its
// generator again when this file was replaced, as its inode or BootID shows. A program
// that wants to wait for a replacement watches the directory.
//
// A machine that starts from saved files learns from this file which lines of those files
// the agent wrote, and for which sandbox. Without it, the machine counts as new.
const IdentityFile = "/etc/cay/identity.json"

// Identity identifies a machine.
type Identity struct {
	// Sandbox is the id of the machine's sandbox. Empty while the machine has no sandbox.
	Sandbox string `json:"sandbox,omitempty"`
	// BootID is random, and changes whenever the machine starts or gets a new identity.
	BootID     string `json:"boot_id"`
	Hostname   string `json:"hostname"`
	MachineID  string `json:"machine_id"`           // of /etc/machine-id: 32 hex digits
	Nameserver string `json:"nameserver,omitempty"` // in /etc/resolv.conf; empty: it was left alone
}

// IdentityRequest says which machine a guest is to become.
type IdentityRequest struct {
	Sandbox  string `json:"sandbox"`  // 1 to 128 characters
	Hostname string `json:"hostname"` // 1 to 63 characters
	// MachineID is 32 hex digits. Empty: the current machine id if the machine belongs to
	// the same sandbox already, otherwise a random id.
	MachineID string `json:"machine_id,omitempty"`
	// TokenSHA256 is HashToken of the token requests carry from now on.
	TokenSHA256 string `json:"token_sha256"`
	// User and WorkDir are the new defaults; see Config. Empty: the current defaults
	// stay.
	User    string `json:"user,omitempty"`
	WorkDir string `json:"workdir,omitempty"`
	// MemoryBytes is how much memory the machine may use, which may be less than its
	// kernel was told at its start. 0: the amount that the kernel was told.
	MemoryBytes int64 `json:"memory_bytes,omitempty"`
}

// Check reports what is wrong with the request. Errors: invalid.
func (r IdentityRequest) Check() error {
	if err := checkName("sandbox", r.Sandbox, 128); err != nil {
		return err
	}
	if err := checkName("hostname", r.Hostname, 63); err != nil {
		return err
	}
	if r.MachineID != "" && !ValidMachineID(r.MachineID) {
		return cay.Errorf(cay.Invalid, "machine_id %q is not 32 hex digits", r.MachineID)
	}
	if r.WorkDir != "" && !path.IsAbs(r.WorkDir) {
		return cay.Errorf(cay.Invalid, "workdir %q is not absolute", r.WorkDir)
	}
	if r.MemoryBytes < 0 {
		return cay.Errorf(cay.Invalid, "memory_bytes %d is negative", r.MemoryBytes)
	}
	_, err := ParseTokenHash(r.TokenSHA256)
	return err
}

func checkName(what, s string, longest int) error {
	if s == "" || len(s) > longest || strings.ContainsAny(s, " \t\r\n\x00") {
		return cay.Errorf(cay.Invalid, "%s %q is not 1 to %d characters without white space", what, s, longest)
	}
	return nil
}

// ValidMachineID reports whether s can be in /etc/machine-id.
func ValidMachineID(s string) bool {
	return len(s) == 32 && strings.Trim(s, "0123456789abcdef") == ""
}

// ParseTokenHash parses a result of HashToken. Errors: invalid.
func ParseTokenHash(s string) (sum [sha256.Size]byte, err error) {
	b, err := hex.DecodeString(s)
	if err != nil || len(b) != sha256.Size {
		return sum, cay.Errorf(cay.Invalid, "token_sha256 %q is not a SHA-256 in hex", s)
	}
	return [sha256.Size]byte(b), nil
}

// Identified is the result of an IdentityRequest.
type Identified struct {
	Identity
	// Problem says which of the machine's files could not be changed, or that its name
	// could not, for people. The new token is valid nevertheless.
	Problem string `json:"problem,omitempty"`
}

// Identify gives the guest a new identity: the guest gets the name, the machine id and
// the defaults of req. From that moment it accepts token, and no longer the token before.
// Running commands go on, and their output stays readable. A quiesced guest starts
// commands again.
//
// The agent changes the files /etc/hostname and /etc/machine-id, and in /etc/hosts the
// line that it wrote itself, if that line is still there. IdentityFile is the last to
// change.
//
// Repeating the call changes nothing. If Identify fails, it is unknown which token the
// guest accepts, so the caller repeats it with the same arguments; another Client will
// do, if it has either token. After success the Client uses token.
func (c *Client) Identify(ctx context.Context, req IdentityRequest, token string) (Identified, error) {
	req.TokenSHA256 = HashToken(token)
	if err := req.Check(); err != nil {
		return Identified{}, err
	}
	before, after := *c.token.Load(), bearer(token)
	var res Identified
	var err error
	// An earlier answer may have been lost, so that the new token is valid already. If
	// the guest accepts neither token, the first is tried again, because the first
	// request may have been lost on its way.
	for _, shown := range []string{before, after, before} {
		err = c.call(ctx, request{method: http.MethodPut, path: "/identity", body: encode(req), token: shown}, &res)
		if err == nil {
			c.token.Store(&after)
			return res.printable(), nil
		}
		if ctx.Err() != nil || cay.CodeOf(err) != cay.Unavailable || shown == after && !errors.Is(err, errWrongToken) {
			break
		}
	}
	return Identified{}, err
}

func (r Identified) printable() Identified {
	r.Problem = printable(r.Problem)
	for _, s := range []*string{&r.Sandbox, &r.BootID, &r.Hostname, &r.MachineID, &r.Nameserver} {
		*s = printable(*s)
	}
	return r
}
