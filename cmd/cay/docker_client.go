package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"text/template"

	"github.com/cayhq/cay"
)

// dockerClient speaks the Docker Engine API to a socket.
type dockerClient struct {
	path string
	http *http.Client
}

// client returns a client of the socket that --host or $DOCKER_HOST names, else of the
// socket of "cay docker serve".
func (o *dockerOptions) client() (*dockerClient, error) {
	host := o.host
	if host == "" {
		host = os.Getenv("DOCKER_HOST")
	}
	path, ok := strings.CutPrefix(host, "unix://")
	switch {
	case host == "":
		var err error
		if path, err = o.path(); err != nil {
			return nil, err
		}
	case !ok:
		return nil, cay.Errorf(cay.Invalid, "the host %q is not unix:// and the path of a socket", host)
	}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}
	return &dockerClient{path, &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}}, nil
}

// maxDockerAnswer bounds an answer that is read as a whole, in bytes.
const maxDockerAnswer = 64 << 20

// do makes a request without a body. Errors: the API's errors, with the code for their
// status.
func (c *dockerClient) do(ctx context.Context, method, path string, query url.Values) (*http.Response, error) {
	return c.request(ctx, method, path, query, nil)
}

// request is do with a body, which is JSON unless it is an io.Reader; nil means no body.
func (c *dockerClient) request(ctx context.Context, method, path string, query url.Values, body any) (*http.Response, error) {
	return c.requestWith(ctx, method, path, query, nil, body)
}

// requestWith is request with headers.
func (c *dockerClient) requestWith(ctx context.Context, method, path string, query url.Values, header http.Header, body any) (*http.Response, error) {
	data, mime := io.Reader(http.NoBody), ""
	switch body := body.(type) {
	case nil:
	case io.Reader:
		data, mime = body, "application/x-tar"
	default:
		text, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		data, mime = bytes.NewReader(text), "application/json"
	}
	u := url.URL{Scheme: "http", Host: "docker", Path: path, RawQuery: query.Encode()}
	r, err := http.NewRequestWithContext(ctx, method, u.String(), data)
	if err != nil {
		return nil, err
	}
	maps.Copy(r.Header, header)
	if mime != "" {
		r.Header.Set("Content-Type", mime)
	}
	resp, err := c.http.Do(r)
	if err != nil {
		return nil, c.unserved(err)
	}
	if resp.StatusCode < http.StatusBadRequest {
		return resp, nil
	}
	defer resp.Body.Close()
	return nil, dockerError(resp)
}

// unserved says that the socket does not answer.
func (c *dockerClient) unserved(err error) error {
	return cay.Errorf(cay.Unavailable, "nothing serves the Docker Engine API on %s: %w", c.path, err).WithHint("start it with: cay docker serve")
}

// dockerError reads the answer to a request that has failed.
func dockerError(resp *http.Response) error {
	var body struct{ Message string }
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxDockerAnswer)).Decode(&body); err != nil || body.Message == "" {
		body.Message = resp.Status
	}
	code := map[int]cay.Code{
		http.StatusNotFound: cay.NotFound, http.StatusConflict: cay.Conflict, http.StatusBadRequest: cay.Invalid,
		http.StatusForbidden: cay.PermissionDenied, http.StatusNotImplemented: cay.NotSupported,
	}[resp.StatusCode]
	if code == "" {
		code = cay.Unavailable
	}
	return cay.Errorf(code, "%s", body.Message)
}

// json makes a request without a body and decodes the answer into v, unless v is nil.
func (c *dockerClient) json(ctx context.Context, method, path string, query url.Values, v any) error {
	return c.send(ctx, method, path, query, nil, v)
}

// send is json with a body; nil means no body.
func (c *dockerClient) send(ctx context.Context, method, path string, query url.Values, body, v any) error {
	resp, err := c.request(ctx, method, path, query, body)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if v == nil {
		_, err := io.Copy(io.Discard, io.LimitReader(resp.Body, maxDockerAnswer))
		return err
	}
	return decodeDocker(resp, v)
}

// decodeDocker decodes an answer into v.
func decodeDocker(resp *http.Response, v any) error {
	d := json.NewDecoder(io.LimitReader(resp.Body, maxDockerAnswer))
	d.UseNumber()
	if err := d.Decode(v); err != nil {
		return cay.Errorf(cay.Unavailable, "an answer of the Docker Engine API cannot be read: %w", err)
	}
	return nil
}

// dockerFilters translates the values of --filter.
func dockerFilters(values []string) (url.Values, error) {
	q := url.Values{}
	if len(values) == 0 {
		return q, nil
	}
	filters := map[string][]string{}
	for _, f := range values {
		name, value, ok := strings.Cut(f, "=")
		if !ok {
			return nil, cay.Errorf(cay.Invalid, "filter %q is not NAME=VALUE", f)
		}
		filters[name] = append(filters[name], value)
	}
	b, err := json.Marshal(filters)
	q.Set("filters", string(b))
	return q, err
}

// dockerFormat writes values by the template of --format, each on a line: "json", or a
// Go template with the functions of docker's command line.
func dockerFormat(w io.Writer, format string, values ...any) error {
	if format == "json" {
		format = "{{json .}}"
	}
	asJSON := func(v any) (string, error) {
		var b bytes.Buffer
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(false)
		err := enc.Encode(v)
		return strings.TrimSuffix(b.String(), "\n"), err
	}
	t, err := template.New("format").Option("missingkey=error").Funcs(template.FuncMap{
		"json": asJSON, "lower": strings.ToLower, "upper": strings.ToUpper, "split": strings.Split,
		"join": func(list []any, sep string) string {
			words := make([]string, len(list))
			for i, v := range list {
				words[i] = fmt.Sprint(v)
			}
			return strings.Join(words, sep)
		},
	}).Parse(format)
	if err != nil {
		return cay.Errorf(cay.Invalid, "--format: %w", err)
	}
	for _, v := range values {
		var b bytes.Buffer
		if err := t.Execute(&b, v); err != nil {
			return cay.Errorf(cay.Invalid, "--format: %w", err)
		}
		if _, err := fmt.Fprintln(w, b.String()); err != nil {
			return err
		}
	}
	return nil
}
