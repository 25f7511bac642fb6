// Package systemd speaks the protocol by which a service tells its manager how it is:
// ready, reloading, stopping, still alive (sd_notify(3), sd_watchdog_enabled(3)). Without a
// manager everything here does nothing. The package knows no daemon.
package systemd

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Unit is the service that this process is the main process of. A nil *Unit is a process
// without a manager.
type Unit struct {
	socket   string
	watchdog time.Duration
}

// FromEnv returns the unit of this process, nil if no manager waits for notices. lookup is
// os.Getenv, pid the process's id.
func FromEnv(lookup func(string) string, pid int) *Unit {
	socket := lookup("NOTIFY_SOCKET")
	if socket == "" {
		return nil
	}
	u := &Unit{socket: socket}
	if of := lookup("WATCHDOG_PID"); of != "" && of != strconv.Itoa(pid) {
		return u // the watchdog is for another process
	}
	if usec, err := strconv.ParseInt(lookup("WATCHDOG_USEC"), 10, 64); err == nil && usec > 0 {
		u.watchdog = time.Duration(usec) * time.Microsecond
	}
	return u
}

// Watchdog returns the time within which the manager expects Alive, 0 if it does not.
func (u *Unit) Watchdog() time.Duration {
	if u == nil {
		return 0
	}
	return u.watchdog
}

// Ready tells that the service serves, also after a reload. status is one line for people.
func (u *Unit) Ready(status string) error { return u.send("READY=1", "STATUS="+status) }

// Reloading tells that the configuration is being read again. Ready must follow.
func (u *Unit) Reloading() error {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return fmt.Errorf("read the clock: %w", err)
	}
	return u.send("RELOADING=1", fmt.Sprintf("MONOTONIC_USEC=%d", now.Nano()/1000))
}

// Stopping tells that the service is about to end.
func (u *Unit) Stopping() error { return u.send("STOPPING=1") }

// Alive resets the watchdog.
func (u *Unit) Alive() error { return u.send("WATCHDOG=1") }

// MainPID tells that another process, which serves, is the main process from now on.
func (u *Unit) MainPID(pid int) error { return u.send(fmt.Sprintf("MAINPID=%d", pid), "READY=1") }

// Status shows a line for people, until the next.
func (u *Unit) Status(text string) error { return u.send("STATUS=" + text) }

// send sends one datagram with the assignments. The manager's socket can be full for a
// moment; send waits at most a second.
func (u *Unit) send(assignments ...string) error {
	if u == nil {
		return nil
	}
	for i, a := range assignments {
		assignments[i] = strings.ReplaceAll(a, "\n", " ")
	}
	name := u.socket
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: name, Net: "unixgram"}) // "@" is the abstract name space
	if err != nil {
		return fmt.Errorf("notify the service manager: %w", err)
	}
	defer c.Close()
	if err := c.SetWriteDeadline(time.Now().Add(time.Second)); err != nil {
		return fmt.Errorf("notify the service manager: %w", err)
	}
	if _, err := c.Write([]byte(strings.Join(assignments, "\n"))); err != nil {
		return fmt.Errorf("notify the service manager: %w", err)
	}
	return nil
}

// ClearEnv removes the manager's variables, so that children do not speak for the unit.
func ClearEnv() error {
	for _, name := range []string{"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} {
		if err := os.Unsetenv(name); err != nil {
			return fmt.Errorf("clear %s: %w", name, err)
		}
	}
	return nil
}
