package trust

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay"
)

const (
	maxBytes        = 8 << 20 // of all files read for a bundle
	maxCertificates = 4096    // in a bundle, without repetitions
)

// sources are the places certificates are read from.
type sources struct {
	named   string   // SSL_CERT_FILE: this file and no other, if set
	files   []string // the first that is there is the bundle
	dirs    []string // all of them add to it
	shipped []string // files and directories with the authorities that a distribution ships
}

func hostSources() sources {
	src := sources{
		named: os.Getenv("SSL_CERT_FILE"),
		files: []string{
			"/etc/ssl/certs/ca-certificates.crt",                // Debian, Ubuntu, Gentoo, Arch
			"/etc/pki/tls/certs/ca-bundle.crt",                  // Fedora
			"/etc/ssl/ca-bundle.pem",                            // openSUSE
			"/etc/pki/tls/cacert.pem",                           // OpenELEC
			"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", // RHEL
			"/etc/ssl/cert.pem",                                 // Alpine
		},
		dirs: []string{"/etc/ssl/certs", "/etc/pki/tls/certs"},
		shipped: []string{
			"/usr/share/ca-certificates/mozilla",                            // Debian, Ubuntu, Alpine
			"/usr/share/pki/ca-trust-source/ca-bundle.trust.p11-kit",        // Fedora, RHEL
			"/usr/share/pki/trust/ca-certificates.trust.p11-kit",            // openSUSE
			"/usr/share/ca-certificates/trust-source/mozilla.trust.p11-kit", // Arch
		},
	}
	if dirs := os.Getenv("SSL_CERT_DIR"); dirs != "" {
		src.dirs = filepath.SplitList(dirs)
	}
	return src
}

// certificate is a certificate of a bundle.
type certificate struct {
	*x509.Certificate
	stray bool // not an authority, and not in the bundle's file
}

// reader gathers certificates, each once.
type reader struct {
	certs   []certificate
	seen    map[fingerprint]bool
	left    int64 // bytes that may still be read
	damaged int
	first   error // the error of the first damaged entry, or file
	bundle  os.FileInfo
	inDir   bool // a directory is being read
}

// readBundle reads the files of the bundle.
func (r *reader) readBundle(src sources) error {
	r.left = maxBytes
	files := src.files
	if src.named != "" {
		files = []string{src.named}
	}
	for _, name := range files {
		err := r.readFile(name)
		switch {
		case err == nil:
		case isLimit(err):
			return err
		case src.named != "":
			return cay.Errorf(cay.Invalid, "SSL_CERT_FILE: %w", err).
				WithHint("name a PEM file of certificate authorities, or unset it")
		case errors.Is(err, fs.ErrNotExist):
			continue
		default:
			r.bad(err)
			continue
		}
		break
	}
	r.inDir = true
	for _, dir := range src.dirs {
		if err := r.readDir(dir); err != nil {
			return err
		}
	}
	return nil
}

// readDir reads the files of a directory, if the directory exists. Files in it that are
// no certificates are no error. readDir fails only at a limit.
func (r *reader) readDir(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			r.bad(err)
		}
		return nil
	}
	for _, e := range entries {
		name := filepath.Join(dir, e.Name())
		switch {
		case e.IsDir():
			continue
		case e.Type()&fs.ModeSymlink != 0:
			// The hashed names OpenSSL looks certificates up by.
			if to, err := os.Readlink(name); err == nil && !strings.Contains(to, "/") {
				continue
			}
		case !e.Type().IsRegular():
			continue
		}
		err := r.readFile(name)
		switch {
		case isLimit(err):
			return err
		case err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, errNotRegular):
			r.bad(err)
		}
	}
	return nil
}

// readFile adds the certificates of a PEM file.
func (r *reader) readFile(name string) error {
	data, info, err := readRegular(name, r.left, r.bundle)
	if err != nil {
		return err
	}
	if !r.inDir {
		r.bundle = info
	}
	r.left -= int64(len(data))
	for block := range blocks(data) {
		sum := sha256.Sum256(block.Bytes)
		if r.seen[sum] {
			continue
		}
		r.seen[sum] = true
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			r.bad(fmt.Errorf("%s: %w", name, err))
			continue
		}
		if len(r.certs) == maxCertificates {
			return &limitError{cay.Errorf(cay.Invalid, "%s: this machine trusts more than %d certificates", name, maxCertificates).
				WithHint("set SSL_CERT_FILE and SSL_CERT_DIR for the daemon to a smaller bundle")}
		}
		// Certificates before version 3 cannot say whether they are authorities.
		authority := c.IsCA || c.Version < 3
		r.certs = append(r.certs, certificate{c, r.inDir && !authority})
	}
	return nil
}

func (r *reader) bad(err error) {
	if r.damaged++; r.damaged == 1 {
		r.first = err
	}
}

func (r *reader) warning() string {
	switch r.damaged {
	case 0:
		return ""
	case 1:
		return r.first.Error()
	}
	return fmt.Sprintf("%v, and %d more like it", r.first, r.damaged-1)
}

// blocks yields the certificates of a PEM text. It skips other blocks, and any text
// between blocks.
func blocks(data []byte) func(yield func(*pem.Block) bool) {
	return func(yield func(*pem.Block) bool) {
		for {
			var b *pem.Block
			if b, data = pem.Decode(data); b == nil {
				return
			}
			if b.Type == "CERTIFICATE" && len(b.Headers) == 0 && !yield(b) {
				return
			}
		}
	}
}

// readShipped returns the certificates in the given places. It ignores places that it
// cannot read: their certificates are then given to guests, too.
func readShipped(places []string) map[fingerprint]bool {
	all := make(map[fingerprint]bool)
	left := int64(maxBytes)
	add := func(name string) {
		data, _, err := readRegular(name, left, nil)
		if err != nil {
			return
		}
		left -= int64(len(data))
		for block := range blocks(data) {
			all[sha256.Sum256(block.Bytes)] = true
		}
	}
	for _, place := range places {
		add(place)
		entries, err := os.ReadDir(place)
		if err != nil {
			continue
		}
		for _, e := range entries {
			add(filepath.Join(place, e.Name()))
		}
	}
	return all
}

// limitError is the error for a bundle that is too large.
type limitError struct{ error }

func (e *limitError) Unwrap() error { return e.error }

func isLimit(err error) bool {
	_, ok := errors.AsType[*limitError](err)
	return ok
}

var errNotRegular = errors.New("it is not a regular file")

// readRegular reads a file of at most limit bytes. It returns nothing if the file is the
// one that known describes. It does not block on a pipe.
func readRegular(name string, limit int64, known os.FileInfo) ([]byte, os.FileInfo, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, nil, &fs.PathError{Op: "read", Path: name, Err: errNotRegular}
	}
	if known != nil && os.SameFile(info, known) {
		return nil, info, nil
	}
	if info.Size() > limit {
		return nil, nil, &limitError{cay.Errorf(cay.Invalid, "%s: this machine's certificates have more than %d MiB", name, maxBytes>>20).
			WithHint("set SSL_CERT_FILE and SSL_CERT_DIR for the daemon to a smaller bundle")}
	}
	data := make([]byte, info.Size())
	n, err := io.ReadFull(f, data)
	if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
		return nil, nil, err
	}
	return data[:n], info, nil
}
