// Command cay-bench measures the machine that it runs on: cay as its users use it, beside
// other programs that do the same work. The release of cay does not
// contain the benchmark; see package bench and docs/benchmarks.md.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/bench"
	"github.com/cayhq/cay/internal/config"
	"github.com/cayhq/cay/internal/sandboxd/guest/initd"
	"github.com/cayhq/cay/internal/sandboxd/gvisor"
)

// The first argument of a process that cay-bench starts from its own program.
const (
	asDaemon    = "daemon"    // the daemon that is measured
	asWorkflows = "workflows" // a program with workflows
	asField     = "field"     // the provider and the clients of a gateway
	asGuest     = "guest"     // PID 1 of a sandbox, for builds without cay-guest embedded
)

// exitUsage is the exit code for a command line that cannot be understood.
const exitUsage = 2

func main() {
	gvisor.HandleReexec() // first of all: this process may be a helper
	log.SetOutput(io.Discard)
	s := streams{os.Stdin, os.Stdout, os.Stderr} // sandboxes must not inherit them
	err := gvisor.DetachStdio()
	if err == nil {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		err = s.run(ctx, os.Args[1:])
	}
	os.Exit(s.report(err))
}

// streams are the standard streams of the process.
type streams struct {
	stdin          io.Reader
	stdout, stderr io.Writer
}

// usageError is a command line that cannot be understood.
type usageError struct{ error }

func usagef(format string, args ...any) error { return &usageError{fmt.Errorf(format, args...)} }

// report prints an error and its hint, and returns the exit code.
func (s streams) report(err error) int {
	if err == nil {
		return 0
	}
	fmt.Fprintln(s.stderr, "cay-bench:", err)
	var e *cay.Error
	if errors.As(err, &e) && e.Hint != "" {
		fmt.Fprintln(s.stderr, "          ", e.Hint)
	}
	if errors.As(err, new(*usageError)) {
		return exitUsage
	}
	return 1
}

// run runs the process that the arguments name: a measurement, or one of its helpers.
func (s streams) run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return s.measure(ctx, args)
	}
	switch as, rest := args[0], args[1:]; as {
	case asDaemon:
		return s.serve(ctx, rest)
	case asWorkflows:
		return bench.ServeWorkflows(ctx, rest, s.stdin, s.stdout)
	case asField:
		return bench.ServeField(ctx, rest, s.stdin, s.stdout)
	case asGuest:
		os.Exit(initd.Main())
	}
	return s.measure(ctx, args)
}

// serve is the daemon that is measured.
func (s streams) serve(ctx context.Context, args []string) error {
	fl := newFlags(asDaemon, s.stderr)
	world := fl.String("world", "", "what sandboxes find outside")
	pool := fl.Int("pool", 0, "machines that wait")
	cpuProfile := fl.String("cpuprofile", "", "file for a CPU profile")
	if err := fl.Parse(args); err != nil {
		return &usageError{err}
	}
	cfg, err := config.Load(config.Sources{File: os.Getenv("CAY_CONFIG"), Env: os.Getenv})
	if err != nil {
		return err
	}
	logger := slog.New(slog.NewTextHandler(s.stderr, &slog.HandlerOptions{Level: max(cfg.LogLevel, slog.LevelWarn)}))
	return bench.ServeDaemon(ctx, cfg, s.stdin, s.stdout, logger, *world, *pool, *cpuProfile)
}
