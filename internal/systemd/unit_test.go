package systemd_test

import (
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cayhq/cay/internal/systemd"
)

// manager listens as a service manager does.
func manager(t *testing.T) (socket string, next func() string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "notify")
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return socket, func() string {
		t.Helper()
		if err := c.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 4096)
		n, err := c.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		return string(b[:n])
	}
}

func env(pairs map[string]string) func(string) string {
	return func(name string) string { return pairs[name] }
}

func TestUnit_Notices(t *testing.T) {
	t.Parallel()
	socket, next := manager(t)
	u := systemd.FromEnv(env(map[string]string{"NOTIFY_SOCKET": socket, "WATCHDOG_USEC": "60000000", "WATCHDOG_PID": "7"}), 7)
	if u.Watchdog() != time.Minute {
		t.Errorf("watchdog: %v", u.Watchdog())
	}
	for _, tc := range []struct {
		send func() error
		want string
	}{
		{func() error { return u.Ready("serves\nREADY=0") }, "READY=1\nSTATUS=serves READY=0"},
		{u.Alive, "WATCHDOG=1"},
		{u.Stopping, "STOPPING=1"},
		{func() error { return u.MainPID(8) }, "MAINPID=8\nREADY=1"},
		{func() error { return u.Status("waits") }, "STATUS=waits"},
	} {
		if err := tc.send(); err != nil {
			t.Fatal(err)
		}
		if got := next(); got != tc.want {
			t.Errorf("got %q, want %q", got, tc.want)
		}
	}
	if err := u.Reloading(); err != nil {
		t.Fatal(err)
	}
	if got := next(); !strings.HasPrefix(got, "RELOADING=1\nMONOTONIC_USEC=") {
		t.Errorf("got %q", got)
	}
}

func TestUnit_NoManager(t *testing.T) {
	t.Parallel()
	u := systemd.FromEnv(env(map[string]string{"WATCHDOG_USEC": "1000"}), 1)
	if u != nil || u.Watchdog() != 0 {
		t.Fatalf("a unit without a manager: %+v", u)
	}
	if err := u.Ready("x"); err != nil {
		t.Error(err)
	}
}

func TestUnit_WatchdogOfAnother(t *testing.T) {
	t.Parallel()
	u := systemd.FromEnv(env(map[string]string{"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": "1000", "WATCHDOG_PID": "8"}), 7)
	if u == nil || u.Watchdog() != 0 {
		t.Fatalf("watchdog of another process: %v", u.Watchdog())
	}
}

func TestUnit_ManagerGone(t *testing.T) {
	t.Parallel()
	u := systemd.FromEnv(env(map[string]string{"NOTIFY_SOCKET": filepath.Join(t.TempDir(), "gone")}), 1)
	if err := u.Alive(); err == nil {
		t.Error("a notice to nobody was sent")
	}
}
