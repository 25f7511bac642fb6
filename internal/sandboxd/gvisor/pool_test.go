package gvisor_test

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/cayhq/cay/internal/image/imagetest"
	"github.com/cayhq/cay/internal/sandboxd"
	"github.com/cayhq/cay/internal/sandboxd/guest"
	"github.com/cayhq/cay/internal/sandboxd/gvisor"
	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/internal/sandboxd/network"
	"github.com/cayhq/cay/internal/sandboxd/network/networktest"
	"github.com/cayhq/cay/internal/sandboxd/sandboxtest"
	"github.com/cayhq/cay/internal/seedtest"
	"github.com/cayhq/cay/sandbox"
)

// startEngine starts an engine on r.
func startEngine(t *testing.T, r machine.Runtime, change func(*sandboxd.Config)) *sandboxtest.Harness {
	t.Helper()
	suite := config(t)
	imagetest.Acquire(t, "node24")
	var tool machine.Spec
	suite.Spec(&tool, &guest.Config{})
	return sandboxtest.Start(t, r, func(c *sandboxd.Config) {
		c.Images = storeImages{imagetest.Open(t)}
		c.Tool = sandboxd.Tool{Mount: tool.Mounts[0], Init: tool.Init}
		c.Gateway, c.Nameserver = network.GatewayAddr, network.GatewayAddr
		change(c)
	})
}

// pooled is an engine with a full pool of the default kind.
type pooled struct {
	*sandboxtest.Harness
	*sandboxtest.PoolWatch
	t *testing.T
}

func startPool(t *testing.T, r machine.Runtime, size int) pooled {
	t.Helper()
	w := sandboxtest.NewPoolWatch()
	h := startEngine(t, r, func(c *sandboxd.Config) {
		c.Pools, c.Metrics = []sandboxd.PoolConfig{{Size: size}}, w
	})
	w.AwaitReady(t, size)
	return pooled{h, w, t}
}

func (p pooled) create(params sandbox.CreateParams) *sandbox.Sandbox {
	p.t.Helper()
	s, err := p.Harness.Create(sandboxtest.As(p.t.Context(), sandboxtest.Default), params)
	if err != nil {
		p.t.Fatal(err)
	}
	return s
}

// sh runs a script and returns its output.
func (p pooled) sh(ref, script string) string {
	p.t.Helper()
	out, err := p.Exec(sandboxtest.As(p.t.Context(), sandboxtest.Default), ref, sandbox.CommandParams{Argv: []string{"sh", "-c", script}})
	if err != nil {
		p.t.Fatal(err)
	}
	defer out.Close()
	var text strings.Builder
	for {
		ev, err := out.Next()
		if errors.Is(err, io.EOF) {
			return strings.TrimSpace(text.String())
		}
		if err != nil {
			p.t.Fatal(err)
		}
		text.Write(ev.Data)
	}
}

// TestPools runs the common tests of pools with real machines.
func TestPools(t *testing.T) {
	sandboxtest.RunPools(t, func(t *testing.T, change func(*sandboxd.Config)) *sandboxtest.Harness {
		imagetest.Acquire(t, "python3.13")
		return startEngine(t, newRuntime(t, t.TempDir()), change)
	})
}

// Row S1 for pooled machines: no machine shares secrets or random numbers with another
// machine, or with its own state before it was taken from the pool.
func TestPool_Identity(t *testing.T) {
	p := startPool(t, newRuntime(t, t.TempDir()), 3)
	seen := map[string]map[string]string{} // kind of value, value, sandbox
	for _, name := range []string{"one", "two", "three"} {
		s := p.create(sandbox.CreateParams{Name: name, Env: map[string]string{"OWNER": name}, VCPUs: 1, MemoryMB: 512})
		if ran, err := p.ListCommands(sandboxtest.As(p.t.Context(), sandboxtest.Default), s.ID); err != nil || len(ran) > 0 {
			t.Errorf("%s begins with the commands %+v, %v", name, ran, err)
		}
		for what, script := range map[string]string{
			"hostname":   "hostname",
			"machine-id": "cat /etc/machine-id",
			"urandom":    "head -c 16 /dev/urandom | od -An -tx1",
			"uuid":       "cat /proc/sys/kernel/random/uuid",
			"python":     "python3 -c 'import random, secrets; print(random.random(), secrets.token_hex(8))'",
			"temporary":  "mktemp -u",
			"key":        "openssl genpkey -algorithm ed25519 | sha256sum",
			"token":      "cat /etc/cay/identity.json",
			"variable":   "echo $OWNER",
		} {
			value := p.sh(s.ID, script)
			if seen[what] == nil {
				seen[what] = map[string]string{}
			}
			if other, ok := seen[what][value]; ok || value == "" {
				t.Errorf("%s of %s is %q, as that of %q", what, name, value, other)
			}
			seen[what][value] = name
		}
		for script, want := range map[string]string{
			"hostname; cat /etc/hostname; getent hosts " + name + " | tr -s ' '": name + "\n" + name + "\n127.0.1.1 " + name,
			"sudo id -u":                     "0", // sudo looks up its own host name
			"whoami; pwd":                    "vercel-sandbox\n/vercel/sandbox",
			"ls -A /tmp":                     "",
			"env | grep -i -e token -e CAY_": "",
		} {
			if got := p.sh(s.ID, script); got != want {
				t.Errorf("%s: %s wrote %q, want %q", name, script, got, want)
			}
		}
		checkMemory(t, s.SessionID, 512)
		for line := range strings.SplitSeq(p.sh(s.ID, "ps -eo args"), "\n") {
			if !strings.Contains(line, "cay-guest") && !strings.Contains(line, "ps -eo args") && line != "COMMAND" {
				t.Errorf("%s runs %q", name, line)
			}
		}
	}
}

// checkMemory checks the memory limit that the host has for a machine.
func checkMemory(t *testing.T, id string, memoryMB int64) {
	t.Helper()
	for _, file := range []string{"/sys/fs/cgroup/memory/cay/" + id + "/memory.limit_in_bytes", "/sys/fs/cgroup/cay/" + id + "/memory.max"} {
		b, err := os.ReadFile(file)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if want := strconv.FormatInt(memoryMB<<20, 10); strings.TrimSpace(string(b)) != want {
			t.Errorf("%s holds %q, want %s", file, b, want)
		}
		return
	}
	t.Errorf("machine %s has no memory cgroup", id)
}

// Row N19 for pooled machines: they reach nothing. The policy of a sandbox is in force
// before its first command.
func TestPool_Network(t *testing.T) {
	internet := networktest.Start(t)
	egress, err := network.NewEgress(network.EgressConfig{Nameservers: internet.Nameservers(), DialContext: internet.DialContext})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(egress.Close)
	r, err := gvisor.New(gvisor.Config{StateDir: t.TempDir(), Egress: egress, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	before := internet.Mark()
	p := startPool(t, r, 3)
	if queries := internet.Queries(before); len(queries) > 0 {
		t.Errorf("machines that wait asked for %v", queries)
	}
	const get = "curl -sk -o /dev/null -m 60 -w '%{http_code}' https://api.example.com/"
	for _, c := range []struct {
		name    string
		network sandbox.Network
		want    string
	}{
		{"Denied", sandbox.Network{Mode: sandbox.DenyAll}, "000"},
		{"Allowed", sandbox.Network{Mode: sandbox.Custom, Allow: []sandbox.Domain{{Name: "api.example.com"}}}, "200"},
		{"OtherAllowed", sandbox.Network{Mode: sandbox.Custom, Allow: []sandbox.Domain{{Name: "files.example.com"}}}, "000"},
	} {
		s := p.create(sandbox.CreateParams{Network: c.network})
		if got := p.sh(s.ID, get); got != c.want {
			t.Errorf("%s: got %q, want %s", c.name, got, c.want)
		}
	}
	if pool := p.Await(t, func(p sandbox.Pool) bool { return p.Claims+p.Misses == 3 }); pool.Claims != 3 {
		t.Errorf("the pool is %+v", pool)
	}
}

// Row I9 for pooled machines: they leave nothing behind, however they end.
func TestPool_Leak(t *testing.T) {
	if testing.Short() {
		t.Skip("takes minutes")
	}
	dir := t.TempDir()
	const size = 4
	p := startPool(t, newRuntime(t, dir), size)
	ctx := sandboxtest.As(t.Context(), sandboxtest.Default)
	var mu sync.Mutex
	machines := map[string]bool{}
	cycle := func(n int) {
		t.Helper()
		var g errgroup.Group
		g.SetLimit(3)
		for range n {
			g.Go(func() error {
				s, err := p.Harness.Create(ctx, sandbox.CreateParams{})
				if err != nil {
					return err
				}
				mu.Lock()
				again := machines[s.SessionID]
				machines[s.SessionID] = true
				mu.Unlock()
				if again {
					return fmt.Errorf("machine %s was given away twice", s.SessionID)
				}
				return p.Delete(ctx, s.ID)
			})
		}
		if err := g.Wait(); err != nil {
			t.Fatal(err)
		}
		p.AwaitReady(t, size)
	}
	cycle(8) // things that are made once
	before := hostState(t, dir)
	cycles := seedtest.Rounds(t, 40)
	cycle(cycles)
	awaitState(t, dir, before, fmt.Sprintf("%d claims", cycles))
	if pool := p.AwaitReady(t, size); pool.Claims == 0 {
		t.Errorf("nothing was claimed: %+v", pool)
	}
	for id := range machines {
		for _, pattern := range []string{"/sys/fs/cgroup/*/cay/" + id, "/sys/fs/cgroup/cay/" + id, "/run/runsc-" + id + "*"} {
			if left, err := filepath.Glob(pattern); err != nil || len(left) > 0 {
				t.Errorf("%q are left, %v", left, err)
			}
		}
	}
	p.Engine.Close()
	if left, err := p.Config.Runtime.List(ctx); err != nil || len(left) > 0 {
		t.Errorf("machines %v are left, %v", left, err)
	}
}
