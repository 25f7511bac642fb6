package daemon_test

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/cayhq/cay/internal/config"
	"github.com/cayhq/cay/internal/daemon"
	"github.com/cayhq/cay/internal/sandboxd/fake"
)

// A daemon that cannot start leaves no data directory, and no useless token.
func TestRun_FailedLeavesNothing(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { taken.Close() })
	bad := filepath.Join(t.TempDir(), "gateway.yaml")
	if err := os.WriteFile(bad, []byte("providers: [no"), 0o600); err != nil {
		t.Fatal(err)
	}
	run := func(t *testing.T, change func(*config.Config)) (data string, err error) {
		t.Helper()
		rt, err := fake.New(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		data = filepath.Join(t.TempDir(), "data")
		cfg := settings(data)
		cfg.GatewayListen = "127.0.0.1:0"
		change(&cfg)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		return cfg.Data, daemon.Run(ctx, cfg, daemon.Options{Runtime: rt}, func(string, string) { cancel() })
	}
	for name, change := range map[string]func(*config.Config){
		"port taken":         func(c *config.Config) { c.Listen = taken.Addr().String() },
		"gateway port taken": func(c *config.Config) { c.GatewayListen = taken.Addr().String() },
		"gateway config":     func(c *config.Config) { c.GatewayConfig = bad },
		"no address":         func(c *config.Config) { c.Listen = "192.0.2.1:1" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			data, err := run(t, change)
			if err == nil {
				t.Fatal("it started")
			}
			if _, serr := os.Lstat(data); !errors.Is(serr, fs.ErrNotExist) {
				t.Errorf("after %v: %v", err, serr)
			}
			// A directory that existed before is left alone.
			own := t.TempDir()
			if _, err := run(t, func(c *config.Config) { change(c); c.Data = own }); err == nil {
				t.Fatal("it started")
			}
			if _, err := os.Lstat(own); err != nil {
				t.Error(err)
			}
		})
	}
	t.Run("stopped", func(t *testing.T) {
		t.Parallel()
		data, err := run(t, func(*config.Config) {})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.Lstat(filepath.Join(data, "admin.token")); err != nil {
			t.Error(err)
		}
	})
}
