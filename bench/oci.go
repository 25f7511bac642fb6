package bench

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// oci is a container runtime with the command line of runc. Its containers
// share one writable root directory, so they do not set up a root file system
// each, as cay does for each sandbox; they have no network either.
type oci struct {
	name, path string
	flags      []string // of every command
	root       *rootfs
	work       string

	mu      sync.Mutex
	spawner *spawner // guarded by mu; nil until the first use
}

// prepare writes the bundle at the first call.
func (o *oci) prepare(ctx context.Context) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.spawner != nil {
		return nil
	}
	dir, err := o.root.get(ctx)
	if err != nil {
		return err
	}
	spec, err := json.Marshal(&specs.Spec{
		Version: "1.0.2",
		Process: &specs.Process{Args: []string{"sleep", "infinity"}, Env: []string{opponentPath}, Cwd: "/"},
		Root:    &specs.Root{Path: dir}, Hostname: "box",
		Mounts: []specs.Mount{
			{Type: "proc", Source: "proc", Destination: "/proc"},
			{Type: "tmpfs", Source: "tmpfs", Destination: "/dev"},
		},
		Linux: &specs.Linux{Namespaces: []specs.LinuxNamespace{
			{Type: specs.PIDNamespace}, {Type: specs.MountNamespace}, {Type: specs.IPCNamespace},
			{Type: specs.UTSNamespace}, {Type: specs.NetworkNamespace},
		}},
	})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(o.bundle(), 0o700); err != nil {
		return fmt.Errorf("make bundle: %w", err)
	}
	if err := os.WriteFile(filepath.Join(o.bundle(), "config.json"), spec, 0o600); err != nil {
		return fmt.Errorf("make bundle: %w", err)
	}
	o.spawner, err = newSpawner()
	return err
}

func (o *oci) close() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.spawner != nil {
		o.spawner.close()
		o.spawner = nil
	}
	return nil
}

func (o *oci) bundle() string { return filepath.Join(o.work, o.name) }

func (o *oci) command(ctx context.Context, args ...string) *exec.Cmd {
	all := append([]string{"--root", filepath.Join(o.work, o.name+"-state")}, o.flags...)
	return exec.CommandContext(ctx, o.path, append(all, args...)...)
}

func (o *oci) create(ctx context.Context) (box, error) {
	if err := o.prepare(ctx); err != nil {
		return nil, err
	}
	id := "bench-" + strings.ToLower(rand.Text()[:12])
	// The container keeps the standard streams, so they must not be pipes whose
	// end we wait for.
	log, err := os.CreateTemp(o.bundle(), "log-*")
	if err != nil {
		return nil, fmt.Errorf("make log: %w", err)
	}
	defer os.Remove(log.Name())
	defer log.Close()
	cmd := o.command(ctx, "run", "--detach", "--bundle", o.bundle(), id)
	cmd.Stderr = log
	if err := o.spawner.start(cmd); err != nil {
		return nil, err
	}
	if err := cmd.Wait(); err != nil {
		said, rerr := os.ReadFile(log.Name())
		// A run that was cut short may have left a container. If it has not,
		// remove fails, and its error is ignored.
		ctx, cancel := cleanup(ctx)
		defer cancel()
		_ = (&ociBox{o, id}).remove(ctx)
		return nil, errors.Join(fmt.Errorf("%s run: %w: %s", o.name, err, lastLine(said)), rerr)
	}
	return &ociBox{o, id}, nil
}

// ociBox is a running container.
type ociBox struct {
	o  *oci
	id string
}

func (b *ociBox) exec(ctx context.Context, argv []string) *exec.Cmd {
	return b.o.command(ctx, append([]string{"exec", b.id}, argv...)...)
}

func (b *ociBox) run(ctx context.Context, argv ...string) (string, error) {
	return output(b.exec(ctx, argv), b.o.spawner.start)
}

func (b *ociBox) firstByte(ctx context.Context, argv ...string) (time.Duration, error) {
	return awaitOutput(b.exec(ctx, argv), b.o.spawner.start)
}

// processes finds the container's init, and helpers whose arguments name it.
func (b *ociBox) processes(ctx context.Context) ([]int, error) {
	out, err := output(b.o.command(ctx, "state", b.id), b.o.spawner.start)
	if err != nil {
		return nil, err
	}
	var state specs.State
	if err := json.NewDecoder(bytes.NewBufferString(out)).Decode(&state); err != nil {
		return nil, fmt.Errorf("%s state: %w", b.o.name, err)
	}
	helpers, err := processesNaming(b.id)
	return append(helpers, state.Pid), err
}

func (b *ociBox) remove(ctx context.Context) error {
	_, err := output(b.o.command(ctx, "delete", "--force", b.id), b.o.spawner.start)
	return err
}
