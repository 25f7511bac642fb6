package gvisor_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/image/imagetest"
	"github.com/cayhq/cay/internal/sandboxd"
	"github.com/cayhq/cay/internal/sandboxd/guest"
	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/internal/sandboxd/network"
	"github.com/cayhq/cay/internal/sandboxd/sandboxtest"
	"github.com/cayhq/cay/sandbox"
)

// living is a sandbox, and its copies, with a Python shell that has data and a counting
// thread, and an HTTP server that counts its requests.
type living struct {
	*sandboxtest.Harness
	t     *testing.T
	ctx   context.Context
	shell string // id of the shell's command
	http  string // likewise
	sum   string // of the data
	state string // of the server
}

// pythonMiB is how much data the shell has.
const pythonMiB = 256

// pythonShell is typed into the shell: an empty line ends a block.
const pythonShell = `import json, os, random, sys, threading, time, zlib
sys.ps1 = sys.ps2 = ""
data, count = os.urandom(%d << 20), 0
def counting():
    global count
    while True:
        count += 1
        time.sleep(.02)

threading.Thread(target=counting, daemon=True).start()
random.seed(7)
def tell():
    print(json.dumps(dict(count=count, sum=zlib.crc32(data[::4096]), pid=os.getpid(), random=random.random(), urandom=os.urandom(8).hex())), flush=True)

tell()
`

const nodeServer = `
const {readFileSync} = require("fs"), state = require("crypto").randomUUID();
let n = 0;
require("http").createServer((q, r) => r.end(JSON.stringify({n: ++n, state, uuid: readFileSync("/proc/sys/kernel/random/uuid", "latin1"), pid: process.pid})))
	.listen(3000, "127.0.0.1", () => console.log("listening"));
`

func startLiving(t *testing.T, h *sandboxtest.Harness, ref string) *living {
	t.Helper()
	l := &living{Harness: h, t: t, ctx: sandboxtest.As(t.Context(), sandboxtest.Default)}
	shell, err := h.Engine.Start(l.ctx, ref, sandbox.CommandParams{Argv: []string{"python3", "-i", "-q", "-u"}, Stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	l.shell = shell.ID
	said := l.ask(ref, fmt.Sprintf(pythonShell, pythonMiB))
	l.sum = fmt.Sprint(said["sum"])
	server, err := h.Engine.Start(l.ctx, ref, sandbox.CommandParams{Argv: []string{"node", "-e", nodeServer}})
	if err != nil {
		t.Fatal(err)
	}
	l.http = server.ID
	out, err := h.Output(l.ctx, ref, l.http, sandbox.OutputParams{Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	if ev, err := out.Next(); err != nil || string(ev.Data) != "listening\n" {
		t.Fatalf("the server says %q, %v", ev.Data, err)
	}
	l.state = fmt.Sprint(l.request(ref)["state"])
	return l
}

// size is how much a command has written.
func (l *living) size(ref, id string) int64 {
	l.t.Helper()
	out, err := l.Output(l.ctx, ref, id, sandbox.OutputParams{})
	if err != nil {
		l.t.Fatalf("output of %s: %v", ref, err)
	}
	defer out.Close()
	var end int64
	for {
		ev, err := out.Next()
		if err == io.EOF {
			return end
		}
		if err != nil {
			l.t.Fatalf("output of %s: %v", ref, err)
		}
		end = max(end, ev.Cursor+int64(len(ev.Data)))
	}
}

// ask types text into the shell and returns the JSON object that the shell prints.
func (l *living) ask(ref, text string) map[string]any {
	l.t.Helper()
	cursor := l.size(ref, l.shell)
	if err := l.WriteStdin(l.ctx, ref, l.shell, strings.NewReader(text), false); err != nil {
		l.t.Fatalf("type into the shell of %s: %v", ref, err)
	}
	out, err := l.Output(l.ctx, ref, l.shell, sandbox.OutputParams{Cursor: cursor, Follow: true})
	if err != nil {
		l.t.Fatal(err)
	}
	defer out.Close()
	var line []byte
	for !bytes.HasSuffix(line, []byte("\n")) {
		ev, err := out.Next()
		if err != nil || ev.Exit != nil {
			l.t.Fatalf("the shell of %s says %q, and then %+v, %v", ref, line, ev.Exit, err)
		}
		if ev.Stream == sandbox.Stdout {
			line = append(line, ev.Data...)
		} else if bytes.Contains(ev.Data, []byte("Error")) {
			l.t.Fatalf("the shell of %s fails: %s", ref, ev.Data)
		}
	}
	return l.decode(ref, line)
}

func (l *living) decode(ref string, text []byte) map[string]any {
	l.t.Helper()
	v := make(map[string]any)
	if err := json.Unmarshal(text, &v); err != nil {
		l.t.Fatalf("%s says %q: %v", ref, text, err)
	}
	return v
}

// request asks the server.
func (l *living) request(ref string) map[string]any {
	l.t.Helper()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return l.DialPort(sandboxtest.As(ctx, sandboxtest.Default), ref, 3000)
	}}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(l.ctx, http.MethodGet, "http://sandbox.test/", nil)
	if err != nil {
		l.t.Fatal(err)
	}
	resp, err := (&http.Client{Transport: transport}).Do(req)
	if err != nil {
		l.t.Fatalf("ask the server of %s: %v", ref, err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		l.t.Fatalf("ask the server of %s: %v", ref, err)
	}
	return l.decode(ref, text)
}

// goesOn checks that the shell and the server in ref continue from their last state or
// later, and returns their answers.
func (l *living) goesOn(ref string, shell, server map[string]any) (python, node map[string]any) {
	l.t.Helper()
	python = l.ask(ref, "tell()\n")
	if fmt.Sprint(python["sum"]) != l.sum || python["pid"] != shell["pid"] || python["count"].(float64) < shell["count"].(float64) {
		l.t.Errorf("the shell of %s says %v, and said %v", ref, python, shell)
	}
	// The thread runs, too.
	for again := python; again["count"] == python["count"]; {
		again = l.ask(ref, "print(json.dumps(dict(count=count)), flush=True)\n")
	}
	node = l.request(ref)
	if node["state"] != l.state || node["pid"] != server["pid"] || node["n"].(float64) != server["n"].(float64)+1 {
		l.t.Errorf("the server of %s says %v, and said %v", ref, node, server)
	}
	return python, node
}

// Running programs continue in the same process with all their state: after a pause,
// after hibernation with a restart of the daemon, and in ten copies, which then diverge.
func TestFork_Processes(t *testing.T) {
	t.Parallel()
	suite := config(t)
	imagetest.Acquire(t, "node24")
	var tool machine.Spec
	suite.Spec(&tool, &guest.Config{})
	h := sandboxtest.Start(t, newRuntime(t, t.TempDir()), func(c *sandboxd.Config) {
		c.Images = storeImages{imagetest.Open(t)}
		c.Tool = sandboxd.Tool{Mount: tool.Mounts[0], Init: tool.Init}
		c.Gateway, c.Nameserver = network.GatewayAddr, network.GatewayAddr
		c.Clock = nil
	})
	ctx := sandboxtest.As(t.Context(), sandboxtest.Default)
	src, err := h.Create(ctx, sandbox.CreateParams{Name: "src", VCPUs: 2, MemoryMB: 1024})
	if err != nil {
		t.Fatal(err)
	}
	l := startLiving(t, h, "src")
	shell, server := l.ask("src", "tell()\n"), l.request("src")

	if _, err := h.Pause(ctx, "src"); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Resume(ctx, "src", sandbox.ResumeParams{}); err != nil {
		t.Fatal(err)
	}
	shell, server = l.goesOn("src", shell, server)

	slept := time.Now()
	if _, err := h.Hibernate(ctx, "src"); err != nil {
		t.Fatal(err)
	}
	t.Logf("hibernated in %v", time.Since(slept))
	h.Restart(t)
	woken := time.Now()
	shell, server = l.goesOn("src", shell, server) // which wakes it
	t.Logf("answers %v after it was called", time.Since(woken))

	before := availableMiB(t)
	began := time.Now()
	f, err := h.Fork(ctx, "src", sandbox.ForkParams{Count: 10, Kind: sandbox.MemorySnapshot})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("ten copies in %v: %+v, %d MiB copied, %d MiB shared", time.Since(began), f.Phases, f.CopiedBytes>>20, f.SharedBytes>>20)
	if f.CopiedBytes < pythonMiB<<20 || f.SharedBytes < 64<<20 {
		t.Errorf("%d bytes were copied and %d are shared", f.CopiedBytes, f.SharedBytes)
	}
	pythons, nodes := make([]map[string]any, 10), make([]map[string]any, 10)
	for i, s := range f.Sandboxes {
		pythons[i], nodes[i] = l.goesOn(s.ID, shell, server)
	}
	t.Logf("ten copies have answered after %v", time.Since(began))
	uuids := map[any]bool{}
	for i := range pythons {
		// Each copy has its own random numbers from the kernel. Random state that a
		// program has read from the kernel before, such as a seed or the pool of Node's
		// crypto, is the same in all copies.
		uuids[pythons[i]["urandom"]], uuids[nodes[i]["uuid"]] = true, true
		if pythons[i]["random"] != pythons[0]["random"] {
			t.Errorf("Python's own generator is at %v in copy %d, and at %v in the first", pythons[i]["random"], i, pythons[0]["random"])
		}
	}
	if len(uuids) != 20 {
		t.Errorf("of 20 random numbers, %d differ: %v", len(uuids), uuids)
	}
	l.goesOn("src", shell, server)

	var pss int64
	for _, s := range f.Sandboxes {
		pss += pssKiB(t, sentry(t, s.SessionID)) >> 10
	}
	t.Logf("ten copies of %s take %d MiB each by their own maps, and %d MiB of the host", src.Name, pss/10, (before-availableMiB(t))/10)
}

// pssKiB returns a process's proportional share of its mapped memory, in KiB.
func pssKiB(t *testing.T, pid int) int64 {
	t.Helper()
	return field(t, filepath.Join("/proc", strconv.Itoa(pid), "smaps_rollup"), "Pss:")
}

func availableMiB(t *testing.T) int64 {
	t.Helper()
	return field(t, "/proc/meminfo", "MemAvailable:") >> 10
}

// field returns the number after a name in a file in /proc.
func field(t *testing.T, path, name string) int64 {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == name {
			n, err := strconv.ParseInt(f[1], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatalf("%s has no %s", path, name)
	return 0
}
