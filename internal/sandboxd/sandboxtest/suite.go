package sandboxtest

import (
	"context"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/sandboxd"
	"github.com/cayhq/cay/internal/sandboxd/machine"
	"github.com/cayhq/cay/sandbox"
)

// Config says what to test.
type Config struct {
	// New starts a service without sandboxes; it ends with the test.
	New func(t *testing.T) *Env
}

// Env is a service under test, with hooks into its surroundings.
type Env struct {
	// As returns the service as used by a caller p, one of the variables of this package;
	// the service has to know their teams and projects.
	As func(t *testing.T, p api.Principal) Caller
	// Clock is the service's clock. Nil if time is real.
	Clock *Clock
	// SetQuota sets the quota of a team. Nil if the service's quotas cannot be set.
	SetQuota func(team string, q account.Quota)
	// Kill ends the machine of a session, by the session's id, with the exit x. Nil if
	// that is not possible.
	Kill func(t *testing.T, session string, x machine.Exit)
	// Flow reports a flow as if the machine of a session had seen it. Nil if that is not
	// possible.
	Flow func(t *testing.T, session string, f sandbox.Flow)
	// Outbound offers a connection as if a program of a session had opened it; the
	// handler may take conn. Nil if that is not possible.
	Outbound func(t *testing.T, session string, o sandbox.Outbound, conn net.Conn) (sandbox.Handling, error)
	// Serve starts a program in a sandbox that echoes all data on a TCP port, and returns
	// the port.
	Serve func(t *testing.T, c Caller, id string) (port int)
	// MaxTimeout is the operator's maximal timeout.
	MaxTimeout time.Duration
	// NetworkLimits are the operator's limits. Zero if there are none.
	NetworkLimits sandbox.NetworkLimits
	// NoPause says that sandboxes cannot be paused.
	NoPause bool
	// SavesMemory says that sandboxes can be hibernated and that memory snapshots work.
	SavesMemory bool
}

// Caller is a service with a context for a certain caller.
type Caller struct {
	sandboxd.Service
	Context func(context.Context) context.Context
}

// The callers. A service under test accepts all of them except Nobody. TeamB is another
// tenant; ProjectA and ProjectA2 are two projects of TeamA.
var (
	Default   = api.Principal{TokenID: "tok_default", TeamID: account.DefaultTeam}
	TeamA     = api.Principal{TokenID: "tok_a", TeamID: "team_a"}
	ProjectA  = api.Principal{TokenID: "tok_a1", TeamID: "team_a", ProjectID: "prj_a"}
	ProjectA2 = api.Principal{TokenID: "tok_a2", TeamID: "team_a", ProjectID: "prj_a2"}
	TeamB     = api.Principal{TokenID: "tok_b", TeamID: "team_b"}
	ProjectB  = api.Principal{TokenID: "tok_b1", TeamID: "team_b", ProjectID: "prj_b"}
	Nobody    = api.Principal{}
)

// Projects are the projects of the callers' teams.
var Projects = map[string][]string{
	account.DefaultTeam: {account.DefaultProject},
	"team_a":            {"prj_a", "prj_a2"},
	"team_b":            {"prj_b"},
}

// Run checks the services that cfg starts against the contract of Service.
func Run(t *testing.T, cfg Config) {
	for _, group := range []struct {
		name string
		run  func(*testing.T, Config)
		long bool // see checktest.Long
	}{
		{"Create", testCreate, false},
		{"Invalid", testInvalid, true},
		{"Idempotency", testIdempotency, false},
		{"Quota", testQuota, true},
		{"List", testList, true},
		{"Changes", testChanges, false},
		{"Follow", testFollow, false},
		{"Lifecycle", testLifecycle, false},
		{"Time", testTime, false},
		{"Failure", testFailure, false},
		{"Tenancy", testTenancy, true},
		{"Commands", testCommands, false},
		{"Kept", testKept, true},
		{"Files", testFiles, false},
		{"Network", testNetwork, false},
		{"Ports", testPorts, false},
		{"Flows", testFlows, false},
		{"Outbound", testOutbound, false},
		{"Snapshots", testSnapshots, true},
		{"Sessions", testSessions, true},
		{"SessionRefs", testSessionRefs, true},
		{"Orders", testOrders, true},
		{"Fork", testFork, false},
		{"Drives", testDrives, true},
		{"Concurrency", testConcurrency, false},
	} {
		t.Run(group.name, func(t *testing.T) {
			if group.long {
				checktest.Long(t)
			}
			t.Parallel()
			group.run(t, cfg)
		})
	}
}

// user is a caller in a test, with helpers for frequent calls.
type user struct {
	Caller
	t   *testing.T
	env *Env
	ctx context.Context
}

func (e *Env) user(t *testing.T, p api.Principal) *user {
	c := e.As(t, p)
	return &user{c, t, e, c.Context(t.Context())}
}

// setup starts a service and returns a user for its default caller.
func setup(t *testing.T, cfg Config) *user {
	t.Helper()
	t.Parallel()
	return cfg.New(t).user(t, Default)
}

// Delete stops a sandbox and deletes it.
func (u *user) Delete(ctx context.Context, ref string) error {
	return u.DeleteWith(ctx, ref, sandbox.DeleteParams{})
}

func (u *user) create(p sandbox.CreateParams) *sandbox.Sandbox {
	u.t.Helper()
	s, err := u.Create(u.ctx, p)
	if err != nil {
		u.t.Fatalf("create: %v", err)
	}
	return s
}

func (u *user) get(ref string) *sandbox.Sandbox {
	u.t.Helper()
	s, err := u.Get(u.ctx, ref)
	if err != nil {
		u.t.Fatalf("get %s: %v", ref, err)
	}
	return s
}

// run runs a command to its end and returns its output and its exit.
func (u *user) run(ref string, p sandbox.CommandParams) (string, *sandbox.Exit) {
	u.t.Helper()
	out, err := u.Exec(u.ctx, ref, p)
	if err != nil {
		u.t.Fatalf("exec %v: %v", p.Argv, err)
	}
	defer out.Close()
	text, exit, err := readAll(out)
	if err != nil {
		u.t.Fatalf("output of %v: %v", p.Argv, err)
	}
	if exit == nil {
		u.t.Fatalf("output of %v ended without an exit", p.Argv)
	}
	return text, exit
}

func (u *user) sh(ref, script string) string {
	u.t.Helper()
	text, exit := u.run(ref, sandbox.CommandParams{Argv: []string{"sh", "-c", script}})
	if exit.Code != 0 {
		u.t.Fatalf("%s: exit %d: %s", script, exit.Code, text)
	}
	return text
}

// start starts a command that runs until it is ended.
func (u *user) start(ref string, argv ...string) *sandbox.Command {
	u.t.Helper()
	c, err := u.Start(u.ctx, ref, sandbox.CommandParams{Argv: argv})
	if err != nil {
		u.t.Fatalf("start %v: %v", argv, err)
	}
	return c
}

func readAll(out sandbox.Output) (string, *sandbox.Exit, error) {
	var (
		text strings.Builder
		exit *sandbox.Exit
	)
	for {
		ev, err := out.Next()
		if err == io.EOF {
			return text.String(), exit, nil
		}
		if err != nil {
			return text.String(), exit, err
		}
		text.Write(ev.Data)
		if ev.Exit != nil {
			exit = ev.Exit
		}
	}
}

// ending returns a function that waits for a sandbox to end by itself and returns the
// sandbox then.
func (u *user) ending(ref string) func() *sandbox.Sandbox {
	u.t.Helper()
	w, err := u.Watch(u.ctx, ref, ".", sandbox.WatchParams{})
	if err != nil {
		u.t.Fatalf("watch: %v", err)
	}
	return func() *sandbox.Sandbox {
		u.t.Helper()
		defer w.Close()
		for {
			if _, err := w.Next(); err == io.EOF {
				break
			} else if err != nil {
				u.t.Fatalf("watch: %v", err)
			}
		}
		// The end has begun: Stop waits for it and changes nothing.
		s, err := u.Stop(u.ctx, ref)
		if err != nil {
			u.t.Fatalf("wait for the end of %s: %v", ref, err)
		}
		return s
	}
}

func wantStatus(t *testing.T, s *sandbox.Sandbox, status sandbox.Status, reason sandbox.Reason) {
	t.Helper()
	if s.Status != status || s.Reason != reason {
		t.Fatalf("sandbox is %s (%q, %s), want %s (%q)", s.Status, s.Reason, s.Message, status, reason)
	}
}
