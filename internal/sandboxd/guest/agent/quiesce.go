package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd/guest"
)

const (
	// killRounds is how often the remaining processes are killed, because killed
	// processes may have made others meanwhile; killRound is how long each round may
	// take.
	killRounds = 10
	killRound  = 500 * time.Millisecond
)

func (s *Server) handleQuiesce(w http.ResponseWriter, r *http.Request) error {
	var req guest.QuiesceRequest
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 4096)).Decode(&req); err != nil {
		return cay.Errorf(cay.Invalid, "quiesce: %w", err)
	}
	grace := time.Duration(req.Grace)
	if grace < 0 || grace > guest.MaxQuiesceGrace {
		return cay.Errorf(cay.Invalid, "grace %v is not within 0 to %v", grace, guest.MaxQuiesceGrace)
	}
	q, err := s.Quiesce(grace)
	if err != nil {
		return err
	}
	return writeJSON(w, q)
}

func (s *Server) handleUnquiesce(http.ResponseWriter, *http.Request) error {
	s.unquiesce()
	return nil
}

// unquiesce lets commands start again.
func (s *Server) unquiesce() {
	s.quiescing.Lock()
	defer s.quiescing.Unlock()
	s.table.setQuiesced(false)
}

// Quiesce ends all processes of the machine; see guest.Client.Quiesce. Without a Reaper
// it ends the processes of the commands only. Errors: unavailable.
func (s *Server) Quiesce(grace time.Duration) (guest.Quiesced, error) {
	s.quiescing.Lock()
	defer s.quiescing.Unlock()
	s.table.setQuiesced(true)
	s.signalAll(syscall.SIGTERM)
	for _, c := range s.table.running() {
		if c.stdio.tty { // an interactive shell does not heed the other
			_ = c.signal(syscall.SIGHUP)
		}
	}
	s.signalAll(syscall.SIGCONT) // stopped processes do not handle the signals before
	var q guest.Quiesced
	if s.awaitNobody(grace) {
		s.sync()
		return q, nil
	}
	q.Killed, q.Named = s.survivors()
	for range killRounds {
		s.signalAll(syscall.SIGKILL)
		if s.awaitNobody(killRound) {
			s.sync()
			return q, nil
		}
	}
	n, named := s.survivors()
	return q, cay.Errorf(cay.Unavailable, "%d processes do not end: %v", n, named)
}

// signalAll signals all processes except this process. It ignores errors: there may be no
// process, and a process may end meanwhile.
func (s *Server) signalAll(sig syscall.Signal) {
	if s.isInit() {
		_ = syscall.Kill(-1, sig)
		return
	}
	for _, c := range s.table.running() {
		_ = c.signal(sig)
	}
}

// isInit reports whether this process is the init of the machine. The second condition
// protects the host's processes if the first is wrong.
func (s *Server) isInit() bool { return s.cfg.Reaper != nil && os.Getpid() == 1 }

// awaitNobody waits until there are no processes, and their ends are recorded.
func (s *Server) awaitNobody(d time.Duration) bool {
	ctx, cancel := context.WithTimeout(s.ctx, d)
	defer cancel()
	return s.table.awaitAll(ctx) && (!s.isInit() || s.cfg.Reaper.waitAll(ctx))
}

// sync writes all file systems to disk.
func (s *Server) sync() {
	if s.isInit() {
		unix.Sync()
	}
}

// survivors counts the processes there are, and names some.
func (s *Server) survivors() (count int, named []guest.Process) {
	if !s.isInit() {
		for _, c := range s.table.running() {
			named = append(named, guest.Process{PID: c.info.PID, Command: clip(strings.Join(c.info.Argv, " "))})
		}
		slices.SortFunc(named, func(a, b guest.Process) int { return a.PID - b.PID })
		return len(named), named[:min(len(named), guest.MaxKilledShown)]
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return 0, nil // counted for people; nothing depends on it
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid <= 1 {
			continue
		}
		command, alive := commandOf(pid)
		if !alive {
			continue
		}
		if count++; count <= guest.MaxKilledShown {
			named = append(named, guest.Process{PID: pid, Command: command})
		}
	}
	return count, named
}

// commandOf returns the arguments of a process, or its name, cut; and false if the
// process has ended.
func commandOf(pid int) (command string, alive bool) {
	stat := head(pid, "stat")
	open, end := strings.IndexByte(stat, '('), strings.LastIndexByte(stat, ')')
	if open < 0 || end < open || strings.HasPrefix(stat[end:], ") Z") {
		return "", false
	}
	if command = strings.TrimRight(head(pid, "cmdline"), "\x00"); command == "" {
		command = stat[open+1 : end]
	}
	return strings.ToValidUTF8(clip(strings.ReplaceAll(command, "\x00", " ")), "\uFFFD"), true
}

// head returns the beginning of a file of a process, "" if the process has ended.
func head(pid int, file string) string {
	f, err := os.Open(fmt.Sprintf("/proc/%d/%s", pid, file))
	if err != nil {
		return ""
	}
	defer f.Close()
	buf := make([]byte, 256)
	n, err := f.Read(buf)
	if err != nil {
		return ""
	}
	return string(buf[:n])
}
