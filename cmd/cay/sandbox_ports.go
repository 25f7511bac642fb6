package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
)

const portsHelp = `Show the ports of a sandbox whose previews are served, and their URLs, or change
them: PORT and PORT:private declare one, PORT- takes it away. A private port's
preview opens only with a link, which --link makes.

A program that listens on localhost in the sandbox is found too.`

func newSandboxPorts(a *app) *cobra.Command {
	var link int
	var ttl time.Duration
	c := &cobra.Command{
		Use:   "ports SANDBOX [PORT[:private]|PORT-]...",
		Short: "Show or change the ports that have a preview",
		Long:  portsHelp,
		Example: `  cay sandbox ports web 3000
  cay sandbox ports web 8080:private 3000-
  cay sandbox ports web --link 8080 --ttl 24h`,
		Args:              atLeast(1, "a sandbox and any ports"),
		ValidArgsFunction: a.completeSandboxes(1),
	}
	c.Flags().IntVar(&link, "link", 0, "print a link that opens the preview of that private port")
	c.Flags().DurationVar(&ttl, "ttl", time.Hour, "with --link, how long it opens it")
	return a.verb(c, func(ctx context.Context, args []string) error {
		client := a.sandboxes()
		if c.Flags().Changed("link") {
			if len(args) > 1 {
				return &exitError{exitUsage, cay.Errorf(cay.Invalid, "--link does not go with a change of the ports")}
			}
			l, err := client.CreateLink(ctx, args[0], link, sandbox.LinkParams{TTL: sandbox.Duration(ttl)})
			if err != nil {
				return err
			}
			return a.show(l, func(w io.Writer) { fmt.Fprintln(w, l.URL) })
		}
		if c.Flags().Changed("ttl") {
			return &exitError{exitUsage, cay.Errorf(cay.Invalid, "--ttl goes with --link")}
		}
		s, err := client.Get(ctx, args[0])
		if err != nil {
			return err
		}
		if len(args) > 1 {
			ports, err := changePorts(s.Ports, args[1:])
			if err != nil {
				return &exitError{exitUsage, err}
			}
			if s, err = client.Update(ctx, s.ID, sandbox.UpdateParams{Ports: ports}); err != nil {
				return err
			}
		}
		if s.Ports == nil {
			s.Ports = []sandbox.Port{} // an empty array in JSON
		}
		return a.show(s.Ports, func(w io.Writer) {
			if len(s.Ports) == 0 {
				return
			}
			t := newTable("PORT", "ACCESS", "URL")
			for _, p := range s.Ports {
				t.row(strconv.Itoa(p.Port), string(p.Access), p.URL)
			}
			t.print(w)
		})
	})
}

// changePorts applies PORT, PORT:private and PORT- to ports.
func changePorts(ports []sandbox.Port, changes []string) ([]sandbox.PortParams, error) {
	out := []sandbox.PortParams{} // not nil, which would mean no change
	for _, p := range ports {
		out = append(out, sandbox.PortParams{Port: p.Port, Access: p.Access})
	}
	find := func(port int) int {
		for i, p := range out {
			if p.Port == port {
				return i
			}
		}
		return -1
	}
	for _, change := range changes {
		text, remove := strings.CutSuffix(change, "-")
		p, err := parsePort(text)
		if err != nil {
			return nil, err
		}
		i := find(p.Port)
		switch {
		case remove && i < 0:
			return nil, cay.Errorf(cay.Invalid, "port %d is not declared", p.Port)
		case remove:
			out = append(out[:i], out[i+1:]...)
		case i >= 0:
			out[i] = p
		default:
			out = append(out, p)
		}
	}
	return out, nil
}

const forwardHelp = `Make ports of a sandbox reachable at ports of this machine, until interrupted.
LOCAL:PORT chooses the port of this machine, 0 any free one; the ports of the
sandbox need not be declared. A program that listens on localhost in the sandbox
is found too.

Before, the order was PORT:LOCAL. For a version, what can only be meant like that
is refused.`

func newSandboxForward(a *app) *cobra.Command {
	var address string
	c := &cobra.Command{
		Use:     "forward SANDBOX [LOCAL:]PORT...",
		Short:   "Make ports of a sandbox reachable on this machine",
		Long:    forwardHelp,
		Example: "  cay sandbox forward web 3000\n  cay sandbox forward db 15432:5432",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) < 2 {
				return usage(cmd, "it takes a sandbox and one or more ports")
			}
			for _, spec := range args[1:] {
				if _, _, err := parseForward(spec); err != nil {
					return usage(cmd, "%v", err)
				}
			}
			return nil
		},
		ValidArgsFunction: a.completeSandboxes(1),
	}
	c.Flags().StringVar(&address, "address", "127.0.0.1", "address of this machine to listen on")
	return a.verb(c, func(ctx context.Context, args []string) error {
		s, err := a.sandboxes().Get(ctx, args[0])
		if err != nil {
			return err
		}
		return a.forward(ctx, s, address, args[1:])
	})
}

// parseForward reads PORT or LOCAL:PORT.
func parseForward(text string) (port, local int, err error) {
	here, remote, given := strings.Cut(text, ":")
	local, err = strconv.Atoi(here)
	if err == nil && !given {
		remote = here
	}
	if err == nil {
		port, err = strconv.Atoi(remote)
	}
	switch {
	case err == nil && port == 0 && local >= 1 && local <= 65535:
		return 0, 0, fmt.Errorf("%q names no port of the sandbox: the order is LOCAL:PORT now, so write 0:%d", text, local)
	case err != nil || port < 1 || port > 65535 || local < 0 || local > 65535:
		return 0, 0, fmt.Errorf("%q is neither PORT nor LOCAL:PORT", text)
	}
	return port, local, nil
}

// refuseOld returns an error for LOCAL:PORT, the former order of PORT:LOCAL, if the meaning is
// certain: a program in the sandbox listens at the first port, and none at the second.
func (f *forwarder) refuseOld(ctx context.Context, port, local int) error {
	if local == 0 || local == port || !f.listens(ctx, local) || f.listens(ctx, port) {
		return nil
	}
	return &exitError{exitUsage, cay.Errorf(cay.Invalid, "nothing listens at port %d of the sandbox, but at %d: the order is LOCAL:PORT now", port, local).
		WithHint("write %d:%d", port, local)}
}

// listens reports whether a program in the sandbox takes connections at a port.
func (f *forwarder) listens(ctx context.Context, port int) bool {
	conn, err := f.client.DialPort(ctx, f.ref, port)
	if err != nil {
		return false
	}
	conn.Close() // nothing was sent
	return true
}

// forwarded is a forwarded port.
type forwarded struct {
	Port    int    `json:"port"`
	Address string `json:"address"`
}

// forward listens for all specs, prints the addresses, and serves until ctx ends.
func (a *app) forward(ctx context.Context, s *sandbox.Sandbox, address string, specs []string) error {
	f := &forwarder{a: a, client: a.sandboxes(), ref: s.ID, slots: make(chan struct{}, maxForwards)}
	defer f.close()
	all := []forwarded{}
	for _, spec := range specs {
		port, local, err := parseForward(spec)
		if err != nil {
			return err
		}
		if err := f.refuseOld(ctx, port, local); err != nil {
			return err
		}
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(address, strconv.Itoa(local)))
		if err != nil {
			return cay.Errorf(cay.Unavailable, "cannot forward port %d: %w", port, err).WithHint("choose another local port, as in 0:%d for any", port)
		}
		f.listeners = append(f.listeners, l)
		all = append(all, forwarded{port, l.Addr().String()})
		f.work.Go(func() { f.serve(ctx, l, port) })
	}
	err := a.show(all, func(w io.Writer) {
		for _, p := range all {
			fmt.Fprintf(w, "%s -> port %d of %s\n", p.Address, p.Port, clean(s.Name))
		}
	})
	if err != nil {
		return err
	}
	<-ctx.Done()
	return cay.Errorf(cay.Canceled, "interrupted")
}

// maxForwards bounds the connections forwarded at one time; more wait.
const maxForwards = 256

type forwarder struct {
	a         *app
	client    *sandbox.Client
	ref       string
	slots     chan struct{}
	listeners []net.Listener
	work      sync.WaitGroup
}

// close ends all connections; call it after serve's context has ended, or before anything was
// accepted.
func (f *forwarder) close() {
	for _, l := range f.listeners {
		l.Close()
	}
	f.work.Wait()
}

func (f *forwarder) serve(ctx context.Context, l net.Listener, port int) {
	for {
		select {
		case f.slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		conn, err := l.Accept()
		if err != nil {
			<-f.slots
			if ctx.Err() == nil && !errors.Is(err, net.ErrClosed) {
				f.a.warn("port %d is no longer forwarded: %v", port, err)
			}
			return
		}
		f.work.Go(func() {
			defer func() { <-f.slots }()
			f.connect(ctx, conn, port)
		})
	}
}

// connect opens a connection into the sandbox and joins it with a local connection.
func (f *forwarder) connect(ctx context.Context, local net.Conn, port int) {
	defer local.Close()
	remote, err := f.client.DialPort(ctx, f.ref, port)
	if err != nil {
		if ctx.Err() == nil {
			f.a.report(err)
		}
		return
	}
	defer remote.Close()
	defer context.AfterFunc(ctx, func() {
		local.Close()
		remote.Close()
	})()
	var both sync.WaitGroup
	both.Go(func() { pipe(remote, local) })
	both.Go(func() { pipe(local, remote) })
	both.Wait()
}

// pipe copies until src ends, and then ends dst in the same way.
func pipe(dst, src net.Conn) {
	_, err := io.Copy(dst, src)
	if half, ok := dst.(interface{ CloseWrite() error }); ok && err == nil && half.CloseWrite() == nil {
		return
	}
	dst.Close()
	src.Close()
}
