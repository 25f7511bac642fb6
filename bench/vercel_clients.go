package bench

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/cayhq/cay/account"
	"github.com/cayhq/cay/internal/compat/vercelsandbox/preload"
)

// sdkProgram is what Node runs.
//
//go:embed workload/vercel.mjs
var sdkProgram string

// missingSDK says why the SDK in dir cannot be run; empty if it can.
func missingSDK(dir string) string {
	if _, err := exec.LookPath("node"); err != nil {
		return "needs node"
	}
	text, err := os.ReadFile(filepath.Join(dir, "package.json"))
	if err != nil {
		return fmt.Sprintf("the SDK is not in %s (make conformance-vercel-deps, or --sdk)", dir)
	}
	var p struct{ Name, Version string }
	if err := json.Unmarshal(text, &p); err != nil {
		return fmt.Sprintf("the SDK in %s cannot be read: %v", dir, err)
	}
	if p.Name != "@vercel/sandbox" || !strings.HasPrefix(p.Version, "3.") {
		return fmt.Sprintf("%s has %s %s, and not version 3 of @vercel/sandbox", dir, p.Name, p.Version)
	}
	return ""
}

// jwt makes a token as "cay vercel" does; the SDK needs nothing else.
func (d *Daemon) jwt(ctx context.Context) (string, error) {
	c := account.Client{URL: d.at.URL, Token: d.at.Token}
	t, err := c.CreateToken(ctx, account.CreateTokenParams{JWT: true})
	if err != nil {
		return "", err
	}
	return t.Secret, nil
}

// sdkProcess is a process with the SDK, see workload/vercel.mjs.
type sdkProcess struct {
	cmd     *exec.Cmd
	stdin   io.WriteCloser
	answers *json.Decoder
}

// startSDK starts a process with the SDK for url. The process ends with this
// one.
func (v *vercelBench) startSDK(url, token string) (*sdkProcess, error) {
	dir, err := filepath.Abs(v.o.SDK)
	if err != nil {
		return nil, fmt.Errorf("start the SDK: %w", err)
	}
	module := base64.StdEncoding.EncodeToString([]byte(preload.Module(url, "")))
	p := &sdkProcess{cmd: exec.Command("node", "--import=data:text/javascript;base64,"+module, "--input-type=module", "-e", sdkProgram, dir)}
	// Our environment must not make the SDK behave otherwise than for its
	// users.
	p.cmd.Env = []string{"VERCEL_OIDC_TOKEN=" + token, "VERCEL_TELEMETRY_DISABLED=1"}
	p.cmd.Dir, p.cmd.Stderr, p.cmd.SysProcAttr = "/", v.o.Stderr, newSession()
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, fmt.Errorf("start the SDK: %w", err)
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start the SDK: %w", err)
	}
	p.answers = json.NewDecoder(stdout)
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the SDK: %w", err)
	}
	return p, nil
}

// sdkRequest is a request to the program with the SDK: an operation and its
// size.
type sdkRequest struct {
	Do        string `json:"do"`
	Files     int    `json:"files,omitempty"`
	Bytes     int    `json:"bytes,omitempty"` // in each
	Sandboxes int    `json:"sandboxes,omitempty"`
}

// do returns the duration in milliseconds.
func (p *sdkProcess) do(ctx context.Context, r sdkRequest) ([]float64, error) {
	defer context.AfterFunc(ctx, func() { p.cmd.Process.Kill() })()
	var a struct {
		MS    []float64 `json:"ms"`
		Error string    `json:"error"`
	}
	err := json.NewEncoder(p.stdin).Encode(r)
	if err == nil {
		err = p.answers.Decode(&a)
	}
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil:
		return nil, fmt.Errorf("ask the SDK to %s: %w", r.Do, err)
	case a.Error != "":
		return nil, fmt.Errorf("the SDK could not %s: %s", r.Do, a.Error)
	}
	return a.MS, nil
}

// close lets the process remove its sandboxes, and exit.
func (p *sdkProcess) close(ctx context.Context) error {
	defer context.AfterFunc(ctx, func() { p.cmd.Process.Kill() })()
	p.stdin.Close() // the process may be gone
	if err := p.cmd.Wait(); err != nil {
		return fmt.Errorf("end the SDK: %w", err)
	}
	return nil
}

// bareClient makes the same requests as the SDK.
type bareClient struct {
	http       *http.Client
	url, token string
}

func newBareClient(ctx context.Context, d *Daemon) (*bareClient, error) {
	token, err := d.jwt(ctx)
	if err != nil {
		return nil, err
	}
	return &bareClient{&http.Client{Transport: &http.Transport{}}, d.at.URL, token}, nil
}

// canned is a recorded answer.
type canned struct {
	status      int
	contentType string
	body        []byte
}

func (a *canned) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", a.contentType)
	w.WriteHeader(a.status)
	w.Write(a.body) // the asking process may be gone
}

// do makes a request and reads all of its answer.
func (c *bareClient) do(ctx context.Context, method, path, body string) (*canned, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.url+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+c.token)
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close() // it was only read
	a := &canned{status: resp.StatusCode, contentType: resp.Header.Get("Content-Type")}
	if a.body, err = io.ReadAll(resp.Body); err != nil {
		return nil, err
	}
	if a.status != http.StatusOK {
		return nil, fmt.Errorf("%s %s: status %d: %s", method, path, a.status, lastLine(a.body))
	}
	return a, nil
}

// recording is a sandbox from its creation to its end, with one command: the
// answers to the SDK's requests, and how long the first two took.
type recording struct {
	created, ran, removed *canned
	create, command       time.Duration
}

// startAndRun makes the calls that the SDK's process calls "start".
func (c *bareClient) startAndRun(ctx context.Context) (r recording, err error) {
	begun := time.Now()
	if r.created, err = c.do(ctx, http.MethodPost, "/api/v3/sandboxes", `{"projectId":"`+account.DefaultProject+`","ports":[]}`); err != nil {
		return r, err
	}
	var made struct {
		Sandbox struct{ Name string }
		Session struct{ ID string }
	}
	if err := json.Unmarshal(r.created.body, &made); err != nil {
		return r, fmt.Errorf("the new sandbox is %q: %w", r.created.body, err)
	}
	defer func() {
		ctx, cancel := cleanup(ctx)
		defer cancel()
		var rerr error
		r.removed, rerr = c.do(ctx, http.MethodDelete, "/api/v2/sandboxes/"+made.Sandbox.Name+"?projectId="+account.DefaultProject, "")
		err = errors.Join(err, rerr)
	}()
	created := time.Now()
	r.ran, err = c.do(ctx, http.MethodPost, "/api/v2/sandboxes/sessions/"+made.Session.ID+"/cmd",
		`{"command":"node","args":["-v"],"env":{},"sudo":false,"wait":true,"logs":true}`)
	r.create, r.command = created.Sub(begun), time.Since(created)
	if err == nil && !bytes.Contains(r.ran.body, []byte(`"v24.`)) {
		err = fmt.Errorf("node -v wrote %q", r.ran.body)
	}
	return r, err
}

// stub is a server that gives a recording's answers.
type stub struct {
	url   string
	http  http.Server
	ended chan error
}

func (r *recording) serve() (*stub, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("start stub: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle("POST /api/v3/sandboxes", r.created)
	mux.Handle("POST /api/v2/sandboxes/sessions/{id}/cmd", r.ran)
	mux.Handle("DELETE /api/v2/sandboxes/{name}", r.removed)
	s := &stub{url: "http://" + ln.Addr().String(), http: http.Server{Handler: mux}, ended: make(chan error, 1)}
	go func() { s.ended <- s.http.Serve(ln) }()
	return s, nil
}

func (s *stub) close() error {
	err := s.http.Close()
	if ended := <-s.ended; !errors.Is(ended, http.ErrServerClosed) {
		err = errors.Join(err, ended)
	}
	return err
}
