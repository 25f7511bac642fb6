package torture

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/embedded"
	"github.com/cayhq/cay/internal/image/imagetest"
	"github.com/cayhq/cay/internal/sandboxd"
	"github.com/cayhq/cay/internal/sandboxd/gvisor"
	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/internal/sandboxd/sandboxtest"
	"github.com/cayhq/cay/internal/seedtest"
	"github.com/cayhq/cay/sandbox"
)

const (
	lifeEnv = "CAY_TEST_LIFE" // the life that this process is to run, as JSON
	// lastEvent is the highest number of the event at which a daemon is killed.
	lastEvent = 60
)

func TestMain(m *testing.M) {
	gvisor.HandleReexec()
	if text := os.Getenv(lifeEnv); text != "" {
		out, log := os.Stdout, os.Stderr
		var l life
		err := errors.Join(json.Unmarshal([]byte(text), &l), gvisor.DetachStdio()) // machines would otherwise hold the standard streams open
		if err == nil {
			err = lead(l, out, log)
		}
		if err != nil {
			fmt.Fprintln(log, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if os.Getuid() == 0 && os.Getenv(ownMountsEnv) == "" {
		os.Exit(runWithOwnMounts())
	}
	os.Exit(m.Run())
}

// TestKilled kills the daemons of two installations at random events, and adds hardships
// to some of their lives.
func TestKilled(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("starting sandboxes takes root")
	}
	rounds := seedtest.Rounds(t, 12) // for all installations together
	seed := seedtest.Seed(t)
	imagetest.Acquire(t, "debian")
	imagetest.Acquire(t, "node24")
	builds := makeBuilds(t)
	const installations = 2
	hard := chooseHardships(rand.New(rand.NewPCG(seed, 2)), installations, rounds/installations)
	for n := range installations {
		t.Run(strconv.Itoa(n), func(t *testing.T) {
			t.Parallel()
			seed := seed + uint64(n)
			i := installation{Dir: t.TempDir(), Images: imagetest.Dir(t), build: builds[0]}
			mountDisk(t, i.Dir)
			kill(t, i, builds, rand.New(rand.NewPCG(seed, 0)), hard[n])
		})
	}
}

// makeBuilds makes two builds whose programs differ by a byte at their ends.
func makeBuilds(t *testing.T) (builds [2]build) {
	t.Helper()
	guest, sentry := buildGuest(t), embedded.Sentry()
	if sentry == nil {
		sentry = checktest.Must(os.ReadFile("/proc/self/exe"))(t)
	}
	dir := t.TempDir()
	for n := range builds {
		path := filepath.Join(dir, fmt.Sprintf("sentry-%d", n))
		checktest.OK(t, os.WriteFile(path, sentry, 0o755))
		tool := checktest.Must(imagetest.Open(t).Tool(t.Context(), "cay-guest", map[string][]byte{"cay-guest": guest}))(t)
		builds[n] = build{
			Tool: sandboxd.Tool{Mount: machine.Mount{Source: tool, Target: "/.cay"}, Init: []string{"/.cay/cay-guest"}}, Sentry: path,
		}
		guest, sentry = append(guest[:len(guest):len(guest)], 0), append(sentry[:len(sentry):len(sentry)], 0)
	}
	return builds
}

// buildGuest builds the guest's program from the current source.
func buildGuest(t *testing.T) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "cay-guest")
	build := exec.CommandContext(t.Context(), "go", "build", "-ldflags=-s -w", "-o", path, "github.com/cayhq/cay/cmd/cay-guest")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build cay-guest: %v\n%s", err, out)
	}
	program, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return program
}

// kill kills the daemon of an installation once for each hardship, and then deletes
// everything and checks that nothing is left.
func kill(t *testing.T, i installation, builds [2]build, r *rand.Rand, hard []hardship) {
	var known Known
	var did []string // actions of all lives so far
	where := make(map[string]int)
	current, upgrades := 0, 0 // the build; how many upgrades were completed
	defer func() {
		t.Logf("it died at %v, with the hardships %q; %d upgrades were completed", where, hard, upgrades)
	}()
	for n, h := range hard {
		l := life{Installation: i, Seed: r.Uint64(), Dies: 1 + r.Int32N(lastEvent), Hardship: h, Known: known}
		switch h {
		case powerCut:
			l.Synced = t.TempDir()
		case upgrade:
			l.Notes = t.TempDir()
			l.Upgrade = &upgrading{At: l.Dies, To: builds[1-current], Dies: 1 + r.Int32N(lastEvent)}
			l.Dies += 1 + r.Int32N(lastEvent)
		}
		var event string
		var its []string
		var upgraded bool
		event, its, known, upgraded = leadElsewhere(t, l)
		if upgraded {
			upgrades++
			current = 1 - current
			i.build = builds[current]
		}
		did = append(did, fmt.Sprintf("life %d (%q): %s, killed at %q, %+v", n, h, strings.Join(its, ", "), event, known))
		if t.Failed() {
			t.Fatalf("in life %d (%q) with seed %d, killed at event %d, after\n%s", n, h, l.Seed, l.Dies, strings.Join(did[max(0, len(did)-10):], "\n"))
		}
		where[event]++
		switch h {
		case fullDisk:
			if err := resizeDisk(i.Dir, diskSize); err != nil { // in case the daemon died before it did this
				t.Fatal(err)
			}
		case powerCut:
			cutPower(t, i, l.Synced, r)
			known.Cut = true
		}
	}
	leadElsewhere(t, life{Installation: i, Seed: r.Uint64(), Known: known})
	if !t.Failed() {
		clean(t, i)
	}
}

// leadElsewhere runs a life in a process of its own, which another may replace. It returns
// the event at which the last daemon died, the actions it took, what is known of the
// sandbox afterwards, and whether an upgrade was completed.
func leadElsewhere(t *testing.T, l life) (event string, did []string, known Known, upgraded bool) {
	t.Helper()
	text, err := json.Marshal(l)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), lifeEnv+"="+string(text))
	log := new(strings.Builder)
	cmd.Stderr = log
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	// The process of an upgrade is not this process's child, and may hang, too.
	defer context.AfterFunc(ctx, func() { out.Close() })()
	known = l.Known
	for lines := bufio.NewScanner(out); lines.Scan(); {
		var r report
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			t.Errorf("the daemon said %q", lines.Text())
			continue
		}
		if r.Event != "" {
			event = r.Event
			continue // the other fields date from the start of the life
		}
		if r.Upgraded {
			upgraded = true
			did = append(did, "upgraded")
			continue
		}
		if r.Does != "" {
			did = append(did, r.Does)
			continue
		}
		if known = r.Known; r.Wrong != "" {
			t.Errorf("it found: %s", r.Wrong)
		}
	}
	err = cmd.Wait()
	status, _ := cmd.ProcessState.Sys().(syscall.WaitStatus)
	if ctx.Err() != nil {
		t.Error("it hung")
	} else if l.Dies != 0 && !t.Failed() && !upgraded && status.Signal() != syscall.SIGKILL {
		t.Errorf("it was not killed: %v", err)
	} else if l.Dies != 0 && !t.Failed() && event == "" {
		t.Error("it ended without being killed")
	} else if l.Dies == 0 && err != nil {
		t.Errorf("it failed: %v", err)
	}
	if t.Failed() {
		t.Log(log)
	}
	return event, did, known, upgraded
}

// clean deletes everything in an installation, and checks that nothing is left.
func clean(t *testing.T, i installation) {
	t.Helper()
	ctx := sandboxtest.As(t.Context(), sandboxtest.Default)
	events := make(chan struct{}, 1)
	e, end, err := i.open(ctx, opening{warnings: t.Output(), reached: func(string) {
		select {
		case events <- struct{}{}:
		default:
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	page, err := e.List(ctx, sandbox.ListParams{Limit: 200})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range page.Items {
		if err := e.Delete(ctx, s.ID); err != nil {
			t.Errorf("delete %s (%s): %v", s.Name, s.Status, err)
		}
	}
	snaps, err := e.ListSnapshots(ctx, sandbox.SnapshotListParams{Limit: 200})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range snaps.Items {
		if _, err := e.DeleteSnapshot(ctx, s.ID, sandbox.DeleteSnapshotParams{}); err != nil {
			t.Errorf("delete %s: %v", s.ID, err)
		}
	}
	// Files are removed in the background.
	timeout := time.After(time.Minute)
	for left := files(t, i); len(left) > 0; left = files(t, i) {
		select {
		case <-events:
		case <-timeout:
			t.Fatalf("of snapshots there are %q", left)
		}
	}
	if err := end(); err != nil {
		t.Error(err)
	}
	if left, err := filepath.Glob(filepath.Join(i.Dir, "machines", "*", "*")); err != nil || len(left) > 0 {
		t.Errorf("of machines there are %q, %v", left, err)
	}
	if left := holders(t, i.Dir); len(left) > 0 {
		t.Errorf("processes are left: %v", left)
	}
}

// files returns the files of snapshots, of kept programs, and of drafts.
func files(t *testing.T, i installation) (left []string) {
	t.Helper()
	for _, dir := range []string{"snapshots/data", "snapshots/names", "programs/data", "programs/names"} {
		entries, err := os.ReadDir(filepath.Join(i.Dir, dir))
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		for _, entry := range entries {
			left = append(left, filepath.Join(dir, entry.Name()))
		}
	}
	return left
}
