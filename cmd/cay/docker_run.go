package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/cayhq/cay"
)

const dockerRunHelp = `Run a command in a new container. A SIGINT, SIGTERM or SIGHUP goes to the command; the
second one kills it.

Exit codes: the command's own; 128 + n when signal n ended it; 127 when the container has
no such program; 125 when cay failed before it ran.`

// dockerRun are the flags of "cay docker run" and "create".
type dockerRun struct {
	detach, interactive, tty, remove, publishAll, privileged, init bool

	name, entrypoint, user, workDir, network, memory, platform, pull, stopSignal string

	env, envFiles, labels, publish, volumes []string
	cpus                                    float64
	stopTimeout                             int
}

func newDockerRun(a *app, o *dockerOptions) *cobra.Command {
	var f dockerRun
	c := &cobra.Command{
		Use: "run [flags] IMAGE [COMMAND] [ARG...]", Short: "Run a command in a new container", Long: dockerRunHelp,
		Example: "  cay docker run --rm debian uname -r\n  cay docker run -d --name web -p 8000 python:3.13 python -m http.server 8000",
		Args:    atLeast(1, "an image"),
	}
	fl := c.Flags()
	fl.SetInterspersed(false)
	fl.BoolVarP(&f.detach, "detach", "d", false, "print the id, and do not wait for the end")
	fl.BoolVarP(&f.interactive, "interactive", "i", false, "forward standard input")
	fl.BoolVarP(&f.tty, "tty", "t", false, "run on a terminal")
	fl.BoolVar(&f.remove, "rm", false, "remove the container when it has ended")
	fl.StringVar(&f.name, "name", "", "name of the container")
	fl.StringVar(&f.entrypoint, "entrypoint", "", "program in the place of the image's entrypoint")
	fl.StringArrayVarP(&f.env, "env", "e", nil, "set a variable, as KEY=VALUE, or KEY for the value it has here")
	fl.StringArrayVar(&f.envFiles, "env-file", nil, "set the variables in a file of KEY=VALUE lines")
	fl.StringVarP(&f.workDir, "workdir", "w", "", "directory to run in")
	fl.StringVarP(&f.user, "user", "u", "", "user to run as")
	fl.StringArrayVarP(&f.labels, "label", "l", nil, "label, as KEY=VALUE")
	fl.StringArrayVarP(&f.publish, "publish", "p", nil, "publish a port on 127.0.0.1: [[127.0.0.1:]HOST:]PORT")
	fl.BoolVarP(&f.publishAll, "publish-all", "P", false, "publish all ports that the image exposes")
	fl.StringVarP(&f.memory, "memory", "m", "", "memory, as 512m or 2g")
	fl.Float64Var(&f.cpus, "cpus", 0, "CPUs")
	fl.StringVar(&f.network, "network", "", "bridge or none")
	fl.StringVar(&f.pull, "pull", "missing", "when to pull the image: missing, always or never")
	fl.StringVar(&f.platform, "platform", "", "must be the machine's own")
	fl.StringVar(&f.stopSignal, "stop-signal", "", "signal with which the container is stopped")
	fl.IntVar(&f.stopTimeout, "stop-timeout", 10, "seconds until a container that is stopped is killed")
	fl.StringArrayVarP(&f.volumes, "volume", "v", nil, "refused: sandboxes see no directory of the host")
	fl.BoolVar(&f.privileged, "privileged", false, "refused")
	fl.BoolVar(&f.init, "init", false, "without effect: a sandbox has an init")
	return o.command(a, c, func(ctx context.Context, d *dockerClient, args []string) error { return f.run(ctx, a, d, args) })
}

// body returns the request that creates the container.
func (f *dockerRun) body(args []string) (map[string]any, error) {
	env, err := parseEnv(f.envFiles, f.env, os.LookupEnv)
	if err != nil {
		return nil, err
	}
	var list []string
	for k, v := range env {
		list = append(list, k+"="+v)
	}
	slices.Sort(list)
	labels := map[string]string{}
	for _, l := range f.labels {
		k, v, _ := strings.Cut(l, "=")
		labels[k] = v
	}
	exposed, bindings := map[string]any{}, map[string][]map[string]string{}
	for _, p := range f.publish {
		at := strings.Split(p, ":")
		if len(at) > 3 || slices.Contains(at, "") {
			return nil, cay.Errorf(cay.Invalid, "--publish %q is not [[127.0.0.1:]HOST:]PORT", p)
		}
		port := at[len(at)-1]
		if !strings.Contains(port, "/") {
			port += "/tcp"
		}
		to := map[string]string{}
		if len(at) > 1 {
			to["HostPort"] = at[len(at)-2]
		}
		if len(at) > 2 {
			to["HostIp"] = at[0]
		}
		exposed[port] = struct{}{}
		bindings[port] = append(bindings[port], to)
	}
	host := map[string]any{
		"AutoRemove": f.remove, "PublishAllPorts": f.publishAll, "PortBindings": bindings, "Privileged": f.privileged, "NanoCpus": int64(f.cpus * 1e9),
		"NetworkMode": f.network, "Binds": f.volumes,
	}
	if f.memory != "" {
		if host["Memory"], err = dockerBytes(f.memory); err != nil {
			return nil, err
		}
	}
	body := map[string]any{
		"Image": args[0], "Env": list, "Labels": labels, "User": f.user, "WorkingDir": f.workDir, "Tty": f.tty, "ExposedPorts": exposed,
		"OpenStdin": f.interactive, "StdinOnce": f.interactive && !f.detach, "StopSignal": f.stopSignal, "StopTimeout": f.stopTimeout, "HostConfig": host,
	}
	if len(args) > 1 {
		body["Cmd"] = args[1:]
	}
	if f.entrypoint != "" {
		body["Entrypoint"] = []string{f.entrypoint}
	}
	return body, nil
}

// dockerBytes reads an amount of memory: a number, and b, k, m or g.
func dockerBytes(text string) (int64, error) {
	number := strings.TrimRight(strings.ToLower(text), "bkmg")
	shift, ok := map[string]uint{"": 0, "b": 0, "k": 10, "kb": 10, "m": 20, "mb": 20, "g": 30, "gb": 30}[strings.ToLower(text[len(number):])]
	n, err := strconv.ParseInt(number, 10, 33)
	if err != nil || !ok || n < 1 {
		return 0, cay.Errorf(cay.Invalid, "--memory %q is not a number with b, k, m or g behind it", text)
	}
	return n << shift, nil
}

// create creates the container, and pulls the image if it is missing.
func (f *dockerRun) create(ctx context.Context, a *app, d *dockerClient, args []string) (id string, err error) {
	body, err := f.body(args)
	if err != nil {
		return "", err
	}
	q := url.Values{}
	if f.name != "" {
		q.Set("name", f.name)
	}
	if !slices.Contains([]string{"missing", "always", "never"}, f.pull) {
		return "", cay.Errorf(cay.Invalid, "--pull is %q; it is missing, always or never", f.pull)
	}
	if f.pull == "always" {
		if err := d.pull(ctx, args[0], f.platform, io.Discard); err != nil {
			return "", err
		}
	}
	var made struct {
		ID       string
		Warnings []string
	}
	err = d.send(ctx, http.MethodPost, "/containers/create", q, body, &made)
	if cay.CodeOf(err) == cay.NotFound && f.pull == "missing" && strings.Contains(err.Error(), "No such image") {
		a.warn("image %s is not here, and is pulled", args[0])
		if err := d.pull(ctx, args[0], f.platform, io.Discard); err != nil {
			return "", err
		}
		err = d.send(ctx, http.MethodPost, "/containers/create", q, body, &made)
	}
	for _, w := range made.Warnings {
		a.warn("%s", w)
	}
	return made.ID, err
}

func (f *dockerRun) run(ctx context.Context, a *app, d *dockerClient, args []string) error {
	if f.tty && f.interactive && !isTerminal(a.stdin) {
		return &exitError{exitFailed, cay.Errorf(cay.Invalid, "-it needs a terminal as standard input").WithHint("leave -t out to forward it as it is")}
	}
	id, err := f.create(ctx, a, d, args)
	if err != nil {
		return before(ctx, err)
	}
	at := path.Join("/containers", id)
	if f.detach {
		if err := d.send(ctx, http.MethodPost, at+"/start", nil, nil, nil); err != nil {
			return f.unstarted(ctx, d, at, err)
		}
		_, err := fmt.Fprintln(a.stdout, id)
		return err
	}
	q := url.Values{"stream": {"1"}, "stdout": {"1"}, "stderr": {"1"}}
	if f.interactive {
		q.Set("stdin", "1")
	}
	streams, err := d.hijack(ctx, at+"/attach", q)
	if err != nil {
		return f.unstarted(ctx, d, at, err)
	}
	defer streams.Close()
	condition := "next-exit"
	if f.remove {
		condition = "removed"
	}
	ended, err := d.do(ctx, http.MethodPost, at+"/wait", url.Values{"condition": {condition}})
	if err != nil {
		return f.unstarted(ctx, d, at, err)
	}
	defer ended.Body.Close()
	if err := d.send(ctx, http.MethodPost, at+"/start", nil, nil, nil); err != nil {
		return f.unstarted(ctx, d, at, err)
	}
	defer f.forward(ctx, a, d, at, streams)()
	if err := streams.copy(a.stdout, a.stderr, f.tty); err != nil {
		return err
	}
	var end struct{ StatusCode int }
	if err := decodeDocker(ended, &end); err != nil {
		return err
	}
	if end.StatusCode == 0 {
		return nil
	}
	return &exitError{end.StatusCode, nil}
}

// unstarted removes a container with --rm that has not run.
func (f *dockerRun) unstarted(ctx context.Context, d *dockerClient, at string, err error) error {
	if f.remove {
		err = errors.Join(err, d.send(context.WithoutCancel(ctx), http.MethodDelete, at, url.Values{"force": {"1"}}, nil, nil))
	}
	if strings.Contains(err.Error(), "executable file not found") {
		return &exitError{exitNotFound, err}
	}
	return before(ctx, err)
}

// forward sends standard input, signals and the size of the terminal to a container
// until undo is called.
func (f *dockerRun) forward(ctx context.Context, a *app, d *dockerClient, at string, streams *dockerStreams) (undo func()) {
	signals := 0
	release := a.signals.take(func(sig syscall.Signal) {
		if signals++; signals > 1 {
			sig = syscall.SIGKILL
		}
		err := d.send(ctx, http.MethodPost, at+"/kill", url.Values{"signal": {strconv.Itoa(int(sig))}}, nil, nil)
		if err != nil && cay.CodeOf(err) != cay.Conflict && cay.CodeOf(err) != cay.NotFound {
			a.warn("the container was not signalled: %v", err)
		}
	})
	back := func() {}
	if f.tty && f.interactive {
		fd := int(a.stdin.Fd())
		if state, err := term.MakeRaw(fd); err == nil {
			restore := func() { _ = term.Restore(fd, state) } // a terminal that is gone needs none
			forget := a.signals.atExit(restore)
			back = func() { forget(); restore() }
		}
		size := windowSize(a.stdin)
		q := url.Values{"h": {strconv.Itoa(int(size.Rows))}, "w": {strconv.Itoa(int(size.Cols))}}
		if err := d.send(ctx, http.MethodPost, at+"/resize", q, nil, nil); err != nil && cay.CodeOf(err) != cay.Conflict {
			a.warn("the size of the terminal was not set: %v", err)
		}
	}
	if f.interactive {
		go func() { // ends with the process, as standard input cannot be interrupted
			_, _ = io.Copy(streams.UnixConn, a.stdin) // the end of the container ends it, too
			_ = streams.CloseWrite()
		}()
	}
	return func() {
		release()
		back()
	}
}

// dockerStreams are the standard streams of a container.
type dockerStreams struct {
	*net.UnixConn
	r *bufio.Reader
}

// hijack makes a request that takes over its connection, which ends with ctx.
func (c *dockerClient) hijack(ctx context.Context, at string, query url.Values) (*dockerStreams, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", c.path)
	if err != nil {
		return nil, c.unserved(err)
	}
	s := &dockerStreams{UnixConn: conn.(*net.UnixConn), r: bufio.NewReader(conn)}
	context.AfterFunc(ctx, func() { conn.Close() })
	u := url.URL{Path: at, RawQuery: query.Encode()}
	if _, err := fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: docker\r\nConnection: Upgrade\r\nUpgrade: tcp\r\nContent-Length: 0\r\n\r\n", u.RequestURI()); err != nil {
		return nil, errors.Join(c.unserved(err), conn.Close())
	}
	resp, err := http.ReadResponse(s.r, &http.Request{Method: http.MethodPost})
	if err != nil {
		return nil, errors.Join(c.unserved(err), conn.Close())
	}
	if resp.StatusCode != http.StatusSwitchingProtocols {
		return nil, errors.Join(dockerError(resp), conn.Close())
	}
	return s, nil
}

// copy writes the output of a container until it ends.
func (s *dockerStreams) copy(stdout, stderr io.Writer, raw bool) error {
	return copyDocker(s.r, stdout, stderr, raw)
}

// copyDocker writes the output in r: raw, or in frames of 8 bytes (the stream, three
// zeros, the length) and data.
func copyDocker(r io.Reader, stdout, stderr io.Writer, raw bool) error {
	if raw {
		_, err := io.Copy(stdout, r)
		return err
	}
	var head [8]byte
	for {
		switch _, err := io.ReadFull(r, head[:]); {
		case err == io.EOF:
			return nil
		case err != nil:
			return cay.Errorf(cay.Unavailable, "the output of the container ended early: %w", err)
		}
		to := stdout
		if head[0] == 2 {
			to = stderr
		}
		n := int64(binary.BigEndian.Uint32(head[4:]))
		switch copied, err := io.CopyN(to, r, n); {
		case err == io.EOF || err == nil && copied < n:
			return cay.Errorf(cay.Unavailable, "the output of the container ended early")
		case err != nil:
			return err
		}
	}
}
