// Package agent is the guest's side of the protocol in package guest: it starts commands,
// keeps their output, and does file work, as root of the machine it runs in.
//
// It is a library, so that the same code is PID 1 of a sandbox (package initd) and part
// of a test process (package fake). It knows nothing of the daemon but the hash of a
// token and the address to expect the daemon's connections from.
//
// The machine's identity, which is its name, its token and some files, can change while
// the agent runs; see identity. The agent is not told when the machine as a whole is
// paused or copied, which may happen at any instruction. So nothing here may depend on
// how much time has passed, except the output, which holds up a command for a reader that
// may be gone; see runTimer.
//
// Commands belong to the Server, not to connections: a command lives on when the request
// that started it ends, and its output is kept, within bounds, for callers that ask with
// a cursor. See output for what happens at the bounds.
package agent

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/sandboxd/guest"
	"github.com/cayhq/cay/sandbox"
)

// Config says how a Server works.
type Config struct {
	// Root is the parent directory of all paths: "/" in a sandbox. Elsewhere it keeps the
	// files of a test apart; it does not confine commands.
	Root string
	// User and WorkDir are the defaults of commands and files, until an identity request
	// changes them. Empty means root and /.
	User    string
	WorkDir string
	// SetHostname sets the machine's name, which may still be unset. Nil: the name stays.
	SetHostname func(name string) error
	// SetTitle shows argv in the command line of this process. Nil: the command line stays.
	SetTitle func(argv []string)
	// TokenSHA256 is the hash of the token that every request must carry, until an
	// identity request changes it.
	TokenSHA256 [sha256.Size]byte
	// Peer is the only address connections are accepted from. Unset: any.
	Peer netip.Addr
	// SwitchUsers says that commands and files may belong to any user; the process must
	// be root. Otherwise requests that name a user are refused.
	SwitchUsers bool
	// Env is added to every command's environment; the command's own wins.
	Env []string
	// Reaper waits for all children of this process, which is the machine's init. Nil
	// means that other code in this process starts children, too: then each command is
	// waited for separately, and the Server ignores processes that belong to no command.
	Reaper *Reaper
	// Limits bounds memory; zero fields mean DefaultLimits.
	Limits Limits
}

// Limits bounds the commands and output that a Server keeps in memory.
type Limits struct {
	Running       int           // commands at once
	Finished      int           // commands remembered after their exit
	CommandOutput int64         // bytes of a command's output, bookkeeping included
	AllOutput     int64         // bytes of all output
	Stall         time.Duration // how long a reader may hold up a command without reading
	KillAfter     time.Duration // between a timeout's first signal and SIGKILL
	Drain         time.Duration // how long after a command's exit its pipes may stay open
	Connections   int           // at once
	Relays        int           // connections relayed to programs on loopback, at most; see handleDial
}

// DefaultLimits are the limits in a sandbox.
var DefaultLimits = Limits{
	Running:       512,
	Finished:      256,
	CommandOutput: 4 << 20,
	AllOutput:     64 << 20,
	Stall:         30 * time.Second,
	KillAfter:     5 * time.Second,
	Drain:         250 * time.Millisecond,
	Connections:   1024,
	Relays:        768,
}

func (l Limits) withDefaults() Limits {
	d := DefaultLimits
	set(&l.Running, d.Running)
	set(&l.Finished, d.Finished)
	set(&l.CommandOutput, d.CommandOutput)
	set(&l.AllOutput, d.AllOutput)
	set(&l.Stall, d.Stall)
	set(&l.KillAfter, d.KillAfter)
	set(&l.Drain, d.Drain)
	set(&l.Connections, d.Connections)
	set(&l.Relays, d.Relays)
	return l
}

func set[T comparable](v *T, to T) {
	var zero T
	if *v == zero {
		*v = to
	}
}

// Server serves one machine.
type Server struct {
	cfg     Config
	http    *http.Server
	outputs *outputs
	table   *commandTable
	users   *users
	trust   trustStore
	memory  memory
	pipes   pipes
	null    int // a descriptor of /dev/null
	started time.Time

	identity  identity
	quiescing sync.Mutex // held by Quiesce
	problems  problems   // failures while the machine was set up

	ctx     context.Context // ends with the server; parent of contexts that outlive requests
	cancel  context.CancelFunc
	workers sync.WaitGroup // requests, and the goroutines of commands that they start

	mu     sync.Mutex // guards closed
	closed bool       // no more requests begin

	lingering atomic.Int32 // see detach
	relays    atomic.Int32 // see handleDial
}

// New returns a Server that does nothing yet. Errors: invalid.
func New(cfg Config) (*Server, error) {
	cfg.Limits = cfg.Limits.withDefaults()
	set(&cfg.Root, "/")
	set(&cfg.WorkDir, "/")
	set(&cfg.User, "root")
	if !strings.HasPrefix(cfg.Root, "/") || !strings.HasPrefix(cfg.WorkDir, "/") {
		return nil, cay.Errorf(cay.Invalid, "root %q and working directory %q must be absolute", cfg.Root, cfg.WorkDir)
	}
	files := systemFiles{root: strings.TrimSuffix(cfg.Root, "/")}
	s := &Server{
		cfg:     cfg,
		outputs: newOutputs(cfg.Limits),
		table:   newCommandTable(cfg.Limits),
		users:   &users{root: cfg.Root},
		trust:   trustStore{systemFiles: files},
		started: time.Now(),

		identity: identity{files: files, setName: cfg.SetHostname},
	}
	s.identity.now.Store(&self{Identity: guest.Identity{BootID: rand.Text()}, token: cfg.TokenSHA256, user: cfg.User, workDir: cfg.WorkDir})
	if cfg.Reaper != nil {
		s.memory.look = s.memoryUse
	}
	var err error
	if s.null, err = unix.Open(os.DevNull, unix.O_RDWR|unix.O_CLOEXEC, 0); err != nil {
		return nil, fileError("open", os.DevNull, err)
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.http = &http.Server{
		Handler:           s.routes(),
		BaseContext:       func(net.Listener) context.Context { return s.ctx },
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       5 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          log.New(io.Discard, "", 0), // a sandbox has nowhere to log to
	}
	return s, nil
}

// Serve answers connections to l until Close.
func (s *Server) Serve(l net.Listener) error {
	err := s.http.Serve(&peerListener{Listener: l, peer: s.cfg.Peer, slots: make(chan struct{}, s.cfg.Limits.Connections)})
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// Close stops serving, kills all commands and waits for the end of the commands and of
// the requests under way. It must be called once.
func (s *Server) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	err := s.http.Close() // first, so that no client is told why its request ends
	s.cancel()
	s.table.killAll()
	s.workers.Wait()
	s.pipes.close()
	unix.Close(s.null)
	return err
}

// begin counts a request in workers, until its end. It returns false if the server is
// closed. net/http waits neither for handlers nor for hijacked connections.
func (s *Server) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.workers.Add(1)
	}
	return !s.closed
}

// Pause stops the process groups of all running commands, or resumes them.
func (s *Server) Pause(pause bool) {
	sig := syscall.SIGCONT
	if pause {
		sig = syscall.SIGSTOP
	}
	for _, c := range s.table.running() {
		// A command that exited in between needs neither signal.
		_ = c.signal(sig)
	}
}

func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	handle := func(pattern string, h func(w http.ResponseWriter, r *http.Request) error) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			if err := h(w, r); err != nil {
				writeError(w, err)
			}
		})
	}
	handle("GET /health", s.handleHealth)
	handle("PUT /trust", s.handleTrust)
	handle("PUT /identity", s.handleIdentity)
	handle("POST /quiesce", s.handleQuiesce)
	handle("DELETE /quiesce", s.handleUnquiesce)
	handle("GET /obstacles", s.handleObstacles)
	handle("POST /dial", s.handleDial)
	handle("PUT /source", s.handleSource)

	handle("POST /commands", s.handleStart)
	handle("GET /commands", s.handleListCommands)
	handle("GET /commands/{id}", s.handleGetCommand)
	handle("GET /commands/{id}/wait", s.handleWait)
	handle("GET /commands/{id}/output", s.handleOutput)
	handle("POST /commands/{id}/signal", s.handleSignal)
	handle("POST /commands/{id}/stdin", s.handleStdin)
	handle("POST /commands/{id}/resize", s.handleResize)

	handle("GET /files/stat", s.handleStat)
	handle("GET /files/list", s.handleReadDir)
	handle("GET /files/glob", s.handleGlob)
	handle("PUT /files/archive", s.handleExtract)
	handle("GET /files/archive", s.handleArchive)
	handle("GET /files/watch", s.handleWatch)
	handle("GET /files/content", s.handleReadFile)
	handle("PUT /files/content", s.handleWriteFile)
	handle("POST /files/mkdir", s.handleMkdir)
	handle("POST /files/rename", s.handleRename)
	handle("POST /files/copy", s.handleCopy)
	handle("POST /files/remove", s.handleRemove)
	handle("POST /files/symlink", s.handleSymlink)
	handle("POST /files/chmod", s.handleChmod)

	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !s.begin() {
			writeError(w, cay.Errorf(cay.Unavailable, "the sandbox is ending"))
			return
		}
		defer s.workers.Done()
		if !s.self().admits(r) {
			writeError(w, errWrongToken)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

func (s *Server) handleHealth(w http.ResponseWriter, r *http.Request) error {
	self := s.self()
	h := guest.Health{
		Sandbox: self.Sandbox, BootID: self.BootID, Protocol: guest.Protocol, Uptime: sandbox.Duration(time.Since(s.started)),
		Commands: len(s.table.running()), Trust: s.trust.trusted(), Quiesced: s.table.isQuiesced(),
		Problem: text(errors.Join(s.problems.all(), self.problem)),
	}
	var fs syscall.Statfs_t
	if err := syscall.Statfs(s.cfg.Root, &fs); err != nil {
		return fileError("statfs", s.cfg.Root, err)
	}
	h.DiskBytes = int64(fs.Blocks-fs.Bfree) * fs.Bsize
	h.Processes = h.Commands
	if s.cfg.Root == "/" {
		n, err := countProcesses()
		if err != nil {
			return err
		}
		h.Processes = n
	}
	return writeJSON(w, h)
}

func countProcesses() (int, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return 0, fileError("open", "/proc", err)
	}
	defer dir.Close()
	n := 0
	for {
		names, err := dir.Readdirnames(1024)
		for _, name := range names {
			if name[0] >= '1' && name[0] <= '9' {
				n++
			}
		}
		if err == io.EOF {
			return n, nil
		}
		if err != nil {
			return 0, fileError("list", "/proc", err)
		}
	}
}

// peerListener accepts connections from the peer only, and at most as many as slots.
type peerListener struct {
	net.Listener
	peer  netip.Addr
	slots chan struct{}
}

func (l *peerListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if l.peer.IsValid() {
			from, ok := conn.RemoteAddr().(*net.TCPAddr)
			if !ok || from.AddrPort().Addr().Unmap() != l.peer {
				conn.Close()
				continue
			}
		}
		select {
		case l.slots <- struct{}{}:
			return &slotConn{Conn: conn, release: sync.OnceFunc(func() { <-l.slots })}, nil
		default:
			conn.Close()
		}
	}
}

type slotConn struct {
	net.Conn
	release func()
}

func (c *slotConn) Close() error {
	defer c.release()
	return c.Conn.Close()
}

// ReadFrom lets net/http hand files to the kernel's sendfile.
func (c *slotConn) ReadFrom(r io.Reader) (int64, error) { return io.Copy(c.Conn, r) }

func writeJSON(w http.ResponseWriter, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if len(data) > guest.MaxJSON {
		return cay.Errorf(cay.TooLarge, "the answer has more than %d bytes", guest.MaxJSON)
	}
	w.Header()["Content-Type"] = []string{"application/json"}
	// A failure to write means that the asker is gone.
	_, _ = w.Write(data)
	return nil
}

// writeError answers with an error, unless the answer has begun: then it cuts the
// connection, so that a partial answer is not taken for a whole one.
func writeError(w http.ResponseWriter, err error) {
	if _, ok := errors.AsType[*begunError](err); ok {
		panic(http.ErrAbortHandler)
	}
	status := http.StatusBadRequest
	switch cay.CodeOf(err) {
	case cay.Unauthenticated:
		status = http.StatusUnauthorized
	case cay.Internal, cay.Unavailable:
		status = http.StatusInternalServerError
	}
	w.Header()["Content-Type"] = []string{"application/json"}
	w.WriteHeader(status)
	_, _ = w.Write(guest.EncodeError(err))
}

// begunError is an error after part of an answer was sent.
type begunError struct{ error }

// problems collects failures, for the daemon to ask for.
type problems struct {
	mu   sync.Mutex
	errs []error // few: each caller adds one
}

func (p *problems) add(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.errs = append(p.errs, err)
}

func (p *problems) all() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return errors.Join(p.errs...)
}

// Report adds an error to the health that the daemon asks for. It is for failures before
// commands run, which must not keep a machine from starting.
func (s *Server) Report(err error) { s.problems.add(err) }

// Running is how many commands run.
func (s *Server) Running() int { return len(s.table.running()) }
