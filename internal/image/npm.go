package image

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/cayhq/cay"
)

func (p npmPackage) digest() (blobDigest, error) {
	b, err := base64.StdEncoding.DecodeString(p.integrity)
	if err != nil {
		return blobDigest{}, fmt.Errorf("checksum of %s: %w", p.name, err)
	}
	return blobDigest{"sha512", hex.EncodeToString(b)}, nil
}

// npmRegistry finds the npm registry: by option, environment, the user's .npmrc, or else
// by asking npm itself.
func (s *Store) npmRegistry(ctx context.Context) (string, error) {
	candidates := []func() (string, error){
		func() (string, error) { return s.opts.NPMRegistry, nil },
		func() (string, error) { return os.Getenv("NPM_CONFIG_REGISTRY"), nil },
		func() (string, error) { return os.Getenv("npm_config_registry"), nil },
		npmrcRegistry,
		func() (string, error) { return askNPM(ctx) },
	}
	for _, c := range candidates {
		r, err := c()
		if err != nil {
			return "", err
		}
		if r == "" {
			continue
		}
		if u, err := url.Parse(r); err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" {
			return "", cay.Errorf(cay.Invalid, "the address of the npm registry, %q, is not an http or https URL", r)
		}
		return r, nil
	}
	return "", cay.Errorf(cay.NotSupported, "no npm registry is configured, and runtimes come from one").
		WithHint("set NPM_CONFIG_REGISTRY to its address")
}

// npmrcRegistry reads the registry from ~/.npmrc, "" if it names none.
func npmrcRegistry() (string, error) {
	home, err := os.UserHomeDir()
	if err != nil {
		return "", nil // no home, no configuration in it
	}
	f, err := os.Open(filepath.Join(home, ".npmrc"))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		key, value, _ := strings.Cut(lines.Text(), "=")
		if strings.TrimSpace(key) == "registry" {
			return os.ExpandEnv(strings.Trim(strings.TrimSpace(value), `"'`)), nil
		}
	}
	return "", lines.Err()
}

func askNPM(ctx context.Context) (string, error) {
	program, err := exec.LookPath("npm")
	if err != nil {
		return "", nil // not installed; the caller returns a hint
	}
	out, err := exec.CommandContext(ctx, program, "config", "get", "registry").Output()
	if err != nil {
		return "", fmt.Errorf("ask npm for its registry: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}
