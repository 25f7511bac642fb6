package daemon_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/checktest"
	"github.com/cayhq/cay/internal/daemon"
	"github.com/cayhq/cay/internal/handover"
	"github.com/cayhq/cay/internal/sandboxd/network/networktest"
	"github.com/cayhq/cay/internal/sandboxd/sandboxtest"
	"github.com/cayhq/cay/internal/seedtest"
	"github.com/cayhq/cay/sandbox"
)

// failsEnv makes a daemon fail that takes over, when the old one has stopped.
const failsEnv = "CAY_TEST_FAILS"

// handoverOptions returns how a daemon of beDaemon takes over, and lets others take over.
func handoverOptions(out, log *os.File) (h daemon.Handover, err error) {
	if h.From, err = handover.FromPredecessor(os.Getenv); err != nil {
		return h, err
	}
	if h.From != nil && os.Getenv(failsEnv) != "" {
		if err := h.From.Await(context.Background(), os.Getenv(daemonEnv), ""); err != nil {
			return h, err
		}
		return h, errors.New("it is to fail")
	}
	if h.From == nil {
		own := func(name string) string {
			if name == "LISTEN_PID" { // a test does not know it
				return strconv.Itoa(os.Getpid())
			}
			return os.Getenv(name)
		}
		if os.Getenv("LISTEN_FDS") != "" {
			if h.Sockets, err = handover.FromSystemd(own, os.Getpid()); err != nil {
				return h, err
			}
		}
	}
	h.Program = handover.Program{Path: "/proc/self/exe", Env: os.Environ(), Stdout: out, Stderr: log}
	if path, err := os.Executable(); err == nil {
		h.Program.Path = path
	}
	return h, nil
}

// listening starts a daemon whose API's socket this process has opened, as systemd does.
func listening(t *testing.T, l *net.TCPListener, data string, more ...string) *process {
	t.Helper()
	f := checktest.Must(l.File())(t)
	defer f.Close()
	return spawnWith(t, func(cmd *exec.Cmd) {
		cmd.ExtraFiles = []*os.File{f}
		cmd.Env = append(cmd.Env, "LISTEN_FDS=1", "LISTEN_FDNAMES=api")
	}, daemonEnv, data, more...)
}

// probes asks for something again and again, each time over a new connection.
type probes struct {
	asked, failed atomic.Int64
	longest       atomic.Int64 // nanoseconds
	stop          context.CancelFunc
	done          sync.WaitGroup
}

func probing(t *testing.T, address, url string) *probes {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	p := &probes{stop: cancel}
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, address)
	}}}
	p.done.Go(func() {
		for ctx.Err() == nil {
			began := time.Now()
			err := once(ctx, c, url)
			if ctx.Err() != nil {
				return
			}
			if err != nil {
				p.failed.Add(1)
				t.Logf("probe of %s: %v", url, err)
			}
			p.asked.Add(1)
			p.longest.Store(max(p.longest.Load(), int64(time.Since(began))))
		}
	})
	t.Cleanup(p.end)
	return p
}

func (p *probes) end() {
	p.stop()
	p.done.Wait()
}

func once(ctx context.Context, c *http.Client, url string) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := c.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("status %d", resp.StatusCode)
	}
	return nil
}

// running is a command that a client is attached to.
type running struct {
	out   sandbox.Output
	begun chan struct{} // closed at its first output
	ended chan struct{}
	text  bytes.Buffer // read after ended
	exit  *sandbox.Exit
	err   error
}

func attach(t *testing.T, c *sandbox.Client, ref string, argv ...string) *running {
	t.Helper()
	r := &running{
		out:   checktest.Must(c.Exec(t.Context(), ref, sandbox.CommandParams{Argv: argv}))(t),
		begun: make(chan struct{}), ended: make(chan struct{}),
	}
	t.Cleanup(func() {
		r.out.Close()
		<-r.ended
	})
	go func() {
		defer close(r.ended)
		begin := sync.OnceFunc(func() { close(r.begun) })
		defer begin()
		for {
			e, err := r.out.Next()
			if err != nil {
				if err != io.EOF {
					r.err = err
				}
				return
			}
			if len(e.Data) > 0 {
				r.text.Write(e.Data)
				begin()
			}
			if e.Exit != nil {
				r.exit = e.Exit
			}
		}
	}()
	return r
}

// upgraded opens a connection to a preview that has left HTTP, as a WebSocket does, and says
// when it ends.
func upgraded(t *testing.T, address, preview string) (ended chan struct{}) {
	t.Helper()
	u := checktest.Must(url.Parse(preview))(t)
	c := checktest.Must(net.Dial("tcp", address))(t)
	t.Cleanup(func() { c.Close() })
	checktest.Must(fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", u.Host))(t)
	r := bufio.NewReader(c)
	resp := checktest.Must(http.ReadResponse(r, nil))(t)
	if resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("the preview answers an upgrade with %s", resp.Status)
	}
	checktest.Must(io.WriteString(c, "ping\n"))(t)
	if got := checktest.Must(r.ReadString('\n'))(t); got != "ping\n" {
		t.Fatalf("the preview sends back %q", got)
	}
	ended = make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = io.Copy(io.Discard, r) // that it ends is what counts
	}()
	return ended
}

// typing sends a line to a command's standard input, in a request that goes on until the end
// of the test, and returns when the command has got the line.
func typing(t *testing.T, c *sandbox.Client, ref, line string) *sandbox.Command {
	t.Helper()
	cmd := checktest.Must(c.Start(t.Context(), ref, sandbox.CommandParams{Argv: []string{"cat"}, Stdin: true}))(t)
	r, w := io.Pipe()
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		r.CloseWithError(c.WriteStdin(t.Context(), ref, cmd.ID, r, false)) // it breaks with the daemon
	}()
	t.Cleanup(func() {
		w.Close()
		<-sent
	})
	checktest.Must(io.WriteString(w, line))(t)
	out := checktest.Must(c.Output(t.Context(), ref, cmd.ID, sandbox.OutputParams{Follow: true}))(t)
	defer out.Close()
	for got := ""; got != line; {
		e := checktest.Must(out.Next())(t)
		got += string(e.Data)
	}
	return cmd
}

// await fails the test if a channel is not closed in time.
func await(t *testing.T, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(time.Minute):
		t.Fatalf("%s hangs", what)
	}
}

const (
	// talker connects to an address, sends the third argument, and prints how the
	// connection ends.
	talker = `
const c = require("net").connect(+process.argv[2], process.argv[1]);
c.on("connect", () => { c.write(process.argv[3]); console.log("connected"); });
c.on("data", () => {});
c.on("error", e => { console.log(e.code); process.exit(); });
c.on("end", () => { console.log("END"); process.exit(); });
`
	// server also takes over connections, for a protocol that sends back what it gets.
	server = `
require("http").createServer((q, a) => a.end("hello")).on("upgrade", (q, c) => {
  c.write("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n");
  c.on("error", () => {}).pipe(c);
}).listen(8000, () => console.log("listens"));
`
)

// A daemon is replaced while it serves, by another process and by kill -9: no request is
// refused when it is another process's turn, commands go on with their exit code and all
// output, connections of guests are reset, and the guest keeps its interface. A hibernated
// sandbox wakes with its processes.
func TestDaemon_Replaced(t *testing.T) {
	t.Parallel()
	rounds := seedtest.Rounds(t, 2)
	internet := networktest.Start(t)
	dir := data(t)
	l := checktest.Must(net.Listen("tcp", "127.0.0.1:0"))(t).(*net.TCPListener)
	defer l.Close()
	address, routes := l.Addr().String(), internetEnv+"="+internet.Routes()
	first := listening(t, l, dir, routes)
	pid := first.Process.Pid
	c := client(t, "http://"+address, dir)
	s := checktest.Must(c.Create(t.Context(), sandbox.CreateParams{
		Network: sandbox.Network{Mode: sandbox.AllowAll}, Ports: []sandbox.PortParams{{Port: 8000}}, Runtime: "node24",
	}))(t)
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		checktest.OK(t, c.Delete(ctx, s.ID))
		kill(t, pid)
	}()
	await(t, "the server", attach(t, c, s.ID, "node", "-e", server).begun)

	sleeper := checktest.Must(c.Create(t.Context(), sandbox.CreateParams{Network: sandbox.Network{Mode: sandbox.DenyAll}}))(t)
	defer func() { checktest.OK(t, c.Delete(context.Background(), sleeper.ID)) }()
	await(t, "the process that sleeps", attach(t, c, sleeper.ID, "sh", "-c", "echo $$ > /tmp/pid; echo written; exec sleep 1000000").begun)

	for round := range rounds {
		killed := round%2 == 1
		checktest.Must(c.Hibernate(t.Context(), sleeper.ID))(t)
		stop := fmt.Sprintf("/tmp/stop-%d", round)
		until := "while [ ! -e " + stop + " ]; do "
		ticks := attach(t, c, s.ID, "sh", "-c", "i=0; "+until+"echo $i; i=$((i+1)); sleep 0.02; done; exit 7")
		quiet := attach(t, c, s.ID, "sh", "-c", until+"sleep 0.02; done; exit 9")
		idle := attach(t, c, s.ID, "node", "-e", talker, misc, "7", "")
		busy := attach(t, c, s.ID, "node", "-e", talker, api, "80", "GET /drip HTTP/1.1\r\nHost: api.example.com\r\n\r\n")
		for name, r := range map[string]*running{"output": ticks, "idle": idle, "busy": busy} {
			await(t, "the start of "+name, r.begun)
		}
		socket := upgraded(t, address, s.Ports[0].URL)
		typed := typing(t, c, s.ID, "first\n")
		onAPI, onPreview := probing(t, address, "http://"+address+"/healthz"), probing(t, address, s.Ports[0].URL)

		if killed {
			kill(t, pid)
			onAPI.end() // requests under way break
			onPreview.end()
			pid = listening(t, l, dir, routes).Process.Pid
		} else {
			result := checktest.Must(handover.Ask(t.Context(), dir, handover.Request{}))(t)
			pid = result.PID
			for range 3 { // also requests that come after it
				checktest.OK(t, once(t.Context(), http.DefaultClient, "http://"+address+"/healthz"))
			}
			onAPI.end()
			onPreview.end()
			for name, p := range map[string]*probes{"API": onAPI, "preview": onPreview} {
				if p.failed.Load() > 0 {
					t.Errorf("round %d: %d of %d requests for the %s failed", round, p.failed.Load(), p.asked.Load(), name)
				}
				t.Logf("round %d, %s: %d requests, the longest took %v", round, name, p.asked.Load(), time.Duration(p.longest.Load()))
			}
		}
		for name, r := range map[string]*running{"idle": idle, "busy": busy} {
			await(t, "a connection that is "+name, r.ended)
			if got := r.text.String(); !strings.HasSuffix(got, "ECONNRESET\n") && !strings.HasSuffix(got, "EPIPE\n") || r.err != nil {
				t.Errorf("round %d: the connection that is %s ended with %q, %v", round, name, got, r.err)
			}
		}
		await(t, "a connection that has left HTTP", socket)
		checktest.OK(t, c.WriteStdin(t.Context(), s.ID, typed.ID, strings.NewReader("second\n"), true))
		out := checktest.Must(c.Output(t.Context(), s.ID, typed.ID, sandbox.OutputParams{Follow: true}))(t)
		if text := sandboxtest.ReadText(t, out); text != "first\nsecond\n" {
			t.Errorf("round %d: standard input was %q", round, text)
		}
		checktest.Must(c.WriteFile(t.Context(), s.ID, stop, strings.NewReader(""), sandbox.WriteParams{}))(t)
		await(t, "the command with output", ticks.ended)
		await(t, "the command without output", quiet.ended)
		if ticks.err != nil || quiet.err != nil || ticks.exit == nil || quiet.exit == nil || ticks.exit.Code != 7 || quiet.exit.Code != 9 {
			t.Fatalf("round %d: the commands ended with %+v, %v and %+v, %v", round, ticks.exit, ticks.err, quiet.exit, quiet.err)
		}
		for i, line := range strings.Split(strings.TrimSpace(ticks.text.String()), "\n") {
			if line != strconv.Itoa(i) {
				t.Fatalf("round %d: line %d of the output is %q", round, i, line)
			}
		}
		woken := checktest.Must(c.Run(t.Context(), sleeper.ID, sandbox.CommandParams{Argv: []string{"sh", "-c", "cat /proc/$(cat /tmp/pid)/comm"}}))(t)
		if string(woken.Stdout) != "sleep\n" {
			t.Errorf("round %d: the hibernated sandbox has lost its process: %q, %s", round, woken.Stdout, woken.Stderr)
		}
		got := checktest.Must(c.Run(t.Context(), s.ID, sandbox.CommandParams{Argv: []string{"grep", "-o", "eth[0-9]*", "/proc/net/dev"}}))(t)
		if string(got.Stdout) != "eth0\n" {
			t.Errorf("round %d: the guest has the interfaces %q", round, got.Stdout)
		}
	}
}

// kill ends a process, perhaps another's child, and returns when nothing of it is left.
func kill(t *testing.T, pid int) {
	t.Helper()
	fd := checktest.Must(unix.PidfdOpen(pid, 0))(t)
	defer unix.Close(fd)
	checktest.OK(t, unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0))
	for {
		_, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
		if err == unix.EINTR {
			continue
		}
		checktest.OK(t, err)
		return
	}
}

// A program that cannot take over leaves the daemon as it was.
func TestDaemon_ReplacedByOther(t *testing.T) {
	t.Parallel()
	dir := data(t)
	first := spawn(t, daemonEnv, dir)
	for path, want := range map[string]string{
		"/bin/false": "status 1", "/no/such/program": "cannot be started", "/bin/true": "status 0",
	} {
		_, err := handover.Ask(t.Context(), dir, handover.Request{Program: path})
		if cay.CodeOf(err) != cay.Invalid || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", path, err)
		}
	}
	checktest.OK(t, once(t.Context(), http.DefaultClient, first.first+"/healthz"))
}

// If the new process fails when the old one has stopped, the old one serves again, at the
// same address and with its sandboxes.
func TestDaemon_ReplacedInVain(t *testing.T) {
	t.Parallel()
	dir := data(t)
	first := spawn(t, daemonEnv, dir, failsEnv+"=1")
	c := client(t, first.first, dir)
	s := checktest.Must(c.Create(t.Context(), sandbox.CreateParams{Network: sandbox.Network{Mode: sandbox.DenyAll}}))(t)
	for range 2 {
		_, err := handover.Ask(t.Context(), dir, handover.Request{})
		if cay.CodeOf(err) != cay.Invalid || !strings.Contains(err.Error(), "serves again") {
			t.Fatalf("the upgrade ended with %v", err)
		}
		r, err := c.Run(t.Context(), s.ID, sandbox.CommandParams{Argv: []string{"echo", "there"}})
		if err != nil || string(r.Stdout) != "there\n" {
			t.Errorf("afterwards: %+v, %v", r, err)
		}
	}
	checktest.OK(t, c.Delete(t.Context(), s.ID))
}
