package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/cayhq/cay/internal/image"
)

// newNative is a contender for programs as plain processes.
func newNative(images *image.Store, work string) contender {
	root := &rootfs{images: images, dir: filepath.Join(work, "rootfs")}
	return contender{name: "native", skip: root.missing(), runner: &native{root}}
}

// throughNginx is the subject of downloads by plain HTTP through nginx as a
// forward proxy, which also reads every request, though it applies no policy.
func (n *networkBench) throughNginx(native contender) Subject {
	path, err := exec.LookPath("nginx")
	s := Subject{Name: "nginx", Skip: native.skip}
	if err != nil {
		s.Skip = "not installed (Debian package nginx)"
	}
	s.Open = func(ctx context.Context, _ int) (_ *Session, err error) {
		b, err := native.runner.create(ctx) // costs nothing
		if err != nil {
			return nil, err
		}
		dir, err := os.MkdirTemp(n.o.WorkDir, "nginx-")
		if err != nil {
			return nil, fmt.Errorf("make work directory: %w", err)
		}
		proxy, address, err := startNginx(path, dir)
		if err != nil {
			return nil, errors.Join(err, os.RemoveAll(dir))
		}
		v := &visitor{box: b, at: func(int) (string, string) {
			host, port, _ := net.SplitHostPort(address)
			return host, port
		}}
		return &Session{
			Sample: func(ctx context.Context) ([]float64, error) {
				rate, err := v.program(ctx, v.box, "proxied", net.JoinHostPort(n.o.World.at(httpPort)), httpPort, int(n.o.Stream))
				return []float64{rate}, err
			},
			Close: func(context.Context) error {
				err := proxy.Process.Signal(syscall.SIGTERM)
				return errors.Join(err, proxy.Wait(), os.RemoveAll(dir))
			},
		}, nil
	}
	return s
}

const nginxConfig = `daemon off;
pid %[1]s/pid;
error_log stderr crit;
events {}
http {
	access_log off;
	client_body_temp_path %[1]s/body;
	proxy_temp_path %[1]s/proxy;
	fastcgi_temp_path %[1]s/fastcgi;
	uwsgi_temp_path %[1]s/uwsgi;
	scgi_temp_path %[1]s/scgi;
	proxy_max_temp_file_size 0;
	server {
		listen %[2]s;
		location / { proxy_pass http://$http_host$request_uri; proxy_http_version 1.1; }
	}
}
`

// startNginx runs nginx on a socket that exists already: early clients wait for
// nginx.
func startNginx(path, dir string) (*exec.Cmd, string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, "", fmt.Errorf("listen for nginx: %w", err)
	}
	defer l.Close() // nginx has its own
	socket, err := l.(*net.TCPListener).File()
	if err != nil {
		return nil, "", fmt.Errorf("listen for nginx: %w", err)
	}
	defer socket.Close()
	address := l.Addr().String()
	file := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(file, fmt.Appendf(nil, nginxConfig, dir, address), 0o600); err != nil {
		return nil, "", fmt.Errorf("configure nginx: %w", err)
	}
	cmd := exec.Command(path, "-e", "stderr", "-p", dir, "-c", file)
	cmd.ExtraFiles = []*os.File{socket}
	cmd.Env = append(os.Environ(), "NGINX=3;") // how it hands sockets to itself
	if err := cmd.Start(); err != nil {
		return nil, "", fmt.Errorf("start nginx: %w", err)
	}
	return cmd, address, nil
}
