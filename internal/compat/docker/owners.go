package docker

import (
	"context"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// owners are the processes with containers that are removed when the process ends.
type owners struct {
	mu      sync.Mutex // guards watched
	watched map[process]struct{}
}

// attend sweeps when the owner of a container of workerd ends. An owner that cannot be
// watched is left to the sweeps.
func (s *Server) attend(c *container) {
	p := c.Spec.Owner
	if p.PID == 0 || c.Spec.Labels[sessionLabel] == "" {
		return
	}
	s.owners.mu.Lock()
	defer s.owners.mu.Unlock()
	if _, ok := s.owners.watched[p]; ok {
		return
	}
	fd, err := unix.PidfdOpen(p.PID, unix.PIDFD_NONBLOCK)
	if err != nil {
		return // it has ended, perhaps
	}
	f := os.NewFile(uintptr(fd), "pidfd")
	if p.ended() || !s.begin() { // the id may be that of a later process
		f.Close()
		return
	}
	if s.owners.watched == nil {
		s.owners.watched = map[process]struct{}{}
	}
	s.owners.watched[p] = struct{}{}
	go func() {
		defer s.tasks.Done()
		awaitEnd(s.ctx, f)
		s.owners.mu.Lock()
		delete(s.owners.watched, p)
		s.owners.mu.Unlock()
		if s.ctx.Err() != nil {
			return
		}
		if err := s.Sweep(s.ctx); err != nil && s.ctx.Err() == nil {
			s.cfg.Logger.WarnContext(s.ctx, "sweep containers", "error", err)
		}
	}()
}

// awaitEnd waits until a process has ended or ctx has, and closes f, its pidfd.
func awaitEnd(ctx context.Context, f *os.File) {
	defer f.Close() // it was only waited for
	defer context.AfterFunc(ctx, func() { _ = f.SetReadDeadline(time.Unix(1, 0)) })()
	raw, err := f.SyscallConn()
	if err != nil {
		<-ctx.Done()
		return
	}
	err = raw.Read(func(fd uintptr) bool {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		_, err := unix.Poll(fds, 0)
		return err == nil && fds[0].Revents != 0
	})
	if err != nil { // the deadline, or a file that cannot be waited for
		<-ctx.Done()
	}
}
