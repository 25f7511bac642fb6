package docker

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// process is a process of this machine. Start tells it from a later one with the
// same id.
type process struct {
	PID   int    `json:"pid,omitempty"`
	Start uint64 `json:"start,omitempty"` // clock ticks after the start of the machine
}

// processOf returns the process that has an id now.
func processOf(pid int) (process, bool) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return process{}, false
	}
	// The name of the program is in brackets, and may hold brackets and blanks.
	fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(fields) < 20 || fields[0][0] == 'Z' {
		return process{}, false
	}
	start, err := strconv.ParseUint(string(fields[19]), 10, 64)
	return process{pid, start}, err == nil
}

// ended reports whether a known process is gone.
func (p process) ended() bool {
	if p.PID == 0 {
		return false
	}
	now, ok := processOf(p.PID)
	return !ok || now != p
}

type peerKey struct{}

// withPeer puts the process at the other end of a connection into ctx.
func withPeer(ctx context.Context, nc net.Conn) context.Context {
	c, ok := nc.(*conn)
	if !ok {
		return ctx
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return ctx
	}
	var cred *unix.Ucred
	if e := raw.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); e != nil || err != nil {
		return ctx
	}
	if p, ok := processOf(int(cred.Pid)); ok {
		return context.WithValue(ctx, peerKey{}, p)
	}
	return ctx // of another PID namespace
}

// peer returns the process that sent a request; the zero value if it is unknown.
func peer(ctx context.Context) process {
	p, _ := ctx.Value(peerKey{}).(process)
	return p
}
