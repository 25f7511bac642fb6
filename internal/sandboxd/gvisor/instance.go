package gvisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/runsc/boot"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd/guest"
	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/internal/sandboxd/network"
	"github.com/cayhq/cay/sandbox"
)

// instance is a running machine. Start and Adopt make it, with a watcher goroutine that
// notices its end.
type instance struct {
	r     *Runtime
	st    *state
	group *group
	link  *network.Link

	started bool // by this Runtime

	wait     *longCall // the watcher's connection
	done     chan struct{}
	exit     machine.Exit  // set before done is closed
	asked    atomic.Bool   // Destroy was called
	starved  atomic.Bool   // the cgroup was out of memory, and the sentry killed for it
	oom      *os.File      // tells when that is so; may be nil
	detached atomic.Bool   // Detach was called: the machine goes on without us
	watched  chan struct{} // closed when the watcher has returned

	watchers sync.WaitGroup // killWhenStarved

	// loading is watchLoad's connection, nil if the machine started from its image alone;
	// loaded is closed when everything is loaded.
	loading  *longCall
	loader   *loader // nil if another daemon has started it, too
	loaded   chan struct{}
	unloaded atomic.Pointer[string] // why it ended without

	saving   sync.Mutex // held while the sentry saves
	limiting sync.Mutex // guards st.Limits, and changes of state.json
	pausing  sync.Mutex // held while the machine is paused, or let go on

	freeing chan struct{} // capacity 1; held while the machine's resources on the host are freed
	freed   bool
}

var _ machine.Instance = (*instance)(nil)

func newInstance(r *Runtime, st *state, g *group, link *network.Link, l *loader) (*instance, error) {
	wait, err := connectLong(st)
	if err != nil {
		return nil, err
	}
	in := &instance{
		r: r, st: st, group: g, link: link, wait: wait,
		done: make(chan struct{}), watched: make(chan struct{}), loaded: make(chan struct{}),
		freeing: make(chan struct{}, 1), loader: l,
	}
	if st.Origin != "" {
		if in.loading, err = connectLong(st); err != nil {
			return nil, errors.Join(err, wait.Close())
		}
	}
	if in.oom, err = g.watchOOM(); err != nil {
		err = errors.Join(fmt.Errorf("watch for lack of memory: %w", err), wait.Close())
		if in.loading != nil {
			err = errors.Join(err, in.loading.Close())
		}
		return nil, err
	}
	if in.loading != nil {
		go in.watchLoad()
	} else {
		close(in.loaded)
	}
	if in.oom != nil {
		in.watchers.Go(in.killWhenStarved)
	}
	go in.watch()
	return in, nil
}

// killWhenStarved ends the sentry when its cgroup is out of memory. It returns when the
// file of watchOOM is closed.
func (in *instance) killWhenStarved() {
	if _, err := in.oom.Read(make([]byte, 8)); err != nil {
		return
	}
	in.starved.Store(true)
	pid := in.st.Sandbox.Getpid()
	if pid <= 0 {
		return // it has ended, and been collected
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
		in.r.log.Error("sentry out of memory is not killed", "id", in.st.ID, "error", err)
	}
}

// watch waits for the end of the guest's init or of the sentry, and records the reason.
func (in *instance) watch() {
	defer close(in.watched)
	defer in.wait.Close()
	var ws unix.WaitStatus
	err := in.wait.Call(boot.ContMgrWait, &in.st.ID, &ws)
	if in.detached.Load() {
		return
	}
	// The sentry has ended or is about to: kill it, and reap it.
	if derr := in.st.Sandbox.DestroyContainer(in.st.ID); derr != nil {
		in.r.log.Error("sentry does not end", "id", in.st.ID, "error", derr)
	}
	in.exit = in.judge(ws, err)
	if in.exit.Reason == sandbox.ReasonCrashed {
		in.r.log.Error("sentry crashed", "id", in.st.ID, "message", in.exit.Message, "panic", in.r.panicLog(in.st.ID))
	}
	close(in.done)
	// The guest answers no more. Closing the link tells connected clients now, instead of
	// after a long silence.
	if cerr := in.link.Close(); cerr != nil {
		in.r.log.Error("link of an ended machine is not freed", "id", in.st.ID, "error", cerr)
	}
}

func (in *instance) judge(ws unix.WaitStatus, err error) machine.Exit {
	switch {
	case in.asked.Load():
		return machine.Exit{Reason: sandbox.ReasonRequested}
	case err == nil && ws.Exited():
		return machine.Exit{Reason: sandbox.ReasonExited, Code: ws.ExitStatus(),
			Message: fmt.Sprintf("the guest's init exited with status %d", ws.ExitStatus())}
	case in.unloaded.Load() != nil:
		return machine.Exit{Reason: sandbox.ReasonCrashed, Message: *in.unloaded.Load(), Damaged: in.loader.foundDamage()}
	case in.starved.Load() || in.group.oomKilled():
		return machine.Exit{Reason: sandbox.ReasonOOM, Message: fmt.Sprintf(
			"the sandbox used more than its memory limit of %d MiB", in.memoryLimit())}
	case in.loader.failure() != nil: // the sentry ended before it could report the failed load
		return machine.Exit{Reason: sandbox.ReasonCrashed, Message: notLoaded(in.loader.failure()), Damaged: in.loader.foundDamage()}
	case in.r.lastWords(in.st.ID) != "": // gVisor has passed the fatal signal on to the guest's init, too
		return machine.Exit{Reason: sandbox.ReasonCrashed, Message: "the isolation layer ended unexpectedly" + in.r.lastWords(in.st.ID)}
	case err == nil && ws.Signaled(): // gVisor lets root in the guest do that
		return machine.Exit{Reason: sandbox.ReasonExited, Code: 128 + int(ws.Signal()),
			Message: fmt.Sprintf("the guest's init was killed by signal %d", ws.Signal())}
	default:
		return machine.Exit{Reason: sandbox.ReasonCrashed, Message: "the isolation layer ended unexpectedly"}
	}
}

// panicLog returns the beginning of a crashed sentry's panic message, "" if there is
// none.
func (r *Runtime) panicLog(id string) string {
	f, err := os.Open(filepath.Join(r.dir(id), "panic.log"))
	if err != nil {
		return "" // it has said nothing
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxPanicLog))
	if err != nil {
		r.log.Error("what a sentry said cannot be read", "id", id, "error", err)
	}
	return string(b)
}

// maxPanicLog is how many bytes are read of a sentry's panic message.
const maxPanicLog = 16 << 10

// lastWords returns the reason of a crashed sentry's end, as a clause to append: "" if
// the sentry wrote none.
func (r *Runtime) lastWords(id string) string {
	for line := range strings.Lines(r.panicLog(id)) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "panic:") || strings.HasPrefix(line, "fatal error:") {
			return ": " + strconv.QuoteToGraphic(line)
		}
	}
	return ""
}

// awaitReady returns when the guest accepts connections.
func (in *instance) awaitReady(ctx context.Context) error {
	timer := time.NewTimer(startTimeout)
	defer timer.Stop()
	select {
	case <-in.link.Ready():
		return nil
	case <-in.done:
		return cay.Errorf(cay.Unavailable, "the sandbox ended while it was starting: %s", in.exit.Message)
	case <-timer.C:
		return cay.Errorf(cay.Unavailable, "the sandbox did not start within %s", startTimeout)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (in *instance) ID() string            { return in.st.ID }
func (in *instance) Done() <-chan struct{} { return in.done }
func (in *instance) Exit() machine.Exit    { <-in.done; return in.exit }
func (in *instance) SetNetwork(n sandbox.Network) error {
	return in.link.SetPolicy(n)
}

// SetTraffic implements machine.Instance.
func (in *instance) SetTraffic(ingress, egress int64) { in.link.SetTraffic(ingress, egress) }

// Reset implements machine.Instance.
func (in *instance) Reset(connections []machine.Connection) { in.link.Reset(connections) }

// OnFlow implements machine.Instance.
func (in *instance) OnFlow(f func(sandbox.Flow)) { in.link.OnFlow(f) }

// OnOutbound implements machine.Instance.
func (in *instance) OnOutbound(h machine.OutboundHandler) { in.link.OnOutbound(h) }

// DialGuest implements machine.Instance.
func (in *instance) DialGuest(ctx context.Context) (net.Conn, error) {
	return in.link.Dial(ctx, guest.Port)
}

// Dial implements machine.Instance.
func (in *instance) Dial(ctx context.Context, port uint16) (net.Conn, error) {
	return in.link.DialPort(ctx, port)
}

// Stats implements machine.Instance. The guest reports disk use and processes.
func (in *instance) Stats(context.Context) (machine.Stats, error) {
	u := in.group.usage()
	ingress, egress := in.link.Traffic()
	return machine.Stats{
		CPU: sandbox.Duration(u.cpu), MemoryBytes: u.memory, MemoryPeak: u.memoryPeak,
		IngressBytes: ingress, EgressBytes: egress,
	}, nil
}

// Destroy implements machine.Instance. The next call repeats the steps that failed.
func (in *instance) Destroy(ctx context.Context) error {
	in.asked.Store(true)
	select {
	case in.freeing <- struct{}{}:
		defer func() { <-in.freeing }()
	case <-ctx.Done():
		return fmt.Errorf("destroy machine %s: %w", in.st.ID, context.Cause(ctx))
	}
	if in.freed {
		return nil
	}
	if err := in.freeAll(ctx); err != nil {
		return fmt.Errorf("destroy machine %s: %w", in.st.ID, err)
	}
	in.freed = true
	return nil
}

// freeAll ends the machine and frees its resources on the host. It may be called again.
func (in *instance) freeAll(ctx context.Context) error {
	var kill error
	select {
	case <-in.done:
	default:
		kill = in.st.Sandbox.DestroyContainer(in.st.ID)
	}
	select {
	case <-in.watched:
	case <-ctx.Done():
		return errors.Join(kill, fmt.Errorf("wait for its end: %w", context.Cause(ctx)))
	}
	in.unwatch()
	// The group may have a pager that has not noticed the end, or that a hostile sentry
	// keeps alive.
	err := errors.Join(kill, in.link.Close(), in.group.end(context.WithoutCancel(ctx)), os.RemoveAll(in.r.dir(in.st.ID)))
	if err == nil {
		in.r.unhold(in.st.ID)
	}
	return err
}

// Detach implements machine.Instance.
func (in *instance) Detach() error {
	in.detached.Store(true)
	in.wait.Close()
	if in.loading != nil {
		in.loading.Close()
	}
	<-in.watched
	in.unwatch()
	return in.link.Close()
}

// unwatch ends killWhenStarved, and waits for watchLoad, which ends with the sentry or
// with its connection.
func (in *instance) unwatch() {
	<-in.loaded
	if in.oom != nil {
		in.oom.Close()
		in.watchers.Wait()
	}
}
