package sidecar

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Ports that Listener chooses from: below those that Linux gives to outgoing
// connections, one of which could take a port between two servers.
const (
	lowest  = 20000
	highest = 32767
	tries   = 16
)

// A socket of a server that has ended is open for a moment longer in a child process
// that has been forked and does not execute its program yet.
const (
	takenFor   = time.Second
	takenEvery = 20 * time.Millisecond
)

// Listener listens on a port of 127.0.0.1. For port 0 it chooses one that a later
// server can most likely listen on again. A port that is in use is tried for a second.
func Listener(ctx context.Context, port int) (net.Listener, error) {
	listen := func(port int) (net.Listener, error) {
		return new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	}
	if port == 0 {
		for range tries {
			if l, err := listen(lowest + rand.IntN(highest-lowest+1)); err == nil {
				return l, nil
			}
		}
		return listen(0)
	}
	ctx, cancel := context.WithTimeout(ctx, takenFor)
	defer cancel()
	again := time.NewTicker(takenEvery)
	defer again.Stop()
	for {
		l, err := listen(port)
		if !errors.Is(err, unix.EADDRINUSE) {
			return l, err
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return nil, err
		}
	}
}
