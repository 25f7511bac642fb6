package daemon_test

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/config"
	"github.com/cayhq/cay/internal/daemon"
	"github.com/cayhq/cay/internal/db"
	"github.com/cayhq/cay/internal/sandboxd/fake"
	"github.com/cayhq/cay/internal/systemd"
)

// supervised is a daemon whose service manager is the test.
type supervised struct {
	t       *testing.T
	cfg     config.Config
	level   *slog.LevelVar
	log     *records
	url     string
	reload  chan func() (config.Config, error)
	notices <-chan string
	end     func() error
}

// records passes on each line that the daemon logs, and keeps none that nobody waits for.
type records struct{ lines chan string }

func (r *records) Write(p []byte) (int, error) {
	select {
	case r.lines <- string(p):
	default:
	}
	return len(p), nil
}

func supervise(t *testing.T, watchdog string) *supervised {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	checktest.OK(t, err)
	notices := make(chan string, 1000)
	go func() {
		b := make([]byte, 4096)
		for {
			n, err := conn.Read(b)
			if err != nil {
				close(notices)
				return
			}
			notices <- string(b[:n])
		}
	}()
	s := &supervised{
		t: t, cfg: settings(filepath.Join(t.TempDir(), "data")), level: new(slog.LevelVar), log: &records{make(chan string, 1000)},
		reload: make(chan func() (config.Config, error)), notices: notices,
	}
	s.cfg.GatewayListen = "127.0.0.1:0"
	rt := checktest.Must(fake.New(t.TempDir()))(t)
	unit := systemd.FromEnv(func(name string) string {
		return map[string]string{"NOTIFY_SOCKET": socket, "WATCHDOG_USEC": watchdog}[name]
	}, os.Getpid())
	opts := daemon.Options{
		Runtime: rt, Logger: slog.New(slog.NewTextHandler(s.log, &slog.HandlerOptions{Level: s.level})),
		Supervision: daemon.Supervision{Unit: unit, Reload: s.reload, Level: s.level},
	}
	ctx, cancel := context.WithCancel(t.Context())
	ready, done := make(chan string, 1), make(chan error, 1)
	go func() { done <- daemon.Run(ctx, s.cfg, opts, func(url, _ string) { ready <- url }) }()
	select {
	case s.url = <-ready:
	case err := <-done:
		t.Fatal(err)
	}
	s.end = func() error {
		cancel()
		return <-done
	}
	t.Cleanup(func() {
		cancel()
		conn.Close()
	})
	return s
}

// wait returns the next of the strings that contains all parts.
func (s *supervised) wait(from <-chan string, parts ...string) string {
	s.t.Helper()
	timeout := time.After(time.Minute)
	var seen []string
next:
	for {
		select {
		case <-timeout:
			s.t.Fatalf("no %q in %q", parts, seen)
		case got := <-from:
			seen = append(seen, got)
			for _, p := range parts {
				if !strings.Contains(got, p) {
					continue next
				}
			}
			return got
		}
	}
}

func TestRun_Notices(t *testing.T) {
	t.Parallel()
	s := supervise(t, "")
	s.wait(s.notices, "READY=1", "STATUS=serves the API at "+s.url)
	checktest.OK(t, s.end())
	s.wait(s.notices, "STOPPING=1")
}

func TestRun_Reload(t *testing.T) {
	t.Parallel()
	s := supervise(t, "")
	s.wait(s.notices, "READY=1")
	token := checktest.Must(os.ReadFile(s.cfg.AdminTokenFile()))(t)
	accounts := &account.Client{URL: s.url, Token: strings.TrimSpace(string(token))}

	next := s.cfg
	next.LogLevel, next.Quota.Sandboxes, next.Pool, next.Pools = slog.LevelDebug, 3, 1, []config.Pool{{Runtime: "node24", Size: 1}}
	s.reload <- func() (config.Config, error) { return next, nil }
	s.wait(s.notices, "RELOADING=1")
	s.wait(s.log.lines, "read again", "log_level", "quota.sandboxes")
	s.wait(s.log.lines, "need a restart", `settings="pool, pools"`)
	s.wait(s.notices, "READY=1")
	if s.level.Level() != slog.LevelDebug {
		t.Errorf("the level is %v", s.level.Level())
	}
	if me := checktest.Must(accounts.WhoAmI(t.Context()))(t); me.Team.Quota.Sandboxes != 3 {
		t.Errorf("the quota is %+v", me.Team.Quota)
	}

	// A wrong file of the gateway leaves all as it is.
	checktest.OK(t, os.WriteFile(filepath.Join(s.cfg.Data, "gateway.yaml"), []byte("providers: [no"), 0o600))
	next.LogLevel, next.Quota.Sandboxes = slog.LevelWarn, 4
	s.reload <- func() (config.Config, error) { return next, nil }
	s.wait(s.log.lines, "settings stay as they were", "gateway.yaml")
	s.wait(s.notices, "READY=1", "the last reload failed")
	if s.level.Level() != slog.LevelDebug {
		t.Errorf("the level is %v after a reload that failed", s.level.Level())
	}
	if me := checktest.Must(accounts.WhoAmI(t.Context()))(t); me.Team.Quota.Sandboxes != 3 {
		t.Errorf("the quota is %+v after a reload that failed", me.Team.Quota)
	}
	checktest.OK(t, s.end())
}

// A database that gives no answer keeps the daemon from being called alive.
func TestRun_Watchdog(t *testing.T) {
	t.Parallel()
	s := supervise(t, "1000000")
	s.wait(s.notices, "WATCHDOG=1")

	other := checktest.Must(db.Open(t.Context(), s.cfg.DatabaseFile(), db.Options{}))(t)
	defer other.Close()
	locked, unlock, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		done <- other.Write(t.Context(), func(*db.Tx) error {
			close(locked)
			<-unlock
			return nil
		})
	}()
	<-locked
	s.wait(s.log.lines, "a database gives no answer", "cay.db")
	close(unlock)
	checktest.OK(t, <-done)
	for len(s.notices) > 0 { // of before
		<-s.notices
	}
	s.wait(s.notices, "WATCHDOG=1")
	checktest.OK(t, s.end())
}
