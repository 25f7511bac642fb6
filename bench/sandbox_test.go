package bench_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/procfs"

	"github.com/cayhq/cay/bench"
	"github.com/cayhq/cay/internal/config"
	"github.com/cayhq/cay/internal/image/imagetest"
	"github.com/cayhq/cay/internal/sandboxd/gvisor"
	"github.com/cayhq/cay/sandbox"
)

// beDaemon as the first argument makes the test binary a daemon to measure. The
// other arguments are flags, see serve.
const beDaemon = "be-daemon"

func TestMain(m *testing.M) {
	gvisor.HandleReexec()
	if len(os.Args) > 1 && os.Args[1] == beDaemon {
		stderr := os.Stderr // the runtime puts another in its place
		if err := serve(); err != nil {
			fmt.Fprintln(stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func serve() error {
	stdin, stdout, stderr := os.Stdin, os.Stdout, os.Stderr
	if err := gvisor.DetachStdio(); err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	flags := flag.NewFlagSet(beDaemon, flag.ContinueOnError)
	world, pool := flags.String("world", "", ""), flags.Int("pool", 0, "")
	if err := flags.Parse(os.Args[2:]); err != nil {
		return err
	}
	return bench.ServeDaemon(context.Background(), config.Default(), stdin, stdout, log, *world, *pool, "")
}

// TestSandboxSuite takes one sample of each row from cay, with a small burst,
// and of the rows that show everything an opponent can do.
func TestSandboxSuite(t *testing.T) {
	d, data := startDaemon(t)
	alone := bench.NewSandboxSuite(bench.SandboxOptions{Daemon: d, Burst: 3, Live: 3, Stopped: 1000, StartPooled: startPooled(t)})
	results, err := bench.Run(t.Context(), alone, bench.Options{N: 1})
	if err := errors.Join(err, alone.Close()); err != nil {
		t.Fatal(err)
	}
	beside := bench.NewSandboxSuite(bench.SandboxOptions{
		Daemon: d, Opponents: true, Images: imagetest.Open(t), WorkDir: t.TempDir(),
	})
	more, err := bench.Run(t.Context(), beside, bench.Options{
		N: 1, Rows: []string{"tti_cold", "write_1KiB", "idle_memory"},
	})
	if err := errors.Join(err, beside.Close()); err != nil {
		t.Fatal(err)
	}
	checkResults(t, append(results, more...), alone)

	if err := d.Stop(); err != nil {
		t.Error(err)
	}
	if left, err := filepath.Glob(filepath.Join(data, "run", "*")); err != nil || len(left) > 0 {
		t.Errorf("the daemon has left %q (%v)", left, err)
	}
	fs, err := procfs.NewDefaultFS()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fs.Proc(d.PID); err == nil {
		t.Errorf("the daemon's process %d is still there", d.PID)
	}
}

// startDaemon starts a daemon over a directory of the test's own.
func startDaemon(t *testing.T, args ...string) (_ *bench.Daemon, data string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("starting sandboxes needs root")
	}
	imagetest.Acquire(t, "debian")
	imagetest.Acquire(t, "node24")
	data = t.TempDir()
	if err := os.Symlink(imagetest.Dir(t), filepath.Join(data, "images")); err != nil {
		t.Fatal(err)
	}
	t.Setenv("CAY_DATA", data)
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	d, err := bench.StartDaemon(t.Context(), append([]string{program, beDaemon}, args...), t.Output())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Stop(); err != nil {
			t.Error(err)
		}
	})
	return d, data
}

// startPooled starts a daemon over the same directory as startDaemon's, which the
// caller stops.
func startPooled(t *testing.T) func(ctx context.Context, size int) (*bench.Daemon, error) {
	return func(ctx context.Context, size int) (*bench.Daemon, error) {
		return bench.StartDaemon(ctx, []string{os.Args[0], beDaemon, "--pool", strconv.Itoa(size)}, t.Output())
	}
}

// checkResults wants one sample of each of the suite's rows.
func checkResults(t *testing.T, results []bench.Result, suite *bench.Suite) {
	t.Helper()
	measured := map[string]bool{}
	for _, r := range results {
		if r.Skipped != "" {
			t.Logf("%s by %s: %s", r.Row, r.Opponent, r.Skipped)
			continue
		}
		if r.Opponent == bench.Cay {
			measured[r.Row] = true
		}
		// The memory that the machine has left also depends on other processes,
		// and a difference of two times can be any number. A short operation may
		// take no time by the clock.
		_, part, _ := strings.Cut(r.Row, ".")
		none := r.Median < 0 || r.Median == 0 && r.Unit != "ms" && r.Unit != "s"
		if r.N != 1 || none && part != "available" && part != "added" {
			t.Errorf("%s by %s: %d samples, median %v", r.Row, r.Opponent, r.N, r.Median)
		}
		if r.Commit == "" || r.Machine.CPU == "" || r.Machine.Cores < 1 || r.Machine.MemoryMB < 1 || r.Machine.Kernel == "" {
			t.Errorf("%s by %s does not say where it was measured: %+v", r.Row, r.Opponent, r)
		}
	}
	for _, p := range suite.Probes {
		for _, row := range p.Rows {
			if !measured[row.Name] {
				t.Errorf("row %s was not measured", row.Name)
			}
		}
	}
}

// TestNetworkSuite takes one small sample of each row.
func TestNetworkSuite(t *testing.T) {
	world, err := bench.NewWorld()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := world.Close(); err != nil {
			t.Error(err)
		}
	}()
	d, _ := startDaemon(t, "--world", world.Map())
	suite := bench.NewNetworkSuite(bench.NetworkOptions{
		Daemon: d, World: world, Opponents: true, Images: imagetest.Open(t), WorkDir: t.TempDir(),
		Flows: 30, Sandboxes: 2, Stream: 1 << 20,
	})
	results, err := bench.Run(t.Context(), suite, bench.Options{N: 1})
	if err := errors.Join(err, suite.Close()); err != nil {
		t.Fatal(err)
	}
	checkResults(t, results, suite)
}

// TestStateSuite takes one sample of each row, with few and small sandboxes.
func TestStateSuite(t *testing.T) {
	d, _ := startDaemon(t)
	suite := bench.NewStateSuite(bench.StateOptions{
		Daemon: d, Opponents: true, WorkDir: t.TempDir(),
		Snapshots: []int{2}, Resumes: []int{0, 2}, Changed: 3, Hibernate: []int{2}, Forked: []int{2}, Forks: []int{2},
		Burst: 2, Restore: 3, Restored: 2,
	})
	results, err := bench.Run(t.Context(), suite, bench.Options{N: 1})
	if err := errors.Join(err, suite.Close()); err != nil {
		t.Fatal(err)
	}
	checkResults(t, results, suite)
	for _, r := range results {
		if r.Skipped != "" {
			t.Errorf("%s by %s: %s", r.Row, r.Opponent, r.Skipped)
		}
	}
	checkNothingLeft(t, d)
}

// checkNothingLeft wants a daemon without sandboxes and snapshots.
func checkNothingLeft(t *testing.T, d *bench.Daemon) {
	t.Helper()
	left, err := d.Client.List(t.Context(), sandbox.ListParams{ProjectID: "*"})
	if err != nil || len(left.Items) > 0 {
		t.Errorf("sandboxes are left: %v, %v", left, err)
	}
	snapshots, err := d.Client.ListSnapshots(t.Context(), sandbox.SnapshotListParams{ProjectID: "*"})
	if err != nil || len(snapshots.Items) > 0 {
		t.Errorf("snapshots are left: %v, %v", snapshots, err)
	}
}

// TestVercelSuite takes one small sample of each row, and finds nothing left.
func TestVercelSuite(t *testing.T) {
	const sdk = "../conformance/vercel/node_modules/sandbox-v3"
	if os.Getenv("CAY_CONFORMANCE") != "vercel" {
		t.Skip("make conformance-vercel runs this")
	}
	if _, err := os.Stat(sdk); err != nil {
		t.Fatalf("%s is missing; make conformance-vercel-deps installs it", sdk)
	}
	d, _ := startDaemon(t)
	suite := bench.NewVercelSuite(bench.VercelOptions{
		Daemon: d, SDK: sdk, Stderr: t.Output(), Opponents: true, WorkDir: t.TempDir(), Files: 20, Burst: 2, StartPooled: startPooled(t),
	})
	results, err := bench.Run(t.Context(), suite, bench.Options{N: 1})
	if err := errors.Join(err, suite.Close()); err != nil {
		t.Fatal(err)
	}
	checkResults(t, results, suite)
	for _, r := range results {
		if r.Skipped != "" {
			t.Errorf("%s by %s: %s", r.Row, r.Opponent, r.Skipped)
		}
	}
	checkNothingLeft(t, d)
}

// TestVercelSuite_WithoutSDK names what is missing, and measures the others.
func TestVercelSuite_WithoutSDK(t *testing.T) {
	t.Parallel()
	other := t.TempDir()
	if err := os.WriteFile(filepath.Join(other, "package.json"), []byte(`{"name": "@vercel/sandbox", "version": "2.9.2"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := exec.LookPath("node"); err != nil {
		t.Skip("needs node")
	}
	for dir, want := range map[string]string{
		t.TempDir(): "make conformance-vercel-deps",
		other:       "has @vercel/sandbox 2.9.2, and not version 3",
	} {
		suite := bench.NewVercelSuite(bench.VercelOptions{SDK: dir, Opponents: true, WorkDir: t.TempDir()})
		results, err := bench.Run(t.Context(), suite, bench.Options{N: 1, Rows: []string{"sdk_burst_50"}})
		if err != nil || len(results) != 1 || results[0].N != 0 || !strings.Contains(results[0].Skipped, want) {
			t.Errorf("got %+v, %v; want %q", results, err, want)
		}
	}
}

// TestWorkflowJSSuite takes one small sample of each row, with both lines of the SDK.
func TestWorkflowJSSuite(t *testing.T) {
	if os.Getenv("CAY_CONFORMANCE") != "workflow" {
		t.Skip("make conformance-workflow runs this")
	}
	d, _ := startDaemon(t)
	program := filepath.Join(t.TempDir(), "cay")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, "../cmd/cay").CombinedOutput(); err != nil {
		t.Fatalf("build cay: %v\n%s", err, out)
	}
	suite := bench.NewWorkflowJSSuite(bench.WorkflowJSOptions{
		Daemon: d, Exec: []string{program, "vercel", "exec", "--"}, SDK: "../conformance/workflow", Postgres: "opponents/world-postgres",
		Opponents: true, WorkDir: t.TempDir(), Stderr: t.Output(), Steps: 10, Values: 5,
	})
	results, err := bench.Run(t.Context(), suite, bench.Options{N: 1})
	if err := errors.Join(err, suite.Close()); err != nil {
		t.Fatal(err)
	}
	checkResults(t, results, suite)
	for _, r := range results {
		if r.Skipped != "" && r.Opponent != "postgres" { // which need not be installed
			t.Errorf("%s by %s: %s", r.Row, r.Opponent, r.Skipped)
		}
	}
}

// TestWorkflowJSSuite_WithoutSDK names the missing packages.
func TestWorkflowJSSuite_WithoutSDK(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("node"); err != nil {
		t.Skip("needs node")
	}
	suite := bench.NewWorkflowJSSuite(bench.WorkflowJSOptions{SDK: t.TempDir(), Opponents: true, WorkDir: t.TempDir()})
	results, err := bench.Run(t.Context(), suite, bench.Options{N: 1})
	if err := errors.Join(err, suite.Close()); err != nil || len(results) == 0 {
		t.Fatalf("%d results, %v", len(results), err)
	}
	for _, r := range results {
		if r.N != 0 || !strings.Contains(r.Skipped, "make conformance-workflow-deps") {
			t.Errorf("got %+v", r)
		}
	}
}

func TestStartDaemon_Fails(t *testing.T) {
	t.Parallel()
	d, err := bench.StartDaemon(t.Context(), []string{"/bin/false"}, t.Output())
	if err == nil {
		t.Fatalf("got a daemon at %d", d.PID)
	}
}
