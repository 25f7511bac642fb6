package agent

import (
	"bytes"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd/guest"
)

// maxCertificates is how many certificates a guest is given at most.
const maxCertificates = 4096

// bundleFiles are where distributions keep the certificates they trust. Several
// may be names of one file. The first is made where none is there.
var bundleFiles = []string{
	"/etc/ssl/certs/ca-certificates.crt",                // Debian, Ubuntu, Arch, Gentoo
	"/etc/pki/tls/certs/ca-bundle.crt",                  // Fedora
	"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", // RHEL
	"/etc/ssl/ca-bundle.pem",                            // openSUSE
	"/etc/ssl/cert.pem",                                 // Alpine
}

// anchorDirs are where distributions look for certificates somebody added, when
// they make their bundles anew. The first is made where it is missing.
var anchorDirs = []string{
	"/usr/local/share/ca-certificates",
	"/etc/pki/ca-trust/source/anchors",
}

// Lines around what we add to a bundle, so that it can be replaced.
const (
	sectionBegin = "# cay: begin\n"
	sectionEnd   = "# cay: end\n"
)

// trustStore changes which certificates the programs of a machine trust. It
// works on whatever files an image has: nothing there makes it wait, and it
// writes nowhere but below /etc, /usr and /var, whatever links point to. A
// machine may wait for it to start, and system calls are what that costs, so it
// makes few.
type trustStore struct {
	root string // "" for the real one

	mu    sync.Mutex // held for as long as files change
	state atomic.Pointer[guest.Trust]
}

// Trust makes programs trust certificates; see guest.Client.Trust. It reports
// what failed in the result, because that must not keep a machine from starting.
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

// trusted returns what was installed last.
func (t *trustStore) trusted() guest.Trust {
	if t := t.state.Load(); t != nil {
		return *t
	}
	return guest.Trust{}
}

// bundleFile is a bundle of the image.
type bundleFile struct {
	name    string // as programs call it
	real    string // where it is
	content []byte // as it is now
	base    []byte // content without what we added
}

// install does the work. The caller holds mu.
func (t *trustStore) install(req guest.TrustRequest) (res guest.Trust) {
	var problems []error
	defer func() {
		if err := errors.Join(problems...); err != nil {
			res.Problem = strings.ReplaceAll(err.Error(), "\n", "; ")
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
	if err == nil {
		err = t.write(real, extra, true)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", guest.ExtraFile, err)
	}
	// Not located: it is a link of ours.
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
			err = t.write(real, withSection(base, extra), true)
		}
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", guest.BundleFile, err)
	}
	return nil
}

// splitCertificates returns the certificates of a PEM text, each as a PEM text.
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

// bundles returns the bundles there are, each file once, with room for so many
// bytes after the content.
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
		content, err := t.read(real, room)
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

// withoutSection returns a bundle without what we added to it. A line of ours
// that has lost its other is left where it is.
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

// withSection adds to a bundle, behind it in memory if there is room.
func withSection(base, extra []byte) []byte {
	all := base
	if len(all) > 0 && all[len(all)-1] != '\n' {
		all = append(all, '\n')
	}
	all = append(all, sectionBegin...)
	all = append(all, extra...)
	return append(all, sectionEnd...)
}

// writeAnchors makes the files of ours in a directory of single certificates
// those given. If the directory is not there it is made, or nothing is done.
func (t *trustStore) writeAnchors(dir string, certs [][]byte, make bool) error {
	real, err := t.locate(dir)
	if err != nil {
		return err
	}
	file := func(n int) string { return real + "/cay-" + strconv.Itoa(n+1) + ".crt" }
	for i, cert := range certs {
		err := t.write(file(i), cert, make)
		if err == unix.ENOENT && !make {
			return nil
		}
		if err != nil {
			return err
		}
	}
	// Of a set that was larger; numbers have no gaps.
	for n := len(certs); n < maxCertificates; n++ {
		if err := unix.Unlink(t.root + file(n)); err == unix.ENOENT {
			break
		} else if err != nil {
			return err
		}
	}
	return nil
}

// maxBundleLinks is how many links the path of a bundle may lead through, as on
// Linux.
const maxBundleLinks = 40

// locate returns where a path leads, all links followed within the root. What
// does not exist is taken as it is. It fails for what leads out of the
// directories that hold a system's own files.
func (t *trustStore) locate(name string) (string, error) {
	at, rest := "", strings.Split(name, "/")
	missing := false
	for links := 0; len(rest) > 0; {
		elem := rest[0]
		rest = rest[1:]
		switch elem {
		case "", ".":
			continue
		case "..":
			at = strings.TrimSuffix(path.Dir("/"+at), "/")
			continue
		}
		if missing { // and all below it
			at += "/" + elem
			continue
		}
		target, err := readlinkat(unix.AT_FDCWD, t.root+at+"/"+elem)
		switch err {
		case nil:
		case unix.EINVAL, unix.ENOENT: // no link
			missing = err == unix.ENOENT
			at += "/" + elem
			continue
		default:
			return "", fmt.Errorf("%s: %w", name, err)
		}
		if links++; links > maxBundleLinks {
			return "", fmt.Errorf("%s: %w", name, syscall.ELOOP)
		}
		if path.IsAbs(target) {
			at = ""
		}
		rest = append(strings.Split(target, "/"), rest...)
	}
	for _, dir := range []string{"/etc/", "/usr/", "/var/"} {
		if strings.HasPrefix(at, dir) {
			return at, nil
		}
	}
	return "", fmt.Errorf("%s: it leads to %q, which is left alone", name, clip(at+"/"))
}

// read reads a regular file, into memory with room behind it.
func (t *trustStore) read(real string, room int) ([]byte, error) {
	f, err := openRegular(t.root + real)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, reason(err)
	}
	if info.Size() > guest.MaxTrust {
		return nil, syscall.EFBIG
	}
	data := make([]byte, info.Size(), int(info.Size())+room)
	n, err := io.ReadFull(f, data)
	if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
		return nil, reason(err)
	}
	return data[:n], nil
}

// write makes content that of a file, at once and whatever is in its place, if
// it is not a directory. It makes the directory, too, if it may.
func (t *trustStore) write(real string, content []byte, mkdir bool) error {
	return t.replace(real, mkdir, func(tmp string) error {
		fd, err := ignoringEINTR(func() (int, error) {
			return unix.Open(tmp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o644)
		})
		if err != nil {
			return err
		}
		for rest := content; len(rest) > 0 && err == nil; {
			var n int
			n, err = ignoringEINTR(func() (int, error) { return unix.Write(fd, rest) })
			rest = rest[max(n, 0):]
		}
		return errors.Join(err, unix.Close(fd))
	})
}

// link makes a symbolic link.
func (t *trustStore) link(real, target string) error {
	return t.replace(real, true, func(tmp string) error { return unix.Symlink(target, tmp) })
}

// replace puts what create makes in the place of a file.
func (t *trustStore) replace(real string, mkdir bool, create func(tmp string) error) error {
	name := t.root + real
	tmp := path.Dir(name) + "/.cay-" + path.Base(name)
	err := create(tmp)
	switch {
	case err == unix.ENOENT && mkdir:
		if err = os.MkdirAll(path.Dir(name), 0o755); err == nil {
			err = create(tmp)
		}
	case err == unix.EEXIST: // left by one that was cut short
		if err = os.RemoveAll(tmp); err == nil {
			err = create(tmp)
		}
	}
	if err == nil {
		err = unix.Rename(tmp, name)
	}
	if err != nil && err != unix.ENOENT {
		_ = os.RemoveAll(tmp) // the first error is what counts
	}
	return reason(err)
}

// reason is err without the path Go adds: callers say it in the guest's terms.
func reason(err error) error {
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return errno
	}
	return err
}
