package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/cayhq/cay/internal/config"
	"github.com/cayhq/cay/internal/systemd"
	"github.com/cayhq/cay/workflow"
)

// Supervision is how Run works with the manager of its service. The zero value has no
// manager, and a configuration that stays.
type Supervision struct {
	// Unit gets notices: ready, reloading, alive, stopping.
	Unit *systemd.Unit
	// Reload receives functions that read the configuration again; Run takes over the
	// settings that can change while it runs, and logs the names of others that changed.
	Reload <-chan func() (config.Config, error)
	// Level is the level of the logger, to be changed by a reload.
	Level *slog.LevelVar
}

// supervise sends notices to the manager and reloads the configuration, until end is
// called, which waits for the end of both.
func (d *Daemon) supervise(ctx context.Context) (end func()) {
	s := d.opts.Supervision
	d.notify(s.Unit.Ready(d.status()))
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var all sync.WaitGroup
	if s.Reload != nil {
		all.Go(func() { d.followConfig(ctx, s) })
	}
	if limit := s.Unit.Watchdog(); limit > 0 {
		all.Go(func() { d.feedWatchdog(ctx, s.Unit, limit) })
	}
	return func() {
		cancel()
		all.Wait()
	}
}

// status is the line about a serving daemon in "systemctl status".
func (d *Daemon) status() string {
	if g := d.GatewayURL(); g != "" {
		return fmt.Sprintf("serves the API at %s, the AI gateway at %s", d.URL(), g)
	}
	return "serves the API at " + d.URL()
}

// notify logs a notice that did not reach the manager.
func (d *Daemon) notify(err error) {
	if err != nil {
		d.log.Warn("the service manager was not told", "error", err)
	}
}

// feedWatchdog asks the databases twice in each interval, and tells the manager that the
// daemon is alive, unless a database gives no answer. The manager then restarts the
// daemon, which takes over its sandboxes. An answer that is an error, such as a full disk,
// counts as an answer: a restart would not mend its cause.
func (d *Daemon) feedWatchdog(ctx context.Context, unit *systemd.Unit, limit time.Duration) {
	tick := time.NewTicker(limit / 2)
	defer tick.Stop()
	for {
		err := d.probe(ctx, limit/2)
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, context.DeadlineExceeded):
			d.log.ErrorContext(ctx, "a database gives no answer; the watchdog is not told that the daemon is alive", "error", err)
		default:
			if err != nil {
				d.log.ErrorContext(ctx, "a database answers with an error", "error", err)
			}
			d.notify(unit.Alive())
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// probe asks each database of this machine. The database of workflows on a PostgreSQL is
// another machine's, and no restart of this daemon brings it back. Errors:
// context.DeadlineExceeded, if there is no answer in time.
func (d *Daemon) probe(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	errs := []error{d.db.Probe(ctx), d.flows.Probe(ctx)}
	if d.gateway != nil {
		errs = append(errs, d.gateway.db.Probe(ctx))
	}
	if d.workflows != nil && d.cfg.WorkflowDatabase == "" {
		_, err := d.workflows.For("").ListRuns(ctx, workflow.Query{Limit: 1})
		if err != nil {
			err = fmt.Errorf("read database %s: %w", d.cfg.WorkflowFile(), err)
		}
		errs = append(errs, err)
	}
	// The drivers name an interruption in words of their own.
	if ctx.Err() != nil {
		errs = append(errs, ctx.Err())
	}
	return errors.Join(errs...)
}

// followConfig takes over changed settings.
func (d *Daemon) followConfig(ctx context.Context, s Supervision) {
	current := d.cfg // whose fields other goroutines read
	for {
		select {
		case <-ctx.Done():
			return
		case read := <-s.Reload:
			d.notify(s.Unit.Reloading())
			status := d.status()
			next, err := d.reload(ctx, current, read)
			if err == nil {
				current.Quota, current.LogLevel = next.Quota, next.LogLevel
			} else {
				d.log.ErrorContext(ctx, "the configuration is wrong; the settings stay as they were", "error", err)
				status += "; the last reload failed, see the log"
			}
			d.notify(s.Unit.Ready(status))
		}
	}
}

// reload takes over what can change while the daemon runs: the log level, the default
// quota and the gateway's file. Either all of it changes, or nothing.
func (d *Daemon) reload(ctx context.Context, current config.Config, read func() (config.Config, error)) (config.Config, error) {
	next, err := read()
	if err != nil {
		return next, err
	}
	if d.gateway != nil { // it checks the file before it changes anything
		if err := d.gateway.live.Reload(ctx); err != nil {
			return next, err
		}
	}
	if err := d.accounts.SetDefaultQuota(next.Quota.Account()); err != nil {
		return next, err
	}
	if d.opts.Supervision.Level != nil {
		d.opts.Supervision.Level.Set(next.LogLevel)
	}
	applied, later := changes(current, next)
	d.log.InfoContext(ctx, "the configuration was read again", "changed", strings.Join(applied, ", "))
	if len(later) > 0 {
		d.log.WarnContext(ctx, "changed settings that need a restart", "settings", strings.Join(later, ", "))
	}
	return next, nil
}

// changes returns the keys of settings that differ: those that reload takes over, and those
// that need a restart.
func changes(before, after config.Config) (applied, later []string) {
	was := before.Settings()
	for i, s := range after.Settings() {
		switch {
		case s.String() == was[i].String():
		case s.Key == "log_level" || strings.HasPrefix(s.Key, "quota."):
			applied = append(applied, s.Key)
		default:
			later = append(later, s.Key)
		}
	}
	if !reflect.DeepEqual(before.Pools, after.Pools) {
		later = append(later, "pools")
	}
	return applied, later
}
