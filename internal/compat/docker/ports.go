package docker

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cayhq/cay/internal/compat/docker/sidecar"
)

const (
	// maxPublished is how many ports a container publishes.
	maxPublished = 32
	// maxPerPort is how many connections a published port has at a time.
	maxPerPort = 256
	// dialTime bounds a connection to a port in a sandbox.
	dialTime = 10 * time.Second
)

// published is a listener on 127.0.0.1 whose connections lead to a port of a sandbox.
type published struct {
	port  string // in the container: "3000/tcp"
	host  int    // on 127.0.0.1
	l     net.Listener
	tasks sync.WaitGroup
	stop  context.CancelFunc
}

// tcpPort reads "3000", "3000/tcp".
func tcpPort(port string) (int, error) {
	number, protocol, _ := strings.Cut(port, "/")
	n, err := strconv.Atoi(number)
	switch {
	case err != nil || n < 1 || n > 65535:
		return 0, failf(http.StatusBadRequest, "invalid port %q: it is 1 to 65535, with /tcp after it or nothing", port)
	case protocol != "" && protocol != "tcp":
		return 0, failf(http.StatusBadRequest, "cay refuses port %q: only TCP is published", port)
	}
	return n, nil
}

// publish listens for a port of a container. A host port of 0 is any.
func (s *Server) publish(c *container, port string, host int) (*published, error) {
	target, err := tcpPort(port)
	if err != nil {
		return nil, err
	}
	l, err := sidecar.Listener(s.ctx, host)
	if err != nil {
		return nil, failf(http.StatusInternalServerError, "port %d of 127.0.0.1 cannot be published for %s: %v", host, c.Name, err)
	}
	ctx, stop := context.WithCancel(s.ctx)
	p := &published{port: port, host: l.Addr().(*net.TCPAddr).Port, l: l, stop: stop}
	box := c.box.ID
	slots := make(chan struct{}, maxPerPort)
	p.tasks.Go(func() {
		for {
			select {
			case slots <- struct{}{}:
			case <-ctx.Done():
				return
			}
			conn, err := l.Accept()
			if err != nil {
				if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
					return
				}
				<-slots
				select { // out of descriptors, perhaps
				case <-time.After(100 * time.Millisecond):
				case <-ctx.Done():
				}
				continue
			}
			p.tasks.Go(func() {
				defer func() { <-slots }()
				defer conn.Close()
				dialing, cancel := context.WithTimeout(ctx, dialTime)
				defer cancel()
				up, err := s.cfg.Sandboxes.DialPort(dialing, box, target)
				if err != nil {
					return // nothing listens yet: the client sees a connection that ends
				}
				sidecar.Join(ctx, conn, up)
			})
		}
	})
	return p, nil
}

// close ends the listener and its connections, and waits for them.
func (p *published) close() {
	p.stop()
	p.l.Close() // ends Accept
	p.tasks.Wait()
}

// openPorts publishes the ports of a container that starts. Host ports
// of the run before are taken again, if they are free.
func (s *Server) openPorts(c *container) (open []*published, err error) {
	defer func() {
		if err != nil {
			closeAll(open)
		}
	}()
	add := func(port string, host int) error {
		p, err := s.publish(c, port, host)
		if err == nil {
			open = append(open, p)
		}
		return err
	}
	for port, hosts := range c.Spec.Bindings {
		for _, h := range hosts {
			n := c.State.Ports[port]
			if h != "" {
				if n, err = strconv.Atoi(h); err != nil {
					return nil, failf(http.StatusBadRequest, "invalid host port %q", h)
				}
			}
			if err := add(port, n); err != nil {
				return open, err
			}
		}
	}
	if c.Spec.PublishAll {
		for _, port := range c.Spec.Exposed {
			if _, given := c.Spec.Bindings[port]; given {
				continue
			}
			if err := add(port, 0); err != nil {
				return open, err
			}
		}
	}
	return open, nil
}

func closeAll(ports []*published) {
	for _, p := range ports {
		p.close()
	}
}

// closePorts ends what the container publishes.
func (v *live) closePorts() {
	v.mu.Lock()
	ports := v.ports
	v.ports = nil
	v.mu.Unlock()
	closeAll(ports)
}
