package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/backup"
	"github.com/cayhq/cay/internal/config"
	"github.com/cayhq/cay/internal/daemon"
)

const backupHelp = `Write all that the daemon of this machine keeps into one file: sandboxes, snapshots,
drives, kept commands, workflows, the gateway's keys and records, teams and tokens. "-"
writes to standard output. The daemon may run meanwhile. A sandbox that runs is in the
backup as it was last saved: its processes and unsaved files are not.

It reads the data directory itself and asks no daemon, so it takes the user that the
daemon runs as, usually root. Runs of workflows in PostgreSQL are not in the backup.

With --keys, secret.key, admin.token, ca/ and gateway.yaml are in the backup, sealed with
a passphrase (age, scrypt). Without it, keep secret.key in another place: environments
of sandboxes, providers' keys and the like cannot be read without it. All else in a
backup can be read by everybody who has the file.

Images are in the backup by their digests; --images adds their content.`

const restoreHelp = `Check a backup, and restore it into an empty data directory. Start the daemon after it.

A file that is cut off, damaged or no backup is refused before anything is written. If
the restore is interrupted, the daemon refuses to start on the directory, until its
content is deleted. --check only checks.

Sandboxes that ran when the backup was made are shown as lost; persistent ones start
again from what was last saved of them. Images that are not in the backup have to be
there before the sandboxes that need them start: bring them with "cay image import", of
a file that "cay image export" has written.`

// passphraseFlags say where a passphrase is.
type passphraseFlags struct{ file string }

const passphraseVariable = "CAY_BACKUP_PASSPHRASE"

// minPassphrase is how short the passphrase of a new backup may be, in bytes.
const minPassphrase = 8

func (p *passphraseFlags) register(c *cobra.Command) {
	c.Flags().StringVar(&p.file, "passphrase-file", "", "file with the passphrase of the keys (default $"+passphraseVariable+", else asks for it)")
}

// get returns the passphrase, or "" if none is given and ask is false. twice asks again, to
// find typing errors.
func (p *passphraseFlags) get(a *app, ask, twice bool) (string, error) {
	var b []byte
	var err error
	switch {
	case p.file != "":
		if b, err = os.ReadFile(p.file); err != nil {
			return "", cay.Errorf(cay.Invalid, "cannot read the passphrase: %w", err)
		}
	case os.Getenv(passphraseVariable) != "":
		b = []byte(os.Getenv(passphraseVariable))
	case !ask:
		return "", nil
	case !isTerminal(a.stdin):
		return "", cay.Errorf(cay.Invalid, "the keys take a passphrase").WithHint("give it with --passphrase-file or %s", passphraseVariable)
	default:
		if b, err = a.askSecret("Passphrase: "); err != nil {
			return "", err
		}
		if twice {
			again, err := a.askSecret("Again: ")
			if err != nil {
				return "", err
			}
			if !bytes.Equal(b, again) {
				return "", cay.Errorf(cay.Invalid, "the two passphrases differ")
			}
		}
	}
	if b = bytes.TrimRight(b, "\r\n"); twice && len(b) < minPassphrase || len(b) == 0 {
		return "", cay.Errorf(cay.Invalid, "the passphrase has %d characters, and needs at least %d", len(b), minPassphrase)
	}
	return string(b), nil
}

// askSecret reads a line from the terminal without showing it.
func (a *app) askSecret(prompt string) ([]byte, error) {
	fmt.Fprint(a.stderr, prompt)
	b, err := term.ReadPassword(int(a.stdin.Fd()))
	fmt.Fprintln(a.stderr)
	return b, err
}

// installationFlags say where the daemon of this machine has its data.
type installationFlags struct{ file, data string }

func (f *installationFlags) register(c *cobra.Command) {
	c.Flags().StringVar(&f.file, "config", "", "the daemon's YAML file with settings (default $CAY_CONFIG)")
	c.Flags().StringVar(&f.data, "data", "", "the daemon's data directory (default as for \"cay serve\")")
}

func (f *installationFlags) load(c *cobra.Command) (config.Config, error) {
	s := config.Sources{File: cmp.Or(f.file, os.Getenv("CAY_CONFIG")), Env: os.Getenv}
	if c.Flags().Changed("data") {
		s.Flags = map[string]string{"data": f.data}
	}
	return config.Load(s)
}

type backupOptions struct {
	where      installationFlags
	images     bool
	keys       bool
	passphrase passphraseFlags
	force      bool
}

func newBackupCommand(a *app) *cobra.Command {
	var o backupOptions
	c := &cobra.Command{
		Use: "backup FILE", Short: "Write all data of the daemon into a file", Long: backupHelp,
		Example: "  cay backup --keys --passphrase-file passphrase cay-$(date +%F).backup\n  cay backup - | ssh store 'cat > cay.backup'",
		Args:    exactly(1, "one file"),
	}
	fl := c.Flags()
	fl.BoolVar(&o.keys, "keys", false, "with the keys, sealed with a passphrase")
	o.passphrase.register(c)
	fl.BoolVar(&o.images, "images", false, "with the content of images")
	fl.BoolVarP(&o.force, "force", "f", false, "replace FILE")
	o.where.register(c)
	return a.verb(c, func(ctx context.Context, args []string) error {
		cfg, err := o.where.load(c)
		if err != nil {
			return err
		}
		bo := backup.Options{Images: o.images}
		if o.keys {
			if bo.Passphrase, err = o.passphrase.get(a, true, true); err != nil {
				return err
			}
		} else if o.passphrase.file != "" {
			return usage(c, "--passphrase-file goes with --keys")
		}
		began := time.Now()
		result, err := a.writeBackup(ctx, cfg, args[0], o.force, bo)
		if err != nil {
			return err
		}
		if args[0] == "-" {
			return nil
		}
		for _, left := range result.Left {
			a.note(a.json, "not in it: %s", left)
		}
		if n := len(result.Missing); n > 0 {
			a.warn("%d snapshots or drives have lost their files, and are not in it: %s", n, cut(fmt.Sprint(result.Missing), 200))
		}
		return a.show(result, func(w io.Writer) {
			fmt.Fprintf(w, "%s, %s in %s\n", args[0], bytesText(result.Size), time.Since(began).Round(time.Millisecond))
		})
	})
}

// writeBackup writes a backup to a file, which appears when it is whole, or to standard
// output.
func (a *app) writeBackup(ctx context.Context, cfg config.Config, file string, force bool, o backup.Options) (_ *backup.Result, err error) {
	if file == "-" {
		if isTerminal(a.stdout) {
			return nil, &exitError{exitUsage, cay.Errorf(cay.Invalid, "standard output is a terminal; name a file")}
		}
		return daemon.Backup(ctx, cfg, a.stdout, o)
	}
	if _, err := os.Lstat(file); err == nil && !force {
		return nil, cay.Errorf(cay.AlreadyExists, "%s is there already", file).WithHint("name another file, or replace it with --force")
	}
	f, err := os.CreateTemp(filepath.Dir(file), "."+filepath.Base(file)+"-") // mode 0600
	if err != nil {
		return nil, cay.Errorf(cay.Invalid, "cannot write the backup: %w", err)
	}
	defer func() {
		if err != nil {
			if rerr := os.Remove(f.Name()); !errors.Is(rerr, fs.ErrNotExist) {
				err = errors.Join(err, rerr)
			}
		}
	}()
	result, err := daemon.Backup(ctx, cfg, f, o)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	return result, os.Rename(f.Name(), file)
}

type restoreOptions struct {
	where      installationFlags
	passphrase passphraseFlags
	keyFile    string
	newKey     bool
	check      bool
}

// restored is the result of restore.
type restored struct {
	backup.Header
	Data   string         `json:"data"`
	Size   int64          `json:"size"`
	Images []backup.Image `json:"images"` // that are not in the backup
}

func newRestoreCommand(a *app) *cobra.Command {
	var o restoreOptions
	c := &cobra.Command{
		Use: "restore FILE", Short: "Restore a backup into an empty data directory", Long: restoreHelp,
		Example: "  cay restore --passphrase-file passphrase cay.backup\n  cay restore --key-file secret.key --data /srv/cay cay.backup",
		Args:    exactly(1, "one file"),
	}
	fl := c.Flags()
	o.passphrase.register(c)
	fl.StringVar(&o.keyFile, "key-file", "", "the secret.key that was kept apart from the backup")
	fl.BoolVar(&o.newKey, "new-key", false, "go on without the key: what it has sealed is lost")
	fl.BoolVar(&o.check, "check", false, "only check the file, and show what is in it")
	o.where.register(c)
	return a.verb(c, func(ctx context.Context, args []string) error {
		cfg, err := o.where.load(c)
		if err != nil {
			return err
		}
		return o.run(ctx, a, cfg, args[0])
	})
}

func (o *restoreOptions) run(ctx context.Context, a *app, cfg config.Config, file string) error {
	passphrase, err := o.passphrase.get(a, false, false)
	if err != nil {
		return err
	}
	ro := daemon.RestoreOptions{NewKey: o.newKey}
	if o.keyFile != "" {
		if ro.SecretKey, err = os.ReadFile(o.keyFile); err != nil {
			return cay.Errorf(cay.Invalid, "cannot read the key: %w", err)
		}
		passphrase = ""
	}
	b, err := backup.Open(ctx, file, passphrase)
	if err != nil {
		return err
	}
	if b.Header.Keys && passphrase == "" && ro.SecretKey == nil && !o.newKey && !o.check && isTerminal(a.stdin) {
		if passphrase, err = o.passphrase.get(a, true, false); err != nil {
			return errors.Join(err, b.Close())
		}
		if err := b.Close(); err != nil {
			return err
		}
		if b, err = backup.Open(ctx, file, passphrase); err != nil {
			return err
		}
	}
	defer b.Close() // it was only read
	if !o.check {
		if err := daemon.Restore(ctx, cfg, b, ro); err != nil {
			return err
		}
	}
	r := restored{Header: b.Header, Data: cfg.Data, Size: b.Size, Images: []backup.Image{}}
	if !b.Header.Images {
		r.Images = append(r.Images, b.Manifest.Images...)
	}
	return a.show(r, func(w io.Writer) { r.print(w, o.check, len(b.Manifest.Parts)) })
}

func (r *restored) print(w io.Writer, check bool, parts int) {
	fmt.Fprintf(w, "backup of %s by cay %s, %s in %d parts\n", r.CreatedAt.Format(time.DateTime), r.Version, bytesText(r.Size), parts)
	for _, left := range r.Left {
		fmt.Fprintf(w, "not in it: %s\n", clean(left))
	}
	for _, img := range r.Images {
		fmt.Fprintf(w, "image %s %s\n", short(img.Digest), clean(fmt.Sprint(img.Refs)))
	}
	if !check {
		fmt.Fprintf(w, "restored into %s; start the daemon\n", r.Data)
	}
}
