package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/compat/docker"
	"github.com/cayhq/cay/sandbox"
)

const dockerHelp = `Use sandboxes by the Docker Engine API: docker's own command line, its SDKs, and
programs that run code in containers. docs/cloudflare.md says what works.

"serve" serves the API. "build" builds images, as docker's own command line does with
DOCKER_BUILDKIT=0. The others are those that people and Cloudflare's tools run, for machines without
docker's; they speak to the socket at --host, "exec" and "cp" also to the daemon at --url.
A program named docker that is cay, by a link, is "cay docker".`

func newDockerCommand(a *app) *cobra.Command {
	var o dockerOptions
	image := newNoun("image", "Work with images", "Work with images.",
		newDockerInspect(a, &o, "Show images", "/images"), newDockerImages(a, &o, "ls"), newDockerRmi(a, &o, "rm"), newDockerTag(a, &o), newDockerPull(a, &o), newDockerPush(a, &o),
		newDockerLoad(a, &o), newDockerSave(a, &o), newDockerBuild(a))
	c := newNoun("docker", "Serve the Docker Engine API", dockerHelp,
		newDockerServe(a), newDockerBuild(a),
		newDockerShow(a, &o, "info", "Show what serves the socket", "/info"), newDockerShow(a, &o, "version", "Show versions", "/version"),
		newDockerRun(a, &o), newDockerExec(a, &o), newDockerLogs(a, &o), newDockerCopy(a, &o),
		newDockerPs(a, &o), newDockerInspect(a, &o, "Show containers or images", "/containers", "/images"), newDockerStop(a, &o), newDockerKill(a, &o), newDockerRm(a, &o),
		image, newDockerImages(a, &o, "images"), newDockerPull(a, &o), newDockerPush(a, &o), newDockerLoad(a, &o), newDockerSave(a, &o), newDockerTag(a, &o), newDockerRmi(a, &o, "rmi"), newDockerContext(a, &o))
	c.PersistentFlags().StringVarP(&o.host, "host", "H", "", "socket that is spoken to (default $DOCKER_HOST, else that of \"cay docker serve\")")
	return c
}

// dockerArgs returns cay's arguments for a process that was started by the name
// docker.
func dockerArgs(argv []string) []string {
	if len(argv) > 0 && filepath.Base(argv[0]) == "docker" {
		return append([]string{"docker"}, argv[1:]...)
	}
	return argv[1:]
}

const dockerServeHelp = `Serve the Docker Engine API on a unix socket, until interrupted. A container is a
sandbox of the daemon at --url. Whoever can open the socket, which only this user can,
speaks for the token of this command, and its project.

What would lower the isolation of a sandbox is refused: privileged containers,
directories and devices of the host, the host's network.`

// dockerOptions name the socket, and the project of the containers. host is the
// socket that commands connect to.
type dockerOptions struct{ socket, project, host string }

func (o *dockerOptions) register(c *cobra.Command) {
	c.Flags().StringVar(&o.socket, "socket", "", "path of the socket (default cay/docker.sock in $XDG_RUNTIME_DIR, else in the user's cache directory)")
	c.Flags().StringVar(&o.project, "project", "", "project of the containers, by id or name (default the token's, else the team's default one)")
}

func newDockerServe(a *app) *cobra.Command {
	var o dockerOptions
	c := &cobra.Command{
		Use: "serve", Short: "Serve it on a unix socket", Long: dockerServeHelp,
		Example: "  cay docker serve --socket /tmp/cay.sock &\n  DOCKER_HOST=unix:///tmp/cay.sock docker run --rm debian uname -a",
		Args:    none, ValidArgsFunction: cobra.NoFileCompletions,
	}
	o.register(c)
	return a.verb(c, func(ctx context.Context, _ []string) error {
		path, err := o.path()
		if err != nil {
			return err
		}
		server, l, err := o.listen(ctx, a, path)
		if err != nil {
			return err
		}
		if err := a.printSocket(path); err != nil {
			l.Close()
			return err
		}
		if err := server.Serve(ctx, l); err != nil {
			return err
		}
		return cay.Errorf(cay.Canceled, "interrupted")
	})
}

// path returns the path of the socket.
func (o *dockerOptions) path() (string, error) {
	if o.socket != "" {
		return filepath.Abs(o.socket)
	}
	dir := os.Getenv("XDG_RUNTIME_DIR")
	if dir == "" {
		var err error
		if dir, err = os.UserCacheDir(); err != nil {
			return "", cay.Errorf(cay.Invalid, "there is no directory for the socket: %w", err).WithHint("name its path with --socket")
		}
	}
	return filepath.Join(dir, "cay", "docker.sock"), nil
}

// listen creates the socket and its server.
func (o *dockerOptions) listen(ctx context.Context, a *app, path string) (*docker.Server, net.Listener, error) {
	project := ""
	if o.project != "" {
		var err error
		if project, err = findProject(ctx, a.accounts(), o.project); err != nil {
			return nil, nil, err
		}
	}
	client := a.sandboxes()
	l, err := docker.Listen(ctx, path)
	if err != nil {
		return nil, nil, err
	}
	return docker.New(docker.Config{
		Sandboxes: client, Images: client.Images(), ProjectID: project, Version: cay.Version(),
		Build: func(ctx context.Context, b docker.Build) (*sandbox.Image, error) {
			return a.buildForSocket(ctx, client, project, b)
		},
		Logger: slog.New(slog.NewTextHandler(a.stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	}), l, nil
}

func (a *app) printSocket(path string) error {
	if a.json {
		return a.printJSON(map[string]string{"socket": path})
	}
	_, err := fmt.Fprintf(a.stdout, "cay serves the Docker Engine API on %s\n  export DOCKER_HOST=unix://%s\n", path, path)
	return err
}
