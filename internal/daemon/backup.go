package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/backup"
	"github.com/cayhq/cay/internal/blob"
	"github.com/cayhq/cay/internal/config"
	"github.com/cayhq/cay/internal/db"
	"github.com/cayhq/cay/internal/image"
	"github.com/cayhq/cay/internal/sandboxd/store"
	"github.com/cayhq/cay/internal/secret"
)

// The stores of blobs in a data directory.
const (
	snapshotBlobs = "snapshots"
	driveBlobs    = "drives"
	commandBlobs  = "commands"
	programBlobs  = "programs"
)

var blobStores = []string{snapshotBlobs, driveBlobs, commandBlobs, programBlobs}

const secretKeyFile = "secret.key"

// keyFiles are the files of a data directory that have secrets in the clear: gateway.yaml
// may have the keys of providers.
var keyFiles = []string{secretKeyFile, "admin.token", "ca/ca.key", "ca/ca.pem", "gateway.yaml"}

// Backup writes a backup of the data directory of cfg, which a daemon may be using. It asks
// no daemon: the right to read the data directory is the right to back it up. Errors: as
// backup.Write; not_found (there is no data).
func Backup(ctx context.Context, cfg config.Config, w io.Writer, o backup.Options) (*backup.Result, error) {
	if _, err := os.Stat(cfg.DatabaseFile()); err != nil {
		return nil, cay.Errorf(cay.NotFound, "there is no data of a daemon in %s: %w", cfg.Data, err).
			WithHint("name the data directory with --data")
	}
	src := backup.Source{Dir: cfg.Data, Needed: neededBlobs, Files: []string{"gateway-models.json"}, Keys: keyFiles}
	for _, d := range cfg.Databases() {
		if d.File == "" {
			src.Left = append(src.Left, fmt.Sprintf("the database %q, which is on a database server: back it up there", d.Name))
			continue
		}
		if _, err := os.Stat(d.File); errors.Is(err, fs.ErrNotExist) {
			continue // of a part that was never used
		}
		src.Databases = append(src.Databases, backup.Database{Name: d.Name, File: d.File})
	}
	for _, name := range blobStores {
		s, err := blob.OpenDir(filepath.Join(cfg.Data, name), blob.DirOptions{})
		if err != nil {
			return nil, err
		}
		src.Stores = append(src.Stores, backup.Store{Name: name, Blob: s})
	}
	key, err := os.ReadFile(filepath.Join(cfg.Data, secretKeyFile))
	if err == nil {
		src.Key, err = secret.ID(key)
	}
	if err != nil {
		return nil, cay.Errorf(cay.Invalid, "the key %s cannot be read: %w", secretKeyFile, err)
	}
	if o.Passphrase == "" {
		src.Left = append(src.Left, "the keys secret.key, admin.token and ca/, and gateway.yaml")
	}
	if !o.Images {
		src.Left = append(src.Left, "the content of images")
	}
	images, err := image.Open(cfg.ImageDir(), image.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	src.Images = func(ctx context.Context, content bool) (all []backup.Image, files map[string]string, release func(), err error) {
		list, files, release, err := images.Contents(ctx, content)
		for _, img := range list {
			all = append(all, backup.Image{Digest: img.Digest, Refs: img.Refs, Size: img.Size})
		}
		return all, files, release, err
	}
	if err := checkCopySpace(cfg, src); err != nil {
		return nil, err
	}
	return backup.Write(ctx, w, src, o)
}

// checkCopySpace returns an error unless the disk has room for a copy of the largest
// database.
func checkCopySpace(cfg config.Config, src backup.Source) error {
	var largest int64
	for _, d := range src.Databases {
		info, err := os.Stat(d.File)
		if err != nil {
			return err
		}
		largest = max(largest, info.Size())
	}
	return blob.CheckSpace(cfg.Data, largest)
}

// neededBlobs returns the blobs that the rows of cay.db refer to.
func neededBlobs(ctx context.Context, states map[string]*db.State) (map[string][]string, error) {
	state := states["cay"]
	if state == nil {
		return nil, errors.New("no state of the database cay")
	}
	b, err := store.NeededBlobs(ctx, state)
	return map[string][]string{snapshotBlobs: b.Snapshots, driveBlobs: b.Drives, commandBlobs: b.Commands, programBlobs: b.Programs}, err
}

// RestoreOptions are the choices of the user.
type RestoreOptions struct {
	// SecretKey is the content of a key file that was kept apart from the backup.
	SecretKey []byte
	// NewKey accepts that values sealed with the missing key are lost.
	NewKey bool
}

// Restore writes an opened backup into the data directory of cfg, which must be empty.
// Errors: as backup.Archive.Restore; invalid (keys are missing, or the wrong ones).
func Restore(ctx context.Context, cfg config.Config, a *backup.Archive, o RestoreOptions) error {
	t := backup.Target{Dir: cfg.Data, Stores: blobStores}
	switch {
	case o.SecretKey != nil:
		id, err := secret.ID(o.SecretKey)
		if err != nil {
			return cay.Errorf(cay.Invalid, "the key cannot be used: %w", err)
		}
		if id != a.Header.Key {
			return cay.Errorf(cay.Invalid, "the key is not the key of this backup: its id is %s, and the backup's is %s", id, a.Header.Key)
		}
		t.Keys = map[string][]byte{secretKeyFile: o.SecretKey}
	case !a.HasKeys() && !o.NewKey && a.Header.Keys:
		return cay.Errorf(cay.Invalid, "the keys in the backup take its passphrase").
			WithHint("give it with --passphrase-file or CAY_BACKUP_PASSPHRASE")
	case !a.HasKeys() && !o.NewKey:
		return cay.Errorf(cay.Invalid, "the backup has no keys, without which environments of sandboxes, guests' tokens and providers' keys cannot be read").
			WithHint("give the kept secret.key with --key-file, or go on without it with --new-key")
	}
	return a.Restore(ctx, t)
}
