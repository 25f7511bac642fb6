package route_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/api"
	"github.com/cayhq/cay/internal/wire"
	"github.com/cayhq/cay/sandbox"
)

// The client returns every error code that a service can return.
func TestClient_ErrorCodes(t *testing.T) {
	t.Parallel()
	codes := []cay.Code{
		cay.Invalid, cay.Unauthenticated, cay.PermissionDenied, cay.NotFound, cay.FileNotFound, cay.AlreadyExists, cay.Conflict,
		cay.Stopped, cay.ExecutableMissing, cay.TooLarge, cay.QuotaExceeded, cay.NoSpace, cay.NotSupported, cay.SourceUnavailable, cay.Unavailable,
		cay.DeadlineExceeded, cay.Canceled,
	}
	for _, code := range codes {
		t.Run(string(code), func(t *testing.T) {
			t.Parallel()
			c, rec, _ := dialRecorder(t)
			want := cay.Errorf(code, "it is %s", code).WithHint("a hint")
			rec.err = fmt.Errorf("with more around it: %w", want)
			_, err := c.Stop(t.Context(), "s")
			checkWireError(t, err, want)
			_, err = c.Exec(t.Context(), "s", sandbox.CommandParams{Argv: []string{"a"}})
			checkWireError(t, err, want)

			// The same in the middle of a stream.
			rec.err = nil
			events := someEvents()[:3]
			rec.output = func(ctx context.Context) (sandbox.Output, error) {
				was := events
				events = nil // a client that attaches again has read them
				return newFixedStream(ctx, error(want), was...), nil
			}
			got, err := collectAll(c.Exec(t.Context(), "s", sandbox.CommandParams{Argv: []string{"a"}}))
			checkWireError(t, err, want)
			if differ(got, someEvents()[:3]) {
				t.Errorf("events before the error: %v", got)
			}
		})
	}
}

// Errors without a code appear in the daemon's log only.
func TestRoutes_HidesInternalErrors(t *testing.T) {
	t.Parallel()
	c, rec, _ := dialRecorder(t)
	rec.err = errors.New("secret detail")
	_, err := c.Get(t.Context(), "s")
	if cay.CodeOf(err) != cay.Internal || strings.Contains(err.Error(), "secret") {
		t.Errorf("error is %v, want an internal error without details", err)
	}
}

// do sends a request unchanged, with the admin's token unless header has a token.
func do(t *testing.T, method, url, body string, header ...string) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer admin")
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(header); i += 2 {
		if r.Header.Del(header[i]); header[i+1] != "" {
			r.Header.Set(header[i], header[i+1])
		}
	}
	tr := &http.Transport{DisableCompression: true}
	defer tr.CloseIdleConnections()
	resp, err := tr.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(b)
}

func TestRoutes_Refusals(t *testing.T) {
	t.Parallel()
	_, rec, srv := dialRecorder(t)
	long := strings.Repeat("k", 256)
	tests := []struct {
		name         string
		method, path string
		body         string
		header       []string
		status       int
		code         cay.Code
		says         string
	}{
		{"unknown query parameter", "GET", "/v1/sandboxes?limti=3", "", nil, 400, cay.Invalid, "limti"},
		{"query parameter of a route without", "GET", "/v1/sandboxes/s?x=1", "", nil, 400, cay.Invalid, "x"},
		{"query parameter of a JSON route", "POST", "/v1/sandboxes?x=1", "{}", nil, 400, cay.Invalid, "x"},
		{"malformed query", "GET", "/v1/sandboxes?a=%zz", "", nil, 400, cay.Invalid, "malformed"},
		{"limit 0", "GET", "/v1/sandboxes?limit=0", "", nil, 400, cay.Invalid, `"0"`},
		{"limit 201", "GET", "/v1/sandboxes?limit=201", "", nil, 400, cay.Invalid, "200"},
		{"limit twice", "GET", "/v1/sandboxes?limit=1&limit=2", "", nil, 400, cay.Invalid, "2 times"},
		{"tag without value", "GET", "/v1/sandboxes?tag=x", "", nil, 400, cay.Invalid, "key=value"},
		{"unknown field", "POST", "/v1/sandboxes", `{"network":{"mod":"x"}}`, nil, 400, cay.Invalid, "network.mod"},
		{"field of another case", "POST", "/v1/sandboxes", `{"Name":"x"}`, nil, 400, cay.Invalid, "Name"},
		{"wrong type", "POST", "/v1/sandboxes", `{"vcpus":"2"}`, nil, 400, cay.Invalid, "vcpus"},
		{"fraction of a millisecond", "POST", "/v1/sandboxes", `{"timeout_ms":1.5}`, nil, 400, cay.Invalid, "timeout_ms"},
		{"no content type", "POST", "/v1/sandboxes", `{}`, []string{"Content-Type", "text/plain"}, 400, cay.Invalid, "text/plain"},
		{"idempotency key too long", "POST", "/v1/sandboxes", `{}`, []string{"Idempotency-Key", long}, 400, cay.Invalid, "Idempotency-Key"},
		{"idempotency key with space", "POST", "/v1/sandboxes", `{}`, []string{"Idempotency-Key", "a b"}, 400, cay.Invalid, "Idempotency-Key"},
		{"no path", "GET", "/v1/sandboxes/s/files/stat", "", nil, 400, cay.Invalid, "path"},
		{"mode not octal", "PUT", "/v1/sandboxes/s/files/content?path=/a&mode=9", "", nil, 400, cay.Invalid, "octal"},
		{"mode too large", "PUT", "/v1/sandboxes/s/files/content?path=/a&mode=10000", "", nil, 400, cay.Invalid, "octal"},
		{"chmod without mode", "POST", "/v1/sandboxes/s/files/chmod", `{"path":"/a"}`, nil, 400, cay.Invalid, "mode"},
		{"path of another type", "POST", "/v1/sandboxes/s/files/mkdir", `{"path":{"base":"x"}}`, nil, 400, cay.Invalid, "path"},
		{"unknown archive format", "GET", "/v1/sandboxes/s/files/archive?path=/a&format=zip", "", nil, 400, cay.Invalid, "zip"},
		{"negative cursor", "GET", "/v1/sandboxes/s/commands/c/output?cursor=-1", "", nil, 400, cay.Invalid, "-1"},
		{"stream of events", "GET", "/v1/sandboxes/s/commands/c/output?stream=stdout", "", nil, 400, cay.Invalid, "stream"},
		{"too many flows", "GET", "/v1/sandboxes/s/flows?limit=1001", "", nil, 400, cay.Invalid, "1001"},
		{"flows after text", "GET", "/v1/sandboxes/s/flows?after=x", "", nil, 400, cay.Invalid, "after"},
		{"link to no port", "POST", "/v1/sandboxes/s/ports/http/links", "{}", nil, 400, cay.Invalid, "http"},
		{"link with another field", "POST", "/v1/sandboxes/s/ports/80/links", `{"ttl":5}`, nil, 400, cay.Invalid, "ttl"},
		{"ports of another shape", "PATCH", "/v1/sandboxes/s", `{"ports":[80]}`, nil, 400, cay.Invalid, "ports"},
		{"no route", "GET", "/v1/sandbox", "", nil, 404, cay.NotFound, "/v1/sandbox"},
		{"no method", "PUT", "/v1/sandboxes", "", nil, 405, cay.Invalid, "GET"},
		{"no token", "GET", "/v1/sandboxes", "", []string{"Authorization", ""}, 401, cay.Unauthenticated, "token"},
		{"wrong token", "GET", "/v1/sandboxes", "", []string{"Authorization", "Bearer x"}, 401, cay.Unauthenticated, "token"},
		{"token in the query", "GET", "/v1/sandboxes?token=admin", "", []string{"Authorization", ""}, 401, cay.Unauthenticated, "token"},
		{"other scheme", "GET", "/v1/sandboxes", "", []string{"Authorization", "Basic admin"}, 401, cay.Unauthenticated, "Bearer"},
		{"team of another", "GET", "/v1/sandboxes", "", []string{"Authorization", "Bearer user", "Cay-Team", "team_b"}, 403, cay.PermissionDenied, "team_b"},
		{"other origin", "POST", "/v1/sandboxes", "{}", []string{"Origin", "https://evil.example"}, 403, cay.PermissionDenied, "evil.example"},
		{"null origin", "POST", "/v1/sandboxes", "{}", []string{"Origin", "null"}, 403, cay.PermissionDenied, "origin"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			resp, body := do(t, tt.method, srv.URL+tt.path, tt.body, tt.header...)
			var got wire.ErrorBody
			if err := json.Unmarshal([]byte(body), &got); err != nil || got.Error == nil {
				t.Fatalf("the answer is %q", body)
			}
			if resp.StatusCode != tt.status || got.Error.Code != tt.code || !strings.Contains(got.Error.Message+got.Error.Hint, tt.says) {
				t.Errorf("answer %d %s %q (%s), want %d %s with %q", resp.StatusCode, got.Error.Code, got.Error.Message, got.Error.Hint, tt.status, tt.code, tt.says)
			}
			if tt.status == 401 && resp.Header.Get("WWW-Authenticate") == "" {
				t.Error("no WWW-Authenticate")
			}
		})
	}
	if len(rec.calls) > 0 {
		t.Errorf("calls reached the service: %v", rec.calls)
	}
}

// An admin acts for the team that the request names, other callers for their own team.
func TestRoutes_Principal(t *testing.T) {
	t.Parallel()
	_, rec, srv := dialRecorder(t)
	for _, tt := range []struct {
		token, team string
		want        api.Principal
	}{
		{"user", "", api.Principal{TokenID: "tok_user", TeamID: "team_a", ProjectID: "prj_a"}},
		{"user", "team_a", api.Principal{TokenID: "tok_user", TeamID: "team_a", ProjectID: "prj_a"}},
		{"admin", "", api.Principal{TokenID: "tok_admin", TeamID: "team_default", Admin: true}},
		{"admin", "team_b", api.Principal{TokenID: "tok_admin", TeamID: "team_b", Admin: true}},
	} {
		resp, body := do(t, "GET", srv.URL+"/v1/sandboxes/s", "", "Authorization", "Bearer "+tt.token, wire.HeaderTeam, tt.team)
		if resp.StatusCode != 200 || rec.who != tt.want {
			t.Errorf("%s for %q: %d %s, %+v", tt.token, tt.team, resp.StatusCode, body, rec.who)
		}
	}
}

// Range requests get the answers that browsers and curl expect.
func TestRoutes_FileRanges(t *testing.T) {
	t.Parallel()
	const text = "0123456789"
	_, rec, srv := dialRecorder(t)
	size := int64(len(text))
	rec.read = func(p sandbox.ReadParams) (io.ReadCloser, *sandbox.FileInfo, error) {
		part := text[min(p.Offset, int64(len(text))):]
		if p.Length > 0 {
			part = part[:min(p.Length, int64(len(part)))]
		}
		return io.NopCloser(strings.NewReader(part)), someFile(size), nil
	}
	for _, tt := range []struct {
		header string
		status int
		body   string
		rng    string
	}{
		{"", 200, text, ""},
		{"bytes=2-4", 206, "234", "bytes 2-4/10"},
		{"bytes=7-", 206, "789", "bytes 7-9/10"},
		{"bytes=-4", 206, "6789", "bytes 6-9/10"},
		{"bytes=-99", 206, text, "bytes 0-9/10"},
		{"bytes=8-99", 206, "89", "bytes 8-9/10"},
		{"bytes=10-", 416, "", "bytes */10"},
		{"bytes=1-2,4-5", 200, text, ""},
		{"bytes=4-2", 200, text, ""},
		{"lines=1-2", 200, text, ""},
	} {
		resp, body := do(t, "GET", srv.URL+"/v1/sandboxes/s/files/content?path=/a", "", "Range", tt.header)
		if resp.StatusCode != tt.status || resp.Header.Get("Content-Range") != tt.rng || tt.status != 416 && body != tt.body {
			t.Errorf("%q: %d %q %q, want %d %q %q", tt.header, resp.StatusCode, resp.Header.Get("Content-Range"), body, tt.status, tt.rng, tt.body)
		}
		var info sandbox.FileInfo
		if err := json.Unmarshal([]byte(resp.Header.Get(wire.HeaderFileInfo)), &info); err != nil || differ(info, *someFile(size)) {
			t.Errorf("%q: file info %q, %v", tt.header, resp.Header.Get(wire.HeaderFileInfo), err)
		}
	}
	// A file of proc has content, though no size.
	size = 0
	if resp, body := do(t, "GET", srv.URL+"/v1/sandboxes/s/files/content?path=/proc/x", ""); body != text || resp.ContentLength != 10 {
		t.Errorf("file without size: %q, length %d", body, resp.ContentLength)
	}
}

// Reading beyond the end of a file returns no bytes, and no error.
func TestClient_ReadFileBeyondEnd(t *testing.T) {
	t.Parallel()
	c, rec, _ := dialRecorder(t)
	rec.read = func(sandbox.ReadParams) (io.ReadCloser, *sandbox.FileInfo, error) {
		return http.NoBody, someFile(3), nil
	}
	r, info, err := c.ReadFile(t.Context(), "s", "/a", sandbox.ReadParams{Offset: 5})
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(r)
	if len(b) != 0 || err != nil || info.Size != 3 {
		t.Errorf("read %q, %v, size %d", b, err, info.Size)
	}
}

// A file that breaks off is not returned as a shorter file.
func TestClient_ReadFileBreaksOff(t *testing.T) {
	t.Parallel()
	c, rec, _ := dialRecorder(t)
	for _, size := range []int64{1 << 20, 0} {
		rec.read = func(sandbox.ReadParams) (io.ReadCloser, *sandbox.FileInfo, error) {
			return io.NopCloser(io.MultiReader(io.LimitReader(zeroReader{}, 600<<10), iotest.ErrReader(errors.New("lost the guest")))), someFile(size), nil
		}
		r, _, err := c.ReadFile(t.Context(), "s", "/a", sandbox.ReadParams{})
		if err != nil {
			t.Fatal(err)
		}
		if n, err := io.Copy(io.Discard, r); cay.CodeOf(err) != cay.Unavailable {
			t.Errorf("size %d: read %d bytes, %v", size, n, err)
		}
		r.Close()
	}
}

func TestClient_WriteFile(t *testing.T) {
	t.Parallel()
	t.Run("sizes", func(t *testing.T) {
		t.Parallel()
		c, rec, _ := dialRecorder(t)
		type sized struct{ io.Reader } // hides the length
		for _, tt := range []struct {
			r    io.Reader
			size int64
			want int64
		}{
			{strings.NewReader(""), -1, -1},
			{bytes.NewReader(nil), 0, -1},
			{bytes.NewReader([]byte("abc")), 0, 3},
			{sized{strings.NewReader("abc")}, 0, 0},
			{sized{strings.NewReader("abc")}, 3, 3},
		} {
			if _, err := c.WriteFile(t.Context(), "s", "/a", tt.r, sandbox.WriteParams{Size: tt.size}); err != nil {
				t.Fatal(err)
			}
			if got := rec.last(t).Args[3].(sandbox.WriteParams).Size; got != tt.want {
				t.Errorf("size %d of %T arrives as %d, want %d", tt.size, tt.r, got, tt.want)
			}
		}
	})
	t.Run("other length than announced", func(t *testing.T) {
		t.Parallel()
		c, _, _ := dialRecorder(t)
		for _, body := range []string{"ab", "abcd"} {
			_, err := c.WriteFile(t.Context(), "s", "/a", strings.NewReader(body), sandbox.WriteParams{Size: 3})
			if cay.CodeOf(err) != cay.Invalid {
				t.Errorf("%q as 3 bytes: %v", body, err)
			}
		}
	})
	t.Run("the reader's error", func(t *testing.T) {
		t.Parallel()
		c, rec, _ := dialRecorder(t)
		seen := make(chan error, 1)
		rec.write = func(_ context.Context, r io.Reader) error {
			_, err := io.Copy(io.Discard, r)
			seen <- err
			return err
		}
		mine := errors.New("disk on fire")
		_, err := c.WriteFile(t.Context(), "s", "/a", io.MultiReader(io.LimitReader(zeroReader{}, 1<<20), iotest.ErrReader(mine)), sandbox.WriteParams{})
		if !errors.Is(err, mine) {
			t.Errorf("error is %v, want the reader's", err)
		}
		if err := <-seen; err == nil {
			t.Error("the service took the broken upload for a whole one")
		}
	})
	t.Run("refused early", func(t *testing.T) {
		t.Parallel()
		c, rec, _ := dialRecorder(t)
		want := cay.Errorf(cay.NoSpace, "the disk is full")
		rec.write = func(_ context.Context, r io.Reader) error {
			if _, err := io.CopyN(io.Discard, r, 1<<20); err != nil {
				return err
			}
			return want
		}
		_, err := c.WriteFile(t.Context(), "s", "/a", zeroReader{}, sandbox.WriteParams{})
		checkWireError(t, err, want)
	})
}

// Idle standard input ends when the command ends.
func TestClient_WriteStdinRefusedWhileIdle(t *testing.T) {
	t.Parallel()
	c, rec, _ := dialRecorder(t)
	want := cay.Errorf(cay.Conflict, "the command has exited")
	rec.write = func(_ context.Context, r io.Reader) error {
		if _, err := io.ReadFull(r, make([]byte, 3)); err != nil {
			return err
		}
		return want
	}
	r, w := io.Pipe()
	defer w.Close()
	go w.Write([]byte("abc")) // and then nothing
	checkWireError(t, c.WriteStdin(t.Context(), "s", "c", r, false), want)
}

// Errors do not repeat values that may be secrets in the wrong place, because errors are
// logged.
func TestRoutes_ErrorsHideSecrets(t *testing.T) {
	t.Parallel()
	_, _, srv := dialRecorder(t)
	for _, rule := range []string{
		`{"set_headers":"s3cr3t"}`, `{"set_headers":["s3cr3t"]}`, `{"set_headers":{"x":["s3cr3t"]}}`, `{"set_headers":{"x":{"y":"s3cr3t"}}}`,
		`{"set_headers":{"x":"s3cr3t","x":"s3cr3t"}}`, `{"set_headers":{"x":"s3cr3t\x"}}`, `{"set_headers":{"x":"s3cr3t"`, `"s3cr3t"`,
	} {
		for _, body := range []string{`{"network":{"allow":[{"name":"x","rules":[` + rule + `]}]}}`, `{"env":{"X":["s3cr3t"]}}`} {
			resp, answer := do(t, "PATCH", srv.URL+"/v1/sandboxes/s", body)
			if resp.StatusCode != 400 || strings.Contains(answer, "s3cr3t") {
				t.Errorf("%s: %d %s", body, resp.StatusCode, answer)
			}
		}
	}
}
