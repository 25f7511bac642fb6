package agent

import (
	"bytes"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"path"
	"strconv"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd/guest"
)

// maxCertificates is how many certificates a guest is given at most.
const maxCertificates = 4096

// bundleFiles are the paths at which distributions keep the certificates they trust.
// Several paths may lead to one file. If no path exists, the agent makes the first.
var bundleFiles = []string{
	"/etc/ssl/certs/ca-certificates.crt",                // Debian, Ubuntu, Arch, Gentoo
	"/etc/pki/tls/certs/ca-bundle.crt",                  // Fedora
	"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", // RHEL
	"/etc/ssl/ca-bundle.pem",                            // openSUSE
	"/etc/ssl/cert.pem",                                 // Alpine
}

// anchorDirs are where distributions look for added certificates when they rebuild their
// bundles. If no directory exists, the agent makes the first.
var anchorDirs = []string{
	"/usr/local/share/ca-certificates",
	"/etc/pki/ca-trust/source/anchors",
}

// Lines around the section that the agent adds to a bundle, so that it can be replaced.
const (
	sectionBegin = "# cay: begin\n"
	sectionEnd   = "# cay: end\n"
)

// trustStore changes the certificates that the programs of a machine trust. It works with
// the files of any image. A machine may wait for it to start, and system calls are slow
// in a sandbox, so it makes few.
type trustStore struct {
	systemFiles

	mu    sync.Mutex // held for as long as files change
	state atomic.Pointer[guest.Trust]
}

// Trust makes programs trust certificates; see guest.Client.Trust. It reports failures in
// the result, because they must not keep a machine from starting.
func (s *Server) Trust(req guest.TrustRequest) guest.Trust {
	s.trust.mu.Lock()
	defer s.trust.mu.Unlock()
	t := s.trust.install(req)
	s.trust.state.Store(&t)
	return t
}

func (s *Server) handleTrust(w http.ResponseWriter, r *http.Request) error {
	var req guest.TrustRequest
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 2*guest.MaxTrust)).Decode(&req); err != nil {
		return cay.Errorf(cay.Invalid, "certificates: %w", err)
	}
	return writeJSON(w, s.Trust(req))
}

// trusted returns the certificates installed last.
func (t *trustStore) trusted() guest.Trust {
	if t := t.state.Load(); t != nil {
		return *t
	}
	return guest.Trust{}
}

// bundleFile is a bundle of the image.
type bundleFile struct {
	name    string // as programs call it
	real    string // path with links resolved
	content []byte // its present content
	base    []byte // content without our section
}

// install does the work. The caller holds mu.
func (t *trustStore) install(req guest.TrustRequest) (res guest.Trust) {
	var problems []error
	defer func() {
		if err := errors.Join(problems...); err != nil {
			res.Problem = text(err)
		}
	}()
	certs, err := splitCertificates(req.Certificates)
	if err != nil {
		problems = append(problems, err)
		return guest.Trust{}
	}
	extra := bytes.Join(certs, nil)

	bundles, err := t.bundles(len(sectionBegin) + len(extra) + len(sectionEnd) + 1)
	if err != nil {
		problems = append(problems, err)
	}
	if len(bundles) == 0 {
		if req.Public == "" {
			return guest.Trust{Bare: true}
		}
		real, err := t.locate(bundleFiles[0])
		if err != nil {
			problems = append(problems, err)
		} else {
			bundles = []bundleFile{{name: bundleFiles[0], real: real, base: []byte(req.Public)}}
		}
	}
	var link string // a bundle that has it all
	for _, b := range bundles {
		if all := withSection(b.base, extra); !bytes.Equal(all, b.content) {
			if err := t.write(b.real, all, true); err != nil {
				problems = append(problems, fmt.Errorf("add to %s: %w", b.name, err))
				continue
			}
		}
		if link == "" {
			link = b.name
		}
	}
	if err := t.writeOwn(bundles, link, req.Public, extra); err != nil {
		problems = append(problems, err)
		return guest.Trust{}
	}
	for i, dir := range anchorDirs {
		if err := t.writeAnchors(dir, certs, i == 0); err != nil {
			problems = append(problems, fmt.Errorf("add to %s: %w", dir, err))
		}
	}
	return guest.Trust{ID: guest.TrustID([]byte(req.Certificates))}
}

// writeOwn writes the two files that programs are pointed to.
func (t *trustStore) writeOwn(bundles []bundleFile, link, public string, extra []byte) error {
	real, err := t.locate(guest.ExtraFile)
	if err == nil && !t.has(real, extra) {
		err = t.write(real, extra, true)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", guest.ExtraFile, err)
	}
	// The file itself is not resolved, because it is a link made by the agent.
	dir, err := t.locate(path.Dir(guest.BundleFile))
	if err == nil {
		real = dir + "/" + path.Base(guest.BundleFile)
		if link != "" {
			err = t.link(real, link)
		} else {
			base := []byte(public)
			if len(bundles) > 0 {
				base = bundles[0].base
			}
			if all := withSection(base, extra); !t.has(real, all) {
				err = t.write(real, all, true)
			}
		}
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", guest.BundleFile, err)
	}
	return nil
}

// splitCertificates returns each certificate of a PEM text, as a PEM text.
func splitCertificates(text string) ([][]byte, error) {
	if len(text) > guest.MaxTrust {
		return nil, fmt.Errorf("the certificates have %d bytes; at most %d are taken", len(text), guest.MaxTrust)
	}
	var all [][]byte
	for rest := []byte(text); ; {
		var b *pem.Block
		if b, rest = pem.Decode(rest); b == nil {
			break
		}
		if b.Type == "CERTIFICATE" {
			all = append(all, pem.EncodeToMemory(&pem.Block{Type: b.Type, Bytes: b.Bytes}))
		}
	}
	if len(all) == 0 || len(all) > maxCertificates {
		return nil, fmt.Errorf("%d certificates were given; it takes 1 to %d", len(all), maxCertificates)
	}
	return all, nil
}

// bundles returns the existing bundles, each file once, with capacity for room more bytes
// after the content.
func (t *trustStore) bundles(room int) (found []bundleFile, err error) {
	var problems []error
	seen := make(map[string]bool)
	for _, name := range bundleFiles {
		real, err := t.locate(name)
		if err != nil {
			problems = append(problems, err)
			continue
		}
		if seen[real] {
			continue
		}
		seen[real] = true
		content, err := t.read(real, guest.MaxTrust, room)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			problems = append(problems, fmt.Errorf("read %s: %w", name, err))
			continue
		}
		base := withoutSection(content)
		if bytes.Contains(base, []byte("-----BEGIN ")) {
			found = append(found, bundleFile{name: name, real: real, content: content, base: base})
		}
	}
	return found, errors.Join(problems...)
}

// withoutSection returns a bundle without the sections that the agent added. A begin or
// end line without its counterpart stays.
func withoutSection(bundle []byte) []byte {
	if !bytes.Contains(bundle, []byte(sectionBegin)) {
		return bundle
	}
	kept := make([]byte, 0, len(bundle))
	var begins []int // of sections in kept
	for line := range bytes.Lines(bundle) {
		switch string(bytes.TrimSuffix(line, []byte("\n"))) + "\n" {
		case sectionBegin:
			begins = append(begins, len(kept))
		case sectionEnd:
			if n := len(begins); n > 0 {
				kept, begins = kept[:begins[n-1]], begins[:n-1]
				continue
			}
		}
		kept = append(kept, line...)
	}
	return kept
}

// withSection returns a bundle with a section, using spare capacity of base if there is
// any.
func withSection(base, extra []byte) []byte {
	all := base
	if len(all) > 0 && all[len(all)-1] != '\n' {
		all = append(all, '\n')
	}
	all = append(all, sectionBegin...)
	all = append(all, extra...)
	return append(all, sectionEnd...)
}

// writeAnchors replaces the agent's files in a directory of single certificates by certs.
// It makes a missing directory if make is set, else it does nothing there.
func (t *trustStore) writeAnchors(dir string, certs [][]byte, make bool) error {
	real, err := t.locate(dir)
	if err != nil {
		return err
	}
	file := func(n int) string { return real + "/cay-" + strconv.Itoa(n+1) + ".crt" }
	for i, cert := range certs {
		if t.has(file(i), cert) {
			continue
		}
		err := t.write(file(i), cert, make)
		if err == unix.ENOENT && !make {
			return nil
		}
		if err != nil {
			return err
		}
	}
	// Files of an earlier, larger set; the numbers have no gaps.
	for n := len(certs); n < maxCertificates; n++ {
		if err := unix.Unlink(t.root + file(n)); err == unix.ENOENT {
			break
		} else if err != nil {
			return err
		}
	}
	return nil
}
