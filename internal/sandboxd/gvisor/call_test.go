package gvisor

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/unet"
	"gvisor.dev/gvisor/pkg/urpc"
	gvsandbox "gvisor.dev/gvisor/runsc/sandbox"

	"github.com/cayhq/cay"
)

// A call that a sentry never answers ends at its timeout or with the caller's context.
func TestCallWithin_NoAnswer(t *testing.T) {
	errGone := errors.New("the caller has gone")
	gone, cancel := context.WithCancelCause(t.Context())
	cancel(errGone)
	for _, c := range []struct {
		name    string
		ctx     context.Context
		timeout time.Duration
		want    error
		code    cay.Code
	}{
		{"Timeout", t.Context(), time.Millisecond, nil, cay.Unavailable},
		{"Caller", gone, time.Hour, errGone, cay.Internal},
	} {
		t.Run(c.name, func(t *testing.T) {
			ours, sentrys, err := unet.SocketPair(false)
			if err != nil {
				t.Fatal(err)
			}
			defer sentrys.Close()
			conn := urpc.NewClient(ours)
			defer conn.Close()
			err = callWithin(c.ctx, c.timeout, conn, "containerManager.Restore", nil)
			if cay.CodeOf(err) != c.code || c.want != nil && !errors.Is(err, c.want) {
				t.Errorf("got %v (%s)", err, cay.CodeOf(err))
			}
		})
	}
}

// connect does not wait for a sentry that accepts no connections.
func TestConnect_Full(t *testing.T) {
	path := filepath.Join(t.TempDir(), "control")
	listening, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(listening)
	dir, err := unix.Open(filepath.Dir(path), unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(dir)
	short := fmt.Sprintf("/proc/self/fd/%d/control", dir)
	if err := errors.Join(unix.Bind(listening, &unix.SockaddrUnix{Name: short}), unix.Listen(listening, 0)); err != nil {
		t.Fatal(err)
	}
	st := &state{Sandbox: &gvsandbox.Sandbox{ControlSocketPath: path}}
	const backlog = 10 // and more than any kernel makes of 0
	for range backlog {
		conn, err := connect(st)
		if err != nil {
			if cay.CodeOf(err) != cay.Unavailable {
				t.Fatalf("got %v, want unavailable", err)
			}
			return
		}
		defer conn.Close()
	}
	t.Errorf("%d connections were made that nobody accepts", backlog)
}
