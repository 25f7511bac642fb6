package accountd

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/cayhq/cay/account"
)

// ensureAdminToken makes the admin token file hold the secret of a live token
// and be readable by its owner only.
func (e *Engine) ensureAdminToken(ctx context.Context) error {
	path := e.cfg.AdminTokenFile
	secret, err := readSecret(path)
	if err != nil {
		return fmt.Errorf("read admin token: %w", err)
	}
	if secret != "" {
		ok, err := e.store.isFileToken(ctx, sha256.Sum256([]byte(secret)))
		if err != nil {
			return err
		}
		if ok {
			return e.tightenMode(ctx, path)
		}
	}

	secret, h := newSecret()
	t := account.Token{ID: newID("tok_"), Name: filepath.Base(path), TeamID: account.DefaultTeam, CreatedAt: e.timestamp()}
	// Change the database first: after a crash in between the file matches
	// nothing, and the next start repairs it.
	if err := e.store.replaceFileToken(ctx, t, h); err != nil {
		return err
	}
	e.cache.purge()
	if err := writeSecret(path, secret); err != nil {
		return fmt.Errorf("write admin token: %w", err)
	}
	e.log.InfoContext(ctx, "admin token written", "file", path, "id", t.ID)
	return nil
}

// readSecret returns the content of the file, "" if it is missing.
func readSecret(path string) (string, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return strings.TrimSpace(string(b)), err
}

func (e *Engine) tightenMode(ctx context.Context, path string) error {
	fi, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("check admin token: %w", err)
	}
	if fi.Mode().Perm()&0o077 == 0 {
		return nil
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return fmt.Errorf("protect admin token: %w", err)
	}
	e.log.WarnContext(ctx, "admin token was readable by others; delete the file and restart to replace it", "file", path)
	return nil
}

// writeSecret replaces the file atomically.
func writeSecret(path, secret string) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*") // mode 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	_, err = f.WriteString(secret + "\n")
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
