package main

import (
	"context"
	"io"
	"net/http"
	"sync"

	"github.com/spf13/cobra"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/wire"
	"github.com/cayhq/cay/sandbox"
)

// copySpec is one --copy or --copy-out.
type copySpec struct{ src, dst string }

func parseCopies(flag string, texts []string) ([]copySpec, error) {
	var specs []copySpec
	for _, t := range texts {
		src, dst, err := parseCopySpec(flag, t)
		if err != nil {
			return nil, err
		}
		specs = append(specs, copySpec{src, dst})
	}
	return specs, nil
}

const copyHelp = `Copy a file or a directory into a sandbox or out of it. One of SRC and DST is
SANDBOX:PATH, where PATH may be relative to the sandbox's working directory; the
other is a path here. A path here that contains a colon is written ./a:b.

If DST is a directory, or ends in a slash, SRC is copied into it under its own
name; else DST is what the copy will be called. "-" is standard input or output: of
a file its content, of a directory a tar archive. Owners are not copied, and
devices, pipes and sockets are left out.`

func newSandboxCopy(a *app) *cobra.Command {
	var quiet bool
	c := &cobra.Command{
		Use: "copy SRC DST", Aliases: []string{"cp"}, Short: "Copy files into a sandbox or out of it", Long: copyHelp,
		Example: "  cay sandbox copy ./src web:app\n  cay sandbox copy web:/var/log/app.log .\n  cay sandbox copy web:app - | tar t",
		Args:    exactly(2, "SRC and DST"),
	}
	c.Flags().BoolVarP(&quiet, "quiet", "q", false, "show no progress")
	return a.verb(c, func(ctx context.Context, args []string) error {
		src, err := parsePlace(args[0])
		if err != nil {
			return &exitError{exitUsage, err}
		}
		dst, err := parsePlace(args[1])
		if err != nil {
			return &exitError{exitUsage, err}
		}
		if src.local() == dst.local() {
			return &exitError{exitUsage, cay.Errorf(cay.Invalid, "one of %q and %q must be SANDBOX:PATH, the other a path here", args[0], args[1])}
		}
		if a.json && dst == (place{path: "-"}) {
			return &exitError{exitUsage, cay.Errorf(cay.Invalid, "--json does not go together with copying to standard output")}
		}
		quiet = quiet || a.json
		if src.local() {
			err = a.copyIn(ctx, a.sandboxes(), quiet, src.path, dst)
		} else {
			err = a.copyOut(ctx, a.sandboxes(), quiet, src, dst.path)
		}
		if err != nil || !a.json {
			return err
		}
		return a.printJSON(map[string]string{"source": args[0], "destination": args[1]})
	})
}

// copyIn copies src, here, to a sandbox.
func (a *app) copyIn(ctx context.Context, c *sandbox.Client, quiet bool, src string, dst place) error {
	p := a.newProgress(quiet || !isTerminal(a.stderr))
	defer p.done()
	c = counting(c, p, clean(src))
	if src == "-" {
		_, err := c.WriteFile(ctx, dst.sandbox, dst.path, a.stdin, sandbox.WriteParams{Parents: true})
		return err
	}
	return c.Sandbox(dst.sandbox).CopyTo(ctx, src, dst.path)
}

// copyOut copies src, in a sandbox, to a path here.
func (a *app) copyOut(ctx context.Context, c *sandbox.Client, quiet bool, src place, dst string) error {
	if dst == "-" {
		return a.copyToStdout(ctx, c, src)
	}
	p := a.newProgress(quiet || !isTerminal(a.stderr))
	defer p.done()
	return counting(c, p, clean(src.path)).Sandbox(src.sandbox).CopyFrom(ctx, src.path, dst)
}

func (a *app) copyToStdout(ctx context.Context, c *sandbox.Client, src place) error {
	info, err := c.Stat(ctx, src.sandbox, src.path, true)
	if err != nil {
		return err
	}
	var body io.ReadCloser
	if info.Type == sandbox.TypeDir {
		body, err = c.Archive(ctx, src.sandbox, src.path, sandbox.Tar)
	} else {
		body, _, err = c.ReadFile(ctx, src.sandbox, src.path, sandbox.ReadParams{})
	}
	if err != nil {
		return err
	}
	defer body.Close() // it was only read
	_, err = io.Copy(a.stdout, body)
	return err
}

// counting returns a client like c that shows the number of copied bytes, as progress of
// name.
func counting(c *sandbox.Client, p *progress, name string) *sandbox.Client {
	if p == nil || p.ui == nil {
		return c
	}
	hc := http.Client{Transport: http.DefaultTransport}
	if c.HTTPClient != nil {
		hc = *c.HTTPClient
		if hc.Transport == nil {
			hc.Transport = http.DefaultTransport
		}
	}
	hc.Transport = &countingTransport{base: hc.Transport, p: p, name: name}
	return sandbox.NewClient(sandbox.ClientOptions{URL: c.URL, Token: c.Token, Team: c.Team, HTTPClient: &hc})
}

type countingTransport struct {
	base http.RoundTripper
	p    *progress
	name string

	mu       sync.Mutex // guards what follows, and calls of p
	n, total int64      // total is 0 if unknown
}

// RoundTrip implements http.RoundTripper.
func (t *countingTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body != nil && r.Body != http.NoBody {
		t.begin(r.Header, r.ContentLength)
		r = r.Clone(r.Context())
		r.Body = &countingBody{r.Body, t}
	}
	resp, err := t.base.RoundTrip(r)
	if err == nil {
		t.begin(resp.Header, resp.ContentLength)
		resp.Body = &countingBody{resp.Body, t}
	}
	return resp, err
}

// begin records the length of a body, if the body is a file's content, and resets the count:
// earlier requests only asked about files.
func (t *countingTransport) begin(h http.Header, length int64) {
	if length <= 0 || h.Get("Content-Type") != wire.TypeBytes {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.n, t.total = 0, length
}

type countingBody struct {
	io.ReadCloser
	t *countingTransport
}

func (b *countingBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.t.mu.Lock()
	defer b.t.mu.Unlock()
	b.t.n += int64(n)
	b.t.p.step(b.t.name, b.t.n, b.t.total)
	return n, err
}
