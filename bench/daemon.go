package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"runtime/pprof"
	"strings"
	"sync"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/config"
	"github.com/cayhq/cay/internal/daemon"
	"github.com/cayhq/cay/sandbox"
)

// stopTimeout bounds the end of the daemon with all its sandboxes.
const stopTimeout = 60 * time.Second

// cleanup returns a context for undoing work although ctx may have ended.
func cleanup(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
}

// address is the output of the daemon's process when the daemon answers.
type address struct {
	URL   string `json:"url"`
	Token string `json:"token"`
	PID   int    `json:"pid"`
}

// ServeDaemon is the daemon's side of StartDaemon. It runs a daemon with its
// own data directory and cfg's image store, on a free loopback port and without
// quotas, writes the daemon's address to stdout, and ends the daemon with all
// sandboxes when stdin ends. world, unless empty, is the map of the World that
// the sandboxes see. pool is the size of the daemon's pool. cpuProfile, unless
// empty, is a file for a CPU profile.
func ServeDaemon(ctx context.Context, cfg config.Config, stdin io.Reader, stdout io.Writer, log *slog.Logger, world string, pool int, cpuProfile string) (err error) {
	cfg.Listen, cfg.Quota, cfg.Pool, cfg.Pools = "127.0.0.1:0", config.Quota{}, pool, nil
	var o daemon.Options
	if world != "" {
		if o, err = enter(world, &cfg); err != nil {
			return err
		}
	}
	o.Logger = log
	var a address
	var stop func() error
	if a.URL, a.Token, stop, err = daemon.EphemeralServer(ctx, cfg, o); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	if cpuProfile != "" {
		f, err := os.Create(cpuProfile)
		if err != nil {
			return cay.Errorf(cay.Invalid, "profile cannot be written: %w", err)
		}
		defer f.Close()
		if err := pprof.StartCPUProfile(f); err != nil {
			return fmt.Errorf("start profile: %w", err)
		}
		defer pprof.StopCPUProfile()
	}
	a.PID = os.Getpid()
	if err := json.NewEncoder(stdout).Encode(a); err != nil {
		return fmt.Errorf("tell the address: %w", err)
	}
	ended := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, stdin)
		ended <- err
	}()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done(): // the reader ends with the process
		return nil
	}
}

// Daemon is a daemon under measurement, in a process of its own.
type Daemon struct {
	// Client speaks to it.
	Client *sandbox.Client
	// PID is its process.
	PID int

	cmd   *exec.Cmd
	stdin io.Closer
	at    address
	once  sync.Once
	err   error // of Stop
}

// StartDaemon runs argv, a program that calls ServeDaemon, and returns when the
// daemon answers. The daemon ends when this process ends, even if this process
// is killed. Its standard error is ours.
func StartDaemon(ctx context.Context, argv []string, stderr io.Writer) (_ *Daemon, err error) {
	d := &Daemon{cmd: exec.Command(argv[0], argv[1:]...)}
	d.cmd.Stderr = stderr
	// Ctrl-C goes to this process only, which then ends the daemon in order.
	d.cmd.SysProcAttr = newSession()
	if d.stdin, err = d.cmd.StdinPipe(); err != nil {
		return nil, fmt.Errorf("start daemon: %w", err)
	}
	stdout, err := d.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start daemon: %w", err)
	}
	if err := d.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start daemon: %w", err)
	}
	// Closing its standard input ends the daemon, even while it starts.
	defer context.AfterFunc(ctx, func() { d.stdin.Close() })()
	if err := json.NewDecoder(stdout).Decode(&d.at); err != nil {
		if werr := d.Stop(); werr != nil {
			err = werr
		}
		return nil, fmt.Errorf("start daemon: %w", err)
	}
	d.PID = d.at.PID
	d.Client = sandbox.NewClient(sandbox.ClientOptions{URL: d.at.URL, Token: d.at.Token})
	return d, nil
}

// Stop ends the daemon with all its sandboxes. Calling it again does nothing.
func (d *Daemon) Stop() error {
	d.once.Do(func() {
		d.stdin.Close() // it may be gone already
		kill := time.AfterFunc(stopTimeout, func() { d.cmd.Process.Kill() })
		defer kill.Stop()
		if err := d.cmd.Wait(); err != nil {
			d.err = fmt.Errorf("end daemon: %w", err)
		}
	})
	return d.err
}

// phases returns how many seconds the daemon has spent in each phase of
// creations until now.
func (d *Daemon) phases(ctx context.Context) (map[string]float64, error) {
	families, err := d.metrics(ctx)
	if err != nil {
		return nil, err
	}
	sums := map[string]float64{}
	for _, m := range families["cay_sandbox_create_seconds"].GetMetric() {
		for _, label := range m.GetLabel() {
			sums[label.GetValue()] = m.GetHistogram().GetSampleSum()
		}
	}
	return sums, nil
}

// metrics returns the daemon's Prometheus metrics.
func (d *Daemon) metrics(ctx context.Context) (map[string]*dto.MetricFamily, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, d.at.URL+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+d.at.Token)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, fmt.Errorf("read metrics: %w", err)
	}
	defer resp.Body.Close() // it was only read
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("read metrics: %s", strings.ToLower(resp.Status))
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("read metrics: %w", err)
	}
	return families, nil
}
