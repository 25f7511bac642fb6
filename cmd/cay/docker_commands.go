package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/spf13/cobra"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/sandbox"
)

// dockerCommand returns a command that uses a socket.
func (o *dockerOptions) command(a *app, c *cobra.Command, run func(ctx context.Context, d *dockerClient, args []string) error) *cobra.Command {
	return a.verb(c, func(ctx context.Context, args []string) error {
		d, err := o.client()
		if err != nil {
			return err
		}
		return run(ctx, d, args)
	})
}

// newDockerShow returns a command that shows one object.
func newDockerShow(a *app, o *dockerOptions, use, short, at string) *cobra.Command {
	var format string
	c := &cobra.Command{Use: use, Short: short, Args: none, ValidArgsFunction: cobra.NoFileCompletions}
	c.Flags().StringVarP(&format, "format", "f", "", "\"json\", or a Go template")
	return o.command(a, c, func(ctx context.Context, d *dockerClient, _ []string) error {
		var v map[string]any
		if err := d.json(ctx, http.MethodGet, at, nil, &v); err != nil {
			return err
		}
		if use == "version" { // as in docker's command line
			v = map[string]any{"Server": v, "Client": map[string]any{"Version": cay.Version()}}
		}
		if format == "" {
			return a.printJSON(v)
		}
		return dockerFormat(a.stdout, format, v)
	})
}

func newDockerPs(a *app, o *dockerOptions) *cobra.Command {
	var all, quiet bool
	var filters []string
	var format string
	c := &cobra.Command{Use: "ps", Short: "List containers", Args: none, ValidArgsFunction: cobra.NoFileCompletions}
	c.Flags().BoolVarP(&all, "all", "a", false, "also those that do not run")
	c.Flags().BoolVarP(&quiet, "quiet", "q", false, "print ids only")
	c.Flags().StringArrayVarP(&filters, "filter", "f", nil, "NAME=VALUE, as label=key=value; may be repeated")
	c.Flags().StringVar(&format, "format", "", "\"json\", or a Go template")
	return o.command(a, c, func(ctx context.Context, d *dockerClient, _ []string) error {
		q, err := dockerFilters(filters)
		if err != nil {
			return err
		}
		if all {
			q.Set("all", "1")
		}
		var list []struct {
			ID, Image, Command, State, Status string
			Names                             []string
			Labels                            map[string]string
		}
		if err := d.json(ctx, http.MethodGet, "/containers/json", q, &list); err != nil {
			return err
		}
		var rows []any
		t := newTable("CONTAINER ID", "IMAGE", "COMMAND", "STATUS", "NAMES")
		for _, c := range list {
			id, names := c.ID[:min(12, len(c.ID))], strings.ReplaceAll(strings.Join(c.Names, ","), "/", "")
			var labels []string
			for k, v := range c.Labels {
				labels = append(labels, k+"="+v)
			}
			rows = append(rows, map[string]any{
				"ID": id, "Image": c.Image, "Command": c.Command, "State": c.State, "Status": c.Status, "Names": names, "Labels": strings.Join(labels, ","),
			})
			t.row(id, c.Image, c.Command, c.Status, names)
		}
		return listed(a, format, quiet, rows, t)
	})
}

// listed prints a list: by a template, or the field ID alone, or a table.
func listed(a *app, format string, quiet bool, rows []any, t *table) error {
	if quiet && format == "" {
		format = "{{.ID}}"
	}
	if format != "" {
		return dockerFormat(a.stdout, format, rows...)
	}
	w := &errWriter{w: a.stdout}
	t.print(w)
	return w.err
}

func newDockerImages(a *app, o *dockerOptions, use string) *cobra.Command {
	var quiet bool
	var filters []string
	var format string
	c := &cobra.Command{Use: use, Short: "List images"}
	c.Flags().BoolVarP(&quiet, "quiet", "q", false, "print digests only")
	c.Flags().StringArrayVarP(&filters, "filter", "f", nil, "reference=PATTERN; may be repeated")
	c.Flags().StringVar(&format, "format", "", "\"json\", or a Go template")
	return o.command(a, c, func(ctx context.Context, d *dockerClient, args []string) error {
		for _, ref := range args {
			filters = append(filters, "reference="+ref)
		}
		q, err := dockerFilters(filters)
		if err != nil {
			return err
		}
		var list []struct {
			ID       string
			RepoTags []string
			Size     int64
		}
		if err := d.json(ctx, http.MethodGet, "/images/json", q, &list); err != nil {
			return err
		}
		var rows []any
		t := newTable("REPOSITORY", "TAG", "IMAGE ID", "SIZE")
		for _, img := range list {
			id := strings.TrimPrefix(img.ID, "sha256:")
			id = id[:min(12, len(id))]
			for _, name := range img.RepoTags {
				i := strings.LastIndexByte(name, ':')
				rows = append(rows, map[string]any{"ID": id, "Repository": name[:i], "Tag": name[i+1:], "Digest": img.ID, "Size": bytesText(img.Size)})
				t.row(name[:i], name[i+1:], id, bytesText(img.Size))
			}
		}
		return listed(a, format, quiet, rows, t)
	})
}

// newDockerInspect returns a command that shows containers or images. kinds are the
// paths before a name that are tried in turn.
func newDockerInspect(a *app, o *dockerOptions, short string, kinds ...string) *cobra.Command {
	var format string
	c := &cobra.Command{Use: "inspect NAME...", Short: short, Args: atLeast(1, "one or more names")}
	c.Flags().StringVarP(&format, "format", "f", "", "\"json\", or a Go template")
	return o.command(a, c, func(ctx context.Context, d *dockerClient, args []string) error {
		found := []any{}
		for _, name := range args {
			var v map[string]any
			var err error
			for _, kind := range kinds {
				if err = d.json(ctx, http.MethodGet, path.Join(kind, name, "json"), nil, &v); cay.CodeOf(err) != cay.NotFound {
					break
				}
			}
			if err != nil {
				return err
			}
			found = append(found, v)
		}
		if format == "" {
			return a.printJSON(found)
		}
		return dockerFormat(a.stdout, format, found...)
	})
}

// newDockerEach returns a command that makes a request for each of its arguments.
func newDockerEach(a *app, o *dockerOptions, use, short, what, method string, at func(name string) (string, url.Values), flags func(c *cobra.Command)) *cobra.Command {
	c := &cobra.Command{Use: use, Short: short, Args: atLeast(1, "one or more "+what)}
	if flags != nil {
		flags(c)
	}
	return o.command(a, c, func(ctx context.Context, d *dockerClient, args []string) error {
		var errs []error
		for _, name := range args {
			p, q := at(name)
			if err := d.json(ctx, method, p, q, nil); err != nil {
				errs = append(errs, err)
			} else if _, err := fmt.Fprintln(a.stdout, clean(name)); err != nil {
				return err
			}
		}
		return a.reportAll(errs...)
	})
}

func newDockerRm(a *app, o *dockerOptions) *cobra.Command {
	var force, volumes bool
	return newDockerEach(a, o, "rm CONTAINER...", "Remove containers", "containers", http.MethodDelete, func(name string) (string, url.Values) {
		q := url.Values{}
		if force {
			q.Set("force", "1")
		}
		return "/containers/" + name, q
	}, func(c *cobra.Command) {
		c.Flags().BoolVarP(&force, "force", "f", false, "end those that run")
		c.Flags().BoolVarP(&volumes, "volumes", "v", false, "without effect: there are none")
	})
}

func newDockerRmi(a *app, o *dockerOptions, use string) *cobra.Command {
	var force bool
	return newDockerEach(a, o, use+" IMAGE...", "Forget names of images", "images", http.MethodDelete, func(name string) (string, url.Values) {
		return "/images/" + name, nil
	}, func(c *cobra.Command) {
		c.Flags().BoolVarP(&force, "force", "f", false, "without effect: only names are removed")
	})
}

func newDockerStop(a *app, o *dockerOptions) *cobra.Command {
	var seconds string
	return newDockerEach(a, o, "stop CONTAINER...", "Stop containers", "containers", http.MethodPost, func(name string) (string, url.Values) {
		q := url.Values{}
		if seconds != "" {
			q.Set("t", seconds)
		}
		return "/containers/" + name + "/stop", q
	}, func(c *cobra.Command) {
		c.Flags().StringVarP(&seconds, "time", "t", "", "seconds until they are killed (default 10)")
	})
}

func newDockerKill(a *app, o *dockerOptions) *cobra.Command {
	var signal string
	return newDockerEach(a, o, "kill CONTAINER...", "Send a signal to containers", "containers", http.MethodPost, func(name string) (string, url.Values) {
		return "/containers/" + name + "/kill", url.Values{"signal": {signal}}
	}, func(c *cobra.Command) {
		c.Flags().StringVarP(&signal, "signal", "s", "KILL", "the signal")
	})
}

// splitTag splits a name into its repository and its tag.
func splitTag(name string) (repo, tag string) {
	if i := strings.LastIndexByte(name, ':'); i > strings.LastIndexByte(name, '/') {
		return name[:i], name[i+1:]
	}
	return name, "latest"
}

func newDockerTag(a *app, o *dockerOptions) *cobra.Command {
	c := &cobra.Command{Use: "tag IMAGE NAME", Short: "Give an image one more name", Args: exactly(2, "an image and its new name")}
	return o.command(a, c, func(ctx context.Context, d *dockerClient, args []string) error {
		repo, tag := splitTag(args[1])
		return d.json(ctx, http.MethodPost, path.Join("/images", args[0], "tag"), url.Values{"repo": {repo}, "tag": {tag}}, nil)
	})
}

func newDockerPull(a *app, o *dockerOptions) *cobra.Command {
	var platform string
	var quiet bool
	c := &cobra.Command{Use: "pull IMAGE", Short: "Fetch an image from a registry", Args: exactly(1, "one image")}
	c.Flags().StringVar(&platform, "platform", "", "must be the machine's own")
	c.Flags().BoolVarP(&quiet, "quiet", "q", false, "show no progress")
	return o.command(a, c, func(ctx context.Context, d *dockerClient, args []string) error {
		w := io.Writer(a.stdout)
		if quiet {
			w = io.Discard
		}
		return d.pull(ctx, args[0], platform, w)
	})
}

// pull makes the daemon pull an image, and prints the daemon's progress.
func (c *dockerClient) pull(ctx context.Context, ref, platform string, w io.Writer) error {
	q := url.Values{"fromImage": {ref}}
	if platform != "" {
		q.Set("platform", platform)
	}
	resp, err := c.do(ctx, http.MethodPost, "/images/create", q)
	if err != nil {
		return err
	}
	return printSteps(resp, w)
}

// printSteps prints the progress of a pull or a push.
func printSteps(resp *http.Response, w io.Writer) error {
	defer resp.Body.Close()
	for lines := json.NewDecoder(resp.Body); ; {
		var line struct{ Status, ID, Progress, Error string }
		err := lines.Decode(&line)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return cay.Errorf(cay.Unavailable, "the answer ended early: %w", err)
		case line.Error != "":
			return cay.Errorf(cay.Unavailable, "%s", line.Error)
		case line.ID == "" && line.Status != "":
			if _, err := fmt.Fprintln(w, clean(line.Status)); err != nil {
				return err
			}
		}
	}
}

func newDockerPush(a *app, o *dockerOptions) *cobra.Command {
	var all, quiet bool
	c := &cobra.Command{
		Use: "push IMAGE", Short: "Send an image to a registry",
		Long: "Send an image to the registry that its name says, with the credentials of docker or podman\non this machine, else of the daemon's machine if the socket speaks for an admin token.",
		Args: exactly(1, "one image"),
	}
	c.Flags().BoolVarP(&all, "all-tags", "a", false, "send all images of the repository")
	c.Flags().BoolVarP(&quiet, "quiet", "q", false, "show no progress")
	return o.command(a, c, func(ctx context.Context, d *dockerClient, args []string) error {
		repo, tag := splitTag(args[0])
		q := url.Values{"tag": {tag}}
		if all {
			q = nil
		}
		auth, err := registryAuth(ctx, args[0])
		if err != nil {
			return err
		}
		header := http.Header{}
		if auth != (sandbox.RegistryAuth{}) {
			text, err := json.Marshal(map[string]string{
				"username": auth.Username, "password": auth.Password, "identitytoken": auth.IdentityToken, "registrytoken": auth.RegistryToken,
			})
			if err != nil {
				return err
			}
			header.Set("X-Registry-Auth", base64.URLEncoding.EncodeToString(text))
		}
		resp, err := d.requestWith(ctx, http.MethodPost, path.Join("/images", repo, "push"), q, header, nil)
		if err != nil {
			return err
		}
		w := io.Writer(a.stdout)
		if quiet {
			w = io.Discard
		}
		return printSteps(resp, w)
	})
}

// registryAuth returns the credentials that docker or podman has on this machine for the
// registry of an image, or none.
func registryAuth(ctx context.Context, ref string) (auth sandbox.RegistryAuth, err error) {
	parsed, err := name.ParseReference(ref)
	if err != nil {
		return auth, cay.Errorf(cay.Invalid, "%q is not the name of an image: %w", ref, err)
	}
	found, err := authn.Resolve(ctx, authn.DefaultKeychain, parsed.Context())
	if err == nil && found != authn.Anonymous {
		var c *authn.AuthConfig
		if c, err = authn.Authorization(ctx, found); err == nil {
			// A client sends one kind of them; docker's order.
			switch {
			case c.IdentityToken != "":
				auth.IdentityToken = c.IdentityToken
			case c.RegistryToken != "":
				auth.RegistryToken = c.RegistryToken
			default:
				auth.Username, auth.Password = c.Username, c.Password
			}
		}
	}
	if err != nil {
		return auth, cay.Errorf(cay.Invalid, "read the credentials of docker for %s: %w", parsed.Context().RegistryStr(), err)
	}
	return auth, nil
}

func newDockerSave(a *app, o *dockerOptions) *cobra.Command {
	var output string
	c := &cobra.Command{Use: "save IMAGE...", Short: "Write images to an archive, for \"docker load\"", Args: atLeast(1, "one or more images")}
	c.Flags().StringVarP(&output, "output", "o", "", "the archive (default standard output)")
	return o.command(a, c, func(ctx context.Context, d *dockerClient, args []string) error {
		if err := a.wantsFile(c, output); err != nil {
			return err
		}
		resp, err := d.do(ctx, http.MethodGet, "/images/get", url.Values{"names": args})
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		return a.writeArchive(output, resp.Body)
	})
}

func newDockerLoad(a *app, o *dockerOptions) *cobra.Command {
	var input string
	var quiet bool
	c := &cobra.Command{Use: "load", Short: "Import images of an archive of \"docker save\"", Args: none, ValidArgsFunction: cobra.NoFileCompletions}
	c.Flags().StringVarP(&input, "input", "i", "", "the archive (default standard input)")
	c.Flags().BoolVarP(&quiet, "quiet", "q", false, "without effect: no progress is shown")
	return o.command(a, c, func(ctx context.Context, d *dockerClient, _ []string) error {
		from := io.Reader(a.stdin)
		if input != "" {
			f, err := os.Open(input)
			if err != nil {
				return cay.Errorf(cay.Invalid, "cannot load: %w", err)
			}
			defer f.Close() // it is only read
			from = f
		}
		resp, err := d.request(ctx, http.MethodPost, "/images/load", nil, from)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		for lines := json.NewDecoder(resp.Body); ; {
			var line struct{ Stream, Error string }
			err := lines.Decode(&line)
			switch {
			case errors.Is(err, io.EOF):
				return nil
			case err != nil:
				return cay.Errorf(cay.Unavailable, "the answer to the archive ended early: %w", err)
			case line.Error != "":
				return cay.Errorf(cay.Unavailable, "%s", line.Error)
			}
			if _, err := fmt.Fprintln(a.stdout, clean(strings.TrimSuffix(line.Stream, "\n"))); err != nil {
				return err
			}
		}
	})
}

func newDockerContext(a *app, o *dockerOptions) *cobra.Command {
	var format string
	ls := &cobra.Command{Use: "ls", Short: "List contexts: the one socket", Args: none, ValidArgsFunction: cobra.NoFileCompletions}
	ls.Flags().StringVar(&format, "format", "", "\"json\", or a Go template")
	a.verb(ls, func(context.Context, []string) error {
		d, err := o.client()
		if err != nil {
			return err
		}
		endpoint := "unix://" + d.path
		t := newTable("NAME", "DOCKER ENDPOINT")
		t.row("cay", endpoint)
		return listed(a, format, false, []any{map[string]any{"Name": "cay", "Current": true, "Description": "", "DockerEndpoint": endpoint, "Error": ""}}, t)
	})
	return newNoun("context", "Show which socket is used", "Show which socket is used.", ls)
}
