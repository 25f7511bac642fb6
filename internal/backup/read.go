package backup

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/cayhq/cay"
)

// Archive is a backup whose sums are right.
type Archive struct {
	Header   Header
	Manifest Manifest
	Size     int64 // of the file

	file *os.File
	keys sealedKeys // empty without a passphrase
}

// Open reads a whole backup and checks it. passphrase opens the keys; empty leaves them
// closed. The caller closes the Archive. Errors: invalid (no backup, cut off, damaged,
// changed, or a wrong passphrase), not_supported (of a newer cay).
func Open(ctx context.Context, file, passphrase string) (_ *Archive, err error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, cay.Errorf(cay.Invalid, "cannot open the backup: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(named(err, file), f.Close())
		}
	}()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, cay.Errorf(cay.Invalid, "not a file, and a backup is read twice")
	}
	a := &Archive{file: f, Size: info.Size()}
	w, err := a.walk(ctx, func(string, int64, io.Reader) error { return nil })
	if err != nil {
		return nil, err
	}
	a.Header, a.Manifest = w.header, w.manifest
	if passphrase == "" {
		return a, nil
	}
	if !a.Header.Keys {
		return nil, cay.Errorf(cay.Invalid, "it has no keys, and a passphrase was given")
	}
	if a.keys, err = unseal(w.sealed, passphrase); err != nil {
		return nil, err
	}
	if a.keys.Manifest != w.manifestSum {
		return nil, cay.Errorf(cay.Invalid, "it was changed after it was made: its keys belong to other content")
	}
	return a, nil
}

// named puts the name of the file into an error.
func named(err error, file string) error {
	var e *cay.Error
	if errors.As(err, &e) && e.Code != cay.Canceled {
		return cay.Errorf(e.Code, "%s is refused: %s", file, e.Message).WithHint("%s", e.Hint)
	}
	return err
}

// HasKeys reports whether the keys of the backup are open.
func (a *Archive) HasKeys() bool { return a.keys.Manifest != "" }

// Close closes the file.
func (a *Archive) Close() error { return a.file.Close() }

// walked are the parts of a backup that are kept in memory.
type walked struct {
	header      Header
	manifest    Manifest
	manifestSum string
	sealed      []byte
}

// walk reads the file from its beginning and passes each part of the manifest to visit,
// which may read as much of it as it likes. It returns an error unless all is as Write
// writes it, down to the last byte.
func (a *Archive) walk(ctx context.Context, visit func(name string, size int64, r io.Reader) error) (*walked, error) {
	if _, err := a.file.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	in := &summing{r: readerWithContext{ctx, a.file}, sum: sha256.New()}
	w, err := walkTar(in, visit)
	if err == nil {
		err = checkEnd(in)
	}
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		err = cay.Errorf(cay.Invalid, "it is cut off after %d bytes", in.n).WithHint("take another copy of it")
	}
	if errors.Is(err, tar.ErrHeader) {
		err = cay.Errorf(cay.Invalid, "it is damaged after %d bytes", in.n).WithHint("take another copy of it")
	}
	return w, err
}

// checkEnd reads the last line.
func checkEnd(in *summing) error {
	sum := hex.EncodeToString(in.sum.Sum(nil))
	want := endPrefix + sum + "\n"
	got, err := io.ReadAll(io.LimitReader(in, int64(len(want))+1))
	if err != nil {
		return err
	}
	switch {
	case len(got) < len(want):
		return io.ErrUnexpectedEOF
	case string(got) != want:
		return cay.Errorf(cay.Invalid, "it is damaged: its sum is wrong").WithHint("take another copy of it")
	}
	return nil
}

// summing adds up all bytes that are read.
type summing struct {
	r   io.Reader
	sum hash.Hash
	n   int64
}

func (s *summing) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	s.sum.Write(p[:n])
	s.n += int64(n)
	return n, err
}

func walkTar(in io.Reader, visit func(name string, size int64, r io.Reader) error) (*walked, error) {
	w := &walked{}
	tr := tar.NewReader(in)
	h, err := tr.Next()
	if err != nil || h.Name != headerName || h.Typeflag != tar.TypeReg {
		return nil, cay.Errorf(cay.Invalid, "it is no backup of cay")
	}
	if err := decode(tr, h.Size, maxHeader, &w.header); err != nil {
		return nil, err
	}
	if w.header.Format != format {
		return nil, cay.Errorf(cay.NotSupported, "it was made by cay %s, and has format %d; this cay knows format %d", w.header.Version, w.header.Format, format).
			WithHint("restore it with the cay that made it")
	}
	var parts []Part
	for h, err = tr.Next(); err == nil && h.Name != manifestName; h, err = tr.Next() {
		if h.Typeflag != tar.TypeReg {
			return nil, cay.Errorf(cay.Invalid, "%.100q in it is not a regular file", h.Name)
		}
		if err := checkName(h.Name); err != nil {
			return nil, err
		}
		sum := sha256.New()
		body := io.TeeReader(tr, sum)
		if err := visit(h.Name, h.Size, body); err != nil {
			return nil, err
		}
		if _, err := io.Copy(io.Discard, body); err != nil {
			return nil, err
		}
		parts = append(parts, Part{h.Name, h.Size, hex.EncodeToString(sum.Sum(nil))})
		if len(parts) > maxManifest/64 {
			return nil, cay.Errorf(cay.TooLarge, "it has more than %d parts", maxManifest/64)
		}
	}
	if err != nil {
		return nil, err
	}
	sum := sha256.New()
	if err := decode(io.TeeReader(tr, sum), h.Size, maxManifest, &w.manifest); err != nil {
		return nil, err
	}
	w.manifestSum = hex.EncodeToString(sum.Sum(nil))
	if err := checkParts(w.header, w.manifest, parts); err != nil {
		return nil, err
	}
	if w.header.Keys {
		if h, err = tr.Next(); err != nil {
			return nil, err
		}
		if h.Name != keysName || h.Size > maxKeys {
			return nil, cay.Errorf(cay.Invalid, "its keys are missing")
		}
		if w.sealed, err = io.ReadAll(tr); err != nil {
			return nil, err
		}
	}
	if _, err := tr.Next(); err == nil {
		return nil, cay.Errorf(cay.Invalid, "it has more parts than its manifest")
	} else if !errors.Is(err, io.EOF) {
		return nil, err
	}
	return w, nil
}

// checkParts compares the parts that were read with the manifest.
func checkParts(h Header, m Manifest, parts []Part) error {
	if !slices.Equal(parts, m.Parts) {
		return cay.Errorf(cay.Invalid, "its parts are not those of its manifest").WithHint("take another copy of it")
	}
	seen := make(map[string]bool, len(parts))
	for _, p := range parts {
		if seen[p.Name] {
			return cay.Errorf(cay.Invalid, "it has two parts %.100q", p.Name)
		}
		seen[p.Name] = true
		if hex, ok := strings.CutPrefix(p.Name, imageDir+"images/"); ok && strings.HasSuffix(hex, ".erofs") && hex != p.SHA256+".erofs" {
			return cay.Errorf(cay.Invalid, "the content of the image sha256:%s is not the content with that sum", strings.TrimSuffix(hex, ".erofs"))
		}
	}
	for _, d := range h.Databases {
		if name := fmt.Sprintf("%s%s.db", databaseDir, d); !seen[name] {
			return cay.Errorf(cay.Invalid, "it has no database %.100q", d)
		}
	}
	return nil
}
