package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// gatewayPeer is a gateway in a process of its own, pinned to a core.
type gatewayPeer struct {
	name string
	url  string            // its origin
	head map[string]string // what its clients send
	// model and cross are the names of a model that the provider serves in
	// OpenAI's format, and of a model in Anthropic's format.
	model, cross string

	cmd   *exec.Cmd
	close func() error
}

// The gateway has one core, and the provider and its clients another.
const (
	gatewayCore = "0"
	fieldCore   = "1"
)

// pinned returns a command on a core.
func pinned(core string, argv ...string) *exec.Cmd {
	return exec.Command("taskset", append([]string{"-c", core}, argv...)...)
}

// unpinnable says why processes cannot be pinned; empty if they can.
func unpinnable(cores int) string {
	if _, err := exec.LookPath("taskset"); err != nil {
		return "needs taskset (Debian package util-linux)"
	}
	if cores < 2 {
		return "needs two cores: one for the gateway, one for its provider and clients"
	}
	return ""
}

// cpu returns the CPU time of the process, in seconds.
func (p *gatewayPeer) cpu() (float64, error) { return threadsCPU(p.cmd.Process.Pid) }

// threadsCPU returns the CPU time of a process's current threads, in seconds, to the
// nanosecond. Ended threads do not count, but Go and node keep their threads.
func threadsCPU(pid int) (float64, error) {
	threads, err := procfs.AllThreads(pid)
	if err != nil {
		return 0, fmt.Errorf("read times of process %d: %w", pid, err)
	}
	used := uint64(0)
	for _, t := range threads {
		stat, err := t.Schedstat()
		switch {
		case errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH): // it has just ended
			continue
		case err != nil:
			return 0, fmt.Errorf("read times of process %d: %w", pid, err)
		}
		used += stat.RunningNanoseconds
	}
	return float64(used) / 1e9, nil
}

// rss returns the resident memory of the process, and the part of it that is not from files,
// in MB: pages of the program's file are in memory once for all its processes, and the kernel
// takes them back when it needs memory.
func (p *gatewayPeer) rss() (all, anonymous float64, err error) {
	proc, err := procfs.NewProc(p.cmd.Process.Pid)
	if err != nil {
		return 0, 0, fmt.Errorf("read memory of %s: %w", p.name, err)
	}
	status, err := proc.NewStatus()
	if err != nil {
		return 0, 0, fmt.Errorf("read memory of %s: %w", p.name, err)
	}
	return float64(status.VmRSS) / 1e6, float64(status.RssAnon) / 1e6, nil
}

// spoken starts a command that prints its address as a line of JSON and ends
// when its input ends.
func (p *gatewayPeer) spoken(stderr io.Writer) (io.Closer, *json.Decoder, error) {
	p.cmd.Stderr, p.cmd.SysProcAttr = stderr, newSession()
	in, err := p.cmd.StdinPipe()
	if err != nil {
		return nil, nil, fmt.Errorf("start %s: %w", p.name, err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, nil, fmt.Errorf("start %s: %w", p.name, err)
	}
	if err := p.cmd.Start(); err != nil {
		return nil, nil, fmt.Errorf("start %s: %w", p.name, err)
	}
	return in, json.NewDecoder(out), nil
}

// end waits for the process, and kills it if it does not end.
func (p *gatewayPeer) end() error {
	kill := time.AfterFunc(stopTimeout, func() { p.cmd.Process.Kill() })
	defer kill.Stop()
	if err := p.cmd.Wait(); err != nil {
		return fmt.Errorf("end %s: %w", p.name, err)
	}
	return nil
}

// startProxy starts the plain reverse proxy.
func (g *gatewayBench) startProxy(_ context.Context, f *fieldPeer) (*gatewayPeer, error) {
	p := &gatewayPeer{name: plainProxy, model: "field", cmd: pinned(gatewayCore, append(g.o.Program, "proxy", f.provider)...)}
	in, out, err := p.spoken(g.o.Stderr)
	if err != nil {
		return nil, err
	}
	p.close = func() error {
		in.Close() // the process may be gone
		return p.end()
	}
	var a fieldAnswer
	if err := out.Decode(&a); err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", p.name, err), p.close())
	}
	p.url = a.Provider
	return p, nil
}

// missingPortkey says why Portkey cannot be run; empty if it can.
func missingPortkey(dir string) string {
	if _, err := exec.LookPath("node"); err != nil {
		return "needs node"
	}
	if _, err := os.Stat(filepath.Join(dir, "build/start-server.js")); err != nil {
		return fmt.Sprintf("it is not in %s (make bench-gateway-deps)", dir)
	}
	return ""
}

// startPortkey starts Portkey's gateway, which takes the provider's address from
// headers.
func (g *gatewayBench) startPortkey(ctx context.Context, f *fieldPeer) (*gatewayPeer, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	p := &gatewayPeer{
		name: "portkey", url: "http://127.0.0.1:" + strconv.Itoa(port), model: "field", cross: "field",
		head: map[string]string{
			"x-portkey-provider": "openai", "x-portkey-custom-host": f.provider + "/v1", "Authorization": "Bearer " + fieldKey,
		},
		cmd: pinned(gatewayCore, "node", filepath.Join(g.o.Portkey, "build/start-server.js"), "--port="+strconv.Itoa(port), "--headless"),
	}
	p.cmd.Env = append(os.Environ(), "NODE_ENV=production", "TRUSTED_CUSTOM_HOSTS=127.0.0.1")
	p.cmd.SysProcAttr = newSession()
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start portkey: %w", err)
	}
	p.close = func() error {
		p.cmd.Process.Kill() // it has nothing to end in order
		p.cmd.Wait()
		return nil
	}
	if err := answers(ctx, p.url); err != nil {
		return nil, errors.Join(err, p.close())
	}
	return p, nil
}

// freePort returns a port that no process listens at now.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("find a port: %w", err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// answers waits until a server answers.
func answers(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		resp, err := http.DefaultClient.Do(req)
		if err == nil {
			return resp.Body.Close()
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%s does not answer: %w", url, err)
		}
	}
}

// fieldKey is the credential of the provider.
const fieldKey = "sk-field-0123456789"

// fieldPeer is the process of ServeField.
type fieldPeer struct {
	gatewayPeer
	provider string
	in       io.WriteCloser
	out      *json.Decoder
}

func (g *gatewayBench) startField() (*fieldPeer, error) {
	f := &fieldPeer{gatewayPeer: gatewayPeer{name: "field", cmd: pinned(fieldCore, g.o.Program...)}}
	in, out, err := f.spoken(g.o.Stderr)
	if err != nil {
		return nil, err
	}
	f.in, f.out = in.(io.WriteCloser), out
	f.close = func() error {
		f.in.Close() // the process may be gone
		return f.end()
	}
	var a fieldAnswer
	if err := f.out.Decode(&a); err != nil {
		return nil, errors.Join(fmt.Errorf("start field: %w", err), f.close())
	}
	f.provider = a.Provider
	return f, nil
}

// do lets the clients carry out a request with a gateway; nil: with the provider
// itself.
func (f *fieldPeer) do(ctx context.Context, p *gatewayPeer, r fieldRequest) (fieldAnswer, error) {
	defer context.AfterFunc(ctx, func() { f.cmd.Process.Kill() })()
	who := "nobody"
	if r.Path == "" {
		r.Path = "/v1/chat/completions"
	}
	if p != nil {
		r.URL, r.Head, who = p.url, p.head, p.name
		if r.Model == "" {
			r.Model = p.model
		}
	}
	var a fieldAnswer
	err := json.NewEncoder(f.in).Encode(r)
	if err == nil {
		err = f.out.Decode(&a)
	}
	switch {
	case ctx.Err() != nil:
		return a, ctx.Err()
	case err != nil:
		return a, fmt.Errorf("%s through %s: %w", r.Do, who, err)
	case a.Error != "":
		return a, fmt.Errorf("%s through %s: %s", r.Do, who, strings.ReplaceAll(a.Error, "\n", "; "))
	}
	return a, nil
}
