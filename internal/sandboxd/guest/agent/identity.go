package agent

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd/guest"
)

// maxIdentityFile bounds the size of the files that state a machine's identity.
const maxIdentityFile = 1 << 20

// identity is the identity of the machine, and the files that state it.
//
// In files that users edit, too, only the lines that the agent wrote may change.
// guest.IdentityFile records these lines. If it exists, the machine started from saved
// files; without it the files are the image's, and may be overwritten as a whole.
type identity struct {
	files   systemFiles
	setName func(hostname string) error // nil: the machine's name stays

	mu  sync.Mutex // held while it changes
	now atomic.Pointer[self]
}

// self is the state that an identity request changes. It is replaced, never changed.
type self struct {
	guest.Identity
	token         [sha256.Size]byte
	user, workDir string                // defaults
	request       guest.IdentityRequest // that made it; zero: the start
	problem       error
	// files is the identity that the files state: Identity, or, if some files could not
	// be written, the identity when all files could last be written. Zero: unknown.
	files guest.Identity
}

// settle records whether the files could be written.
func (s *self) settle(who guest.Identity, problem error) {
	if s.Identity, s.problem = who, problem; problem == nil {
		s.files = who
	}
}

func (s *Server) self() *self { return s.identity.now.Load() }

// Boot writes the files that state the identity of a starting machine, and sets its name.
// It is called once, before Serve. Failures appear in the health that the daemon asks
// for. The caller leaves who.BootID empty.
func (s *Server) Boot(who guest.Identity) {
	s.identity.mu.Lock()
	defer s.identity.mu.Unlock()
	next := *s.self()
	who.BootID = next.BootID
	before, known := s.identity.recorded()
	next.files = before
	next.settle(s.identity.become(before, known, who))
	name := next.Hostname
	if known && sameSandbox(before, who) {
		name = s.identity.editedName(before.Hostname, name)
	}
	next.problem = errors.Join(next.problem, s.identity.rename(name))
	s.identity.now.Store(&next)
}

// handleIdentity answers guest.Client.Identify.
func (s *Server) handleIdentity(w http.ResponseWriter, r *http.Request) error {
	var req guest.IdentityRequest
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 64<<10)).Decode(&req); err != nil {
		return cay.Errorf(cay.Invalid, "identity: %w", err)
	}
	if err := req.Check(); err != nil {
		return err
	}
	token, err := guest.ParseTokenHash(req.TokenSHA256)
	if err != nil {
		return err
	}
	s.identity.mu.Lock()
	defer s.identity.mu.Unlock()
	now := s.self()
	if !now.admits(r) { // any more: another request was first
		return errWrongToken
	}
	if now.request != req || now.problem != nil {
		now = s.identify(now, req, token)
	}
	s.unquiesce()
	return writeJSON(w, guest.Identified{Identity: now.Identity, Problem: text(now.problem)})
}

// identify applies a request. The caller holds identity.mu.
func (s *Server) identify(before *self, req guest.IdentityRequest, token [sha256.Size]byte) *self {
	next := *before
	next.token, next.request, next.problem = token, req, nil
	set := func(v *string, to string) {
		if to != "" {
			*v = to
		}
	}
	set(&next.user, req.User)
	set(&next.workDir, req.WorkDir)
	who := guest.Identity{Sandbox: req.Sandbox, BootID: rand.Text(), Hostname: req.Hostname, MachineID: req.MachineID, Nameserver: before.Nameserver}
	if req == before.request { // a failed request is repeated
		who = before.Identity
	}
	if before.Sandbox == "" { // commands from before the machine had a sandbox are shown to nobody
		s.table.forget()
	}
	// The token changes first: files may take their time.
	switched := next
	s.identity.now.Store(&switched)
	next.settle(s.identity.become(before.files, before.files.Hostname != "", who))
	next.problem = errors.Join(next.problem, s.identity.rename(req.Hostname))
	if next.user != before.user || next.workDir != before.workDir {
		next.problem = errors.Join(next.problem, s.MakeWorkDir())
	}
	s.identity.now.Store(&next)
	return &next
}

// admits reports whether a request carries the token.
func (s *self) admits(r *http.Request) bool {
	token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	sum := sha256.Sum256([]byte(token))
	return subtle.ConstantTimeCompare(sum[:], s.token[:]) == 1
}

var errWrongToken = cay.Errorf(cay.Unauthenticated, "wrong token")

// become writes the identity next to the files, and returns it with its machine id. If
// known, the files have the identity before; otherwise they are an image's files. become
// tries all files, even if some fail; the record comes last.
func (d *identity) become(before guest.Identity, known bool, next guest.Identity) (guest.Identity, error) {
	var problems []error
	write := func(name, content string) {
		if err := d.files.write(name, []byte(content), true); err != nil {
			problems = append(problems, fmt.Errorf("write %s: %w", name, err))
		}
	}
	edit := func(name, from, to string) {
		if err := d.files.edit(name, maxIdentityFile, func(b []byte) []byte { return replaceLine(b, from, to) }); err != nil {
			problems = append(problems, fmt.Errorf("change %s: %w", name, err))
		}
	}
	same := known && sameSandbox(before, next)
	if next.MachineID == "" && same {
		next.MachineID = before.MachineID
	}
	if !guest.ValidMachineID(next.MachineID) {
		id := make([]byte, 16)
		rand.Read(id)
		next.MachineID = hex.EncodeToString(id)
	}
	if !known || next.MachineID != before.MachineID {
		write("/etc/machine-id", next.MachineID+"\n")
	}
	switch {
	case !known:
		write("/etc/hostname", next.Hostname+"\n")
		write("/etc/hosts", "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost\n"+hostLine(next.Hostname)+"\n")
	case !same:
		write("/etc/hostname", next.Hostname+"\n")
		edit("/etc/hosts", hostLine(before.Hostname), hostLine(next.Hostname))
	case next.Hostname != before.Hostname:
		edit("/etc/hostname", before.Hostname, next.Hostname)
		edit("/etc/hosts", hostLine(before.Hostname), hostLine(next.Hostname))
	}
	switch {
	case next.Nameserver == "":
	case !known || before.Nameserver == "":
		write("/etc/resolv.conf", serverLine(next.Nameserver)+"\n")
	case next.Nameserver != before.Nameserver:
		edit("/etc/resolv.conf", serverLine(before.Nameserver), serverLine(next.Nameserver))
	}
	record, err := json.Marshal(next)
	if err == nil {
		err = d.files.write(guest.IdentityFile, append(record, '\n'), true)
	}
	if err != nil {
		problems = append(problems, fmt.Errorf("write %s: %w", guest.IdentityFile, err))
	}
	return next, errors.Join(problems...)
}

// sameSandbox reports whether both machines belong to the same sandbox.
func sameSandbox(a, b guest.Identity) bool { return a.Sandbox != "" && a.Sandbox == b.Sandbox }

// hostLine returns the agent's line of /etc/hosts: sudo looks up its own host at every
// call.
func hostLine(hostname string) string { return "127.0.1.1\t" + hostname }

// serverLine is our line of /etc/resolv.conf.
func serverLine(nameserver string) string { return "nameserver " + nameserver }

// replaceLine replaces the lines that are from.
func replaceLine(content []byte, from, to string) []byte {
	if !bytes.Contains(content, []byte(from)) {
		return content
	}
	out := make([]byte, 0, len(content)+len(to))
	for line := range bytes.Lines(content) {
		if rest, ok := bytes.CutPrefix(line, []byte(from)); ok && (len(rest) == 0 || rest[0] == '\n') {
			out = append(append(out, to...), rest...)
		} else {
			out = append(out, line...)
		}
	}
	return out
}

// recorded returns the identity that the files state, unless they are an image's files.
func (d *identity) recorded() (who guest.Identity, known bool) {
	data, err := d.files.read(guest.IdentityFile, maxIdentityFile, 0)
	// Root in the guest can have written anything into the file. The content is only
	// compared with lines, and shown.
	if err != nil || json.Unmarshal(data, &who) != nil || who.Hostname == "" {
		return guest.Identity{}, false
	}
	return who, true
}

// editedName returns the name that a user has written into /etc/hostname in place of
// ours, because any machine would take it at its next start; otherwise name.
func (d *identity) editedName(ours, name string) string {
	data, err := d.files.read("/etc/hostname", maxIdentityFile, 0)
	edited := strings.TrimSpace(string(data))
	if err != nil || edited == ours || edited == "" || len(edited) > 64 {
		return name
	}
	for _, c := range edited {
		if c <= ' ' || c > '~' {
			return name
		}
	}
	return edited
}

// rename sets the machine's name.
func (d *identity) rename(hostname string) error {
	if d.setName == nil {
		return nil
	}
	if err := d.setName(hostname); err != nil {
		return fmt.Errorf("set host name: %w", err)
	}
	return nil
}

// text returns an error on one line, "" for nil.
func text(err error) string {
	if err == nil {
		return ""
	}
	return strings.ReplaceAll(err.Error(), "\n", "; ")
}
