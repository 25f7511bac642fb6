// Package systemd speaks to the manager of a service.
package systemd

import (
	"fmt"
	"net"
	"time"
)

// MainPID tells the service manager, over the socket of NOTIFY_SOCKET, that another process
// is the main one of the unit, and serves. Only the process that is the main one may say so.
func MainPID(socket string, pid int) error {
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: socket, Net: "unixgram"}) // "@" is the abstract name space
	if err != nil {
		return fmt.Errorf("notify the service manager: %w", err)
	}
	defer c.Close()
	if err := c.SetWriteDeadline(time.Now().Add(time.Second)); err != nil {
		return fmt.Errorf("notify the service manager: %w", err)
	}
	if _, err := fmt.Fprintf(c, "MAINPID=%d\nREADY=1", pid); err != nil {
		return fmt.Errorf("notify the service manager: %w", err)
	}
	return nil
}
