package backup

import (
	"encoding/json"
	"io"
	"path"
	"regexp"
	"strings"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/blob"
)

const (
	// format is the version of the files that Write makes, and the newest that Open reads.
	format = 1

	headerName   = "cay-backup.json"
	manifestName = "manifest.json"
	keysName     = "keys.age"

	databaseDir = "db/"
	blobDir     = "blobs/"
	fileDir     = "files/"
	imageDir    = "images/"

	endPrefix = "cay-backup-end "

	maxHeader   = 1 << 20
	maxManifest = 256 << 20
	maxKeys     = 8 << 20
	maxName     = 1000
)

// Header is the first part of a backup.
type Header struct {
	Format    int       `json:"format"`
	Version   string    `json:"version"` // of the cay that made it
	CreatedAt time.Time `json:"created_at"`
	Databases []string  `json:"databases"`
	// Left says in words which parts of the installation are not in the backup.
	Left []string `json:"left,omitempty"`
	// Images reports whether the content of images is in the backup, Keys whether the
	// keys are.
	Images bool `json:"image_content"`
	Keys   bool `json:"keys"`
	// Key identifies the key of sealed values; see secret.ID.
	Key string `json:"key,omitempty"`
}

// Manifest describes all parts of a backup, apart from the header, itself and the keys.
type Manifest struct {
	Parts []Part `json:"parts"`
	// Images are the images of the installation, with or without their content.
	Images []Image `json:"images"`
	// Missing are blobs to which rows refer, but which had no files when the backup was
	// made, as "store/name".
	Missing []string `json:"missing,omitempty"`
}

// Part is a file in a backup.
type Part struct {
	Name   string `json:"name"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"`
}

// Image is an image that the installation has, by reference.
type Image struct {
	Digest string   `json:"digest"`
	Refs   []string `json:"refs"`
	Size   int64    `json:"size"`
}

// sealedKeys is the content of keys.age.
type sealedKeys struct {
	Manifest string            `json:"manifest"` // the SHA-256 of manifest.json
	Files    map[string][]byte `json:"files"`    // by their names in the data directory
}

var (
	element = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]*$`)
	// keyFile is the name of a file with keys: in the data directory, or one below.
	keyFile   = regexp.MustCompile(`^([A-Za-z0-9][A-Za-z0-9_-]*/)?[A-Za-z0-9][A-Za-z0-9_.-]*$`)
	imageFile = regexp.MustCompile(`^images/(images/[0-9a-f]{64}\.(erofs|json)|refs/([A-Za-z0-9_-]{1,64}/)?[0-9a-f]{32}\.json)$`)
)

// checkName reports whether a part can have that name. No name leads out of the directory
// that its part is restored to. Errors: invalid.
func checkName(name string) error {
	bad := cay.Errorf(cay.Invalid, "it has a part %.100q, which no backup has", name)
	if len(name) > maxName || path.Clean(name) != name {
		return bad
	}
	switch dir, rest, _ := strings.Cut(name, "/"); dir + "/" {
	case databaseDir:
		base, ok := strings.CutSuffix(rest, ".db")
		if ok && element.MatchString(base) {
			return nil
		}
	case fileDir:
		if element.MatchString(rest) {
			return nil
		}
	case blobDir:
		store, rest, _ := strings.Cut(rest, "/")
		blobName, file, _ := strings.Cut(rest, "/")
		if element.MatchString(store) && blob.CheckName(blobName) == nil && blob.CheckFile(file) == nil {
			return nil
		}
	case imageDir:
		if imageFile.MatchString(name) {
			return nil
		}
	}
	return bad
}

// decode reads one JSON value of at most max bytes.
func decode(r io.Reader, size, max int64, v any) error {
	if size > max {
		return cay.Errorf(cay.TooLarge, "one of its lists has %d bytes", size)
	}
	b, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, v); err != nil {
		return cay.Errorf(cay.Invalid, "one of its lists is damaged: %w", err)
	}
	return nil
}
