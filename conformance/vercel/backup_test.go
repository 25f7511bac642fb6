package vercel

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/cayhq/cay/internal/backup"
	"github.com/cayhq/cay/internal/config"
	"github.com/cayhq/cay/internal/daemon"
)

// TestBackup backs a daemon up while it runs and restores the backup on an empty machine,
// where the SDK finds its sandboxes, snapshots and tokens.
func TestBackup(t *testing.T) {
	need(t, "node_modules")
	var cfg config.Config
	s := open(t, func(c *config.Config) { cfg = *c })
	w := s.world(t, "backup")
	kept := filepath.Join(t.TempDir(), "kept.json")
	s.cases(t, "backup.test.mjs", w, "CAY_PHASE=before", "CAY_KEPT="+kept)

	const passphrase = "correct horse"
	file := filepath.Join(t.TempDir(), "cay.backup")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	result, err := daemon.Backup(t.Context(), cfg, f, backup.Options{Passphrase: passphrase, WorkFactor: 10})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d bytes in %d parts", result.Size, len(result.Parts))
	a, err := backup.Open(t.Context(), file, passphrase)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	restored := filepath.Join(t.TempDir(), "data")
	other := open(t, func(c *config.Config) {
		c.Data = restored
		if err := daemon.Restore(t.Context(), *c, a, daemon.RestoreOptions{}); err != nil {
			t.Fatal(err)
		}
	})
	w.URL, w.Control = other.url, other.control
	other.cases(t, "backup.test.mjs", w, "CAY_PHASE=after", "CAY_KEPT="+kept)
}
