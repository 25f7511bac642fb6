package daemon

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/config"
	"github.com/cayhq/cay/internal/handover"
)

// The names of the sockets that a daemon hands over, or gets from systemd.
const (
	apiSocket     = "api"
	gatewaySocket = "gateway"
)

const (
	// startPatience is how long the program of an upgrade may take until it waits for this
	// process to stop. Meanwhile this process serves.
	startPatience = 30 * time.Second
	// upgradePatience is how long it may then take until it serves. Meanwhile nobody does.
	upgradePatience = 2 * time.Minute
)

// Handover is how Run takes over from another process, and lets others take over. The zero
// value does neither.
type Handover struct {
	// From is the process whose place this process takes; nil if there is none.
	From *handover.Predecessor
	// Sockets are inherited, from that process or from systemd; nil if there are none.
	Sockets *handover.Sockets
	// Program is how to start a process that replaces this one. Its Path is the default.
	Program handover.Program
	// Again receives a value to start Program.Path again.
	Again <-chan struct{}
	// Announce tells the service manager that another process is the main one. Nil: there
	// is no manager.
	Announce func(pid int) error

	relapsed bool // an upgrade has failed after this process had stopped
}

// upgrade is a request for another process to take over.
type upgrade struct {
	handover.Request
	done func(*handover.Result, error) // called once
}

// Run runs a daemon until ctx ends or another process has taken over. It calls ready, once
// the daemon answers, with the daemon's URL and the URL of its AI gateway, "" if there is
// none.
func Run(ctx context.Context, cfg config.Config, opts Options, ready func(url, gatewayURL string)) error {
	h := &opts.Handover
	if h.From != nil {
		h.Sockets = h.From.Sockets()
	}
	defer func() { h.Sockets.Close() }()
	if err := h.From.Await(ctx, cfg.Data, cay.Version()); err != nil {
		return err
	}
	startCollector()
	for {
		failed, err := runUntil(ctx, cfg, opts, ready)
		if err != nil && h.relapsed {
			return fmt.Errorf("go on after an upgrade that failed: %w", err)
		}
		if failed == nil {
			return err
		}
		// The new process has failed, and this process serves again on the same sockets.
		h.From, h.Sockets, h.relapsed = nil, failed.sockets, true
		ready = failed.report
	}
}

// relapse is a hand-over that failed after this process had stopped.
type relapse struct {
	sockets *handover.Sockets
	report  func(url, gatewayURL string) // call it when this process serves again
}

// runUntil runs a daemon until ctx ends, or another process has taken over, or has failed
// to do that after this process had stopped; then it returns a relapse.
func runUntil(ctx context.Context, cfg config.Config, opts Options, ready func(url, gatewayURL string)) (*relapse, error) {
	d, err := New(ctx, cfg, opts)
	if err != nil {
		return nil, err
	}
	if err := reapEphemeral(ctx, cfg, d.log); err != nil {
		d.log.WarnContext(ctx, "leftovers of commands that died were not removed", "error", err)
	}
	if err := d.Start(ctx); err != nil {
		return nil, errors.Join(err, d.Stop())
	}
	opts.Handover.Sockets.Close() // those that the configuration does not ask for
	upgrades := make(chan upgrade)
	over := make(chan struct{})
	control, err := d.serveControl(upgrades, over)
	if err != nil {
		close(over)
		return nil, errors.Join(err, d.Stop())
	}
	if err := opts.Handover.From.Serving(); err != nil {
		d.log.WarnContext(ctx, "the process that this one has replaced did not say that it ends", "error", err)
	}
	endSupervision := d.supervise(ctx)
	ready(d.URL(), d.GatewayURL())
	debug.FreeOSMemory() // three quarters of the heap are garbage of the start
	failed, err := d.waitForEnd(ctx, control, upgrades, endSupervision)
	close(over)
	if failed == nil {
		control.Wait() // requests for an upgrade hear of its result
	}
	return failed, err
}

// serveControl serves requests for upgrades, nil if the daemon cannot be replaced. The
// requests wait in upgrades, one at a time, until over is closed.
func (d *Daemon) serveControl(upgrades chan<- upgrade, over <-chan struct{}) (*handover.Control, error) {
	if d.opts.Handover.Program.Path == "" {
		return nil, nil
	}
	return handover.Serve(d.cfg.Data, d.log, func(r handover.Request) (*handover.Result, error) {
		type result struct {
			*handover.Result
			error
		}
		done := make(chan result, 1)
		select {
		case upgrades <- upgrade{r, func(r *handover.Result, err error) { done <- result{r, err} }}:
		case <-over:
			return nil, errStopping
		}
		got := <-done
		return got.Result, got.error
	})
}

// waitForEnd serves until ctx ends, a server fails, or another process takes over; then it
// ends the supervision and stops the daemon.
func (d *Daemon) waitForEnd(ctx context.Context, control *handover.Control, upgrades <-chan upgrade, endSupervision func()) (*relapse, error) {
	stop := func() error {
		endSupervision()
		d.notify(d.opts.Supervision.Unit.Stopping())
		return errors.Join(control.Close(), d.Stop())
	}
	var gateway chan error // nil: never
	if d.gateway != nil {
		gateway = d.gateway.served
	}
	for {
		var u upgrade
		select {
		case <-ctx.Done():
			return nil, stop()
		case err := <-gateway:
			gateway <- err
			return nil, stop()
		case err := <-d.served:
			d.served <- err
			return nil, stop()
		case u = <-upgrades:
		case <-d.opts.Handover.Again:
			u.done = func(_ *handover.Result, err error) {
				if err != nil {
					d.log.Error("the upgrade failed", "error", err)
				}
			}
		}
		next, err := d.startSuccessor(ctx, u.Program)
		if err != nil {
			u.done(nil, err)
			continue
		}
		endSupervision() // the manager hears of the next process instead of a stop
		return d.yieldTo(ctx, next, u, control)
	}
}

// startSuccessor starts a process that waits for this one to stop.
func (d *Daemon) startSuccessor(ctx context.Context, path string) (*handover.Successor, error) {
	p := d.opts.Handover.Program
	if path != "" {
		p.Path = path
	}
	sockets := []handover.Shared{{Name: apiSocket, Address: d.cfg.Listen, Listener: d.listener}}
	if d.gateway != nil && d.gateway.listener != nil {
		sockets = append(sockets, handover.Shared{Name: gatewaySocket, Address: d.cfg.GatewayAddress(), Listener: d.gateway.listener})
	}
	d.log.InfoContext(ctx, "a new process is to take over", "program", p.Path)
	ctx, cancel := context.WithTimeoutCause(ctx, startPatience, fmt.Errorf("it took more than %v", startPatience))
	defer cancel()
	return handover.Start(ctx, p, d.cfg.Data, sockets)
}

// yieldTo stops the daemon and lets the next process begin. Connections wait meanwhile.
func (d *Daemon) yieldTo(ctx context.Context, next *handover.Successor, u upgrade, control *handover.Control) (*relapse, error) {
	began := time.Now()
	if err := errors.Join(control.Close(), d.Stop()); err != nil {
		d.log.WarnContext(ctx, "the daemon did not stop cleanly before another takes over", "error", err)
	}
	stopped := time.Now()
	bound, cancel := context.WithTimeoutCause(ctx, upgradePatience, fmt.Errorf("it took more than %v", upgradePatience))
	defer cancel()
	err := next.Begin(bound)
	if ctx.Err() != nil && err != nil { // this process was told to end, and the next has ended
		next.Kill()
		u.done(nil, errStopping)
		return nil, nil
	}
	if err != nil {
		d.log.ErrorContext(ctx, "the new process failed; the old one goes on", "error", err)
		return &relapse{next.Sockets(), func(string, string) {
			u.done(nil, cay.Errorf(cay.CodeOf(err), "%v; the old process serves again", err))
			control.Wait()
		}}, nil
	}
	if d.opts.Handover.Announce != nil {
		if err := d.opts.Handover.Announce(next.PID()); err != nil {
			d.log.WarnContext(ctx, "the service manager does not know the new process", "error", err)
		}
	}
	d.log.InfoContext(ctx, "another process has taken over", "process", next.PID(), "version", next.Version,
		"stop", stopped.Sub(began), "start", time.Since(stopped))
	u.done(&handover.Result{PID: next.PID(), Version: next.Version}, nil)
	if err := next.Leave(); err != nil {
		d.log.WarnContext(ctx, "the new process did not hear that this one ends", "error", err)
	}
	return nil, nil
}
