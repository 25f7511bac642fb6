package main

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
)

// box returns the sandbox of a container; "exec" and "cp" use the daemon's own API for
// it.
func (c *dockerClient) box(ctx context.Context, a *app, container string) (string, error) {
	var found struct{ ID string }
	if err := c.send(ctx, http.MethodGet, path.Join("/containers", container, "json"), nil, nil, &found); err != nil {
		return "", err
	}
	page, err := a.sandboxes().List(ctx, sandbox.ListParams{Tags: map[string]string{"docker": "container", "docker.id": found.ID}})
	if err != nil {
		return "", err
	}
	if len(page.Items) == 0 {
		return "", cay.Errorf(cay.NotFound, "the container %s has no sandbox that this token can see", container).
			WithHint("use the token and the daemon of \"cay docker serve\"")
	}
	return page.Items[0].ID, nil
}

func newDockerExec(a *app, o *dockerOptions) *cobra.Command {
	var f execFlags
	var detach bool
	c := &cobra.Command{
		Use: "exec [flags] CONTAINER COMMAND [ARG...]", Short: "Run a command in a container", Long: "Run a command in a container that runs.\n\n" + execCodes,
		Args: atLeast(2, "a container and a command"),
	}
	c.Flags().SetInterspersed(false)
	f.register(c)
	c.Flags().BoolVarP(&detach, "detach", "d", false, "do not wait for the end")
	return o.command(a, c, func(ctx context.Context, d *dockerClient, args []string) error {
		ref, err := d.box(ctx, a, args[0])
		if err != nil {
			return before(ctx, err)
		}
		p, err := f.params(a, args[1:])
		if err != nil {
			return before(ctx, err)
		}
		p.Stdin = f.interactive && !detach // as in docker's command line
		if detach {
			if _, err := a.sandboxes().Start(ctx, ref, p); err != nil {
				return before(ctx, err)
			}
			return nil
		}
		return a.runAttached(ctx, a.sandboxes(), ref, p, f.tty)
	})
}

func newDockerCopy(a *app, o *dockerOptions) *cobra.Command {
	c := &cobra.Command{
		Use: "cp CONTAINER:PATH PATH | PATH CONTAINER:PATH", Short: "Copy files into a container or out of it",
		Long: "Copy a file or a directory, as \"cay sandbox copy\" does.", Args: exactly(2, "a source and a destination"),
	}
	return o.command(a, c, func(ctx context.Context, d *dockerClient, args []string) error {
		src, err := parsePlace(args[0])
		if err != nil {
			return &exitError{exitUsage, err}
		}
		dst, err := parsePlace(args[1])
		if err != nil {
			return &exitError{exitUsage, err}
		}
		if src.local() == dst.local() {
			return &exitError{exitUsage, cay.Errorf(cay.Invalid, "one of %q and %q must be CONTAINER:PATH, the other a path here", args[0], args[1])}
		}
		inside := &dst
		if dst.local() {
			inside = &src
		}
		if inside.sandbox, err = d.box(ctx, a, inside.sandbox); err != nil {
			return err
		}
		if !strings.HasPrefix(inside.path, "/") {
			inside.path = "/" + inside.path // paths of docker are relative to the root
		}
		if src.local() {
			return a.copyIn(ctx, a.sandboxes(), true, src.path, dst)
		}
		return a.copyOut(ctx, a.sandboxes(), true, src, dst.path)
	})
}

// dockerTime translates a time for the API: seconds since 1970, and nanoseconds after the
// point. value is a duration before now, a date or time in RFC 3339 (local without an
// offset), or such seconds.
func dockerTime(value string, now time.Time) (string, error) {
	if _, err := strconv.ParseFloat(value, 64); err == nil {
		return value, nil
	}
	if d, err := time.ParseDuration(value); err == nil {
		return unixText(now.Add(-d)), nil
	}
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05", "2006-01-02T15:04", "2006-01-02"} {
		if at, err := time.ParseInLocation(layout, value, time.Local); err == nil {
			return unixText(at), nil
		}
	}
	return "", fmt.Errorf("%q is no time: write 2026-11-27T08:00:00Z, seconds since 1970, or 10m for ten minutes ago", value)
}

func unixText(t time.Time) string { return fmt.Sprintf("%d.%09d", t.Unix(), t.Nanosecond()) }

func newDockerLogs(a *app, o *dockerOptions) *cobra.Command {
	var follow, times bool
	var tail, since, until string
	c := &cobra.Command{Use: "logs CONTAINER", Short: "Show the output of a container", Args: exactly(1, "a container")}
	c.Flags().BoolVarP(&follow, "follow", "f", false, "go on until the container ends")
	c.Flags().StringVarP(&tail, "tail", "n", "all", "number of lines from the end")
	c.Flags().BoolVarP(&times, "timestamps", "t", false, "print the time of each line before it")
	c.Flags().StringVar(&since, "since", "", "only lines from that time on: a time in RFC 3339, seconds since 1970, or how long ago, as 10m")
	c.Flags().StringVar(&until, "until", "", "only lines up to that time")
	return o.command(a, c, func(ctx context.Context, d *dockerClient, args []string) error {
		q := url.Values{"stdout": {"1"}, "stderr": {"1"}, "tail": {tail}}
		for name, value := range map[string]string{"since": since, "until": until} {
			if value == "" {
				continue
			}
			at, err := dockerTime(value, time.Now())
			if err != nil {
				return cay.Errorf(cay.Invalid, "--%s: %w", name, err)
			}
			q.Set(name, at)
		}
		for name, given := range map[string]bool{"follow": follow, "timestamps": times} {
			if given {
				q.Set(name, "1")
			}
		}
		resp, err := d.do(ctx, http.MethodGet, path.Join("/containers", args[0], "logs"), q)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		return copyDocker(resp.Body, a.stdout, a.stderr, strings.HasSuffix(resp.Header.Get("Content-Type"), "raw-stream"))
	})
}
