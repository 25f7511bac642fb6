package docker

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/cayhq/cay/internal/sandboxd/sandboxtest"
	"github.com/cayhq/cay/internal/seedtest"
	"github.com/cayhq/cay/sandbox"
)

// request sends a request from any goroutine.
func (b *bed) request(method, path, body string) (int, string, error) {
	r, err := http.NewRequestWithContext(b.t.Context(), method, "http://localhost"+path, strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	resp, err := b.http.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text), err
}

// coldCall does what workerd does for the first call of a container, then ends it.
func (b *bed) coldCall(name string) error {
	labels := `"Labels":{"` + sessionLabel + `":"s"}`
	for _, step := range []struct {
		method, path, body string
		status             int
	}{
		{"GET", "/containers/" + name + "/json", "", 404},
		{"POST", "/containers/create?name=" + name + "-proxy", `{"Image":"cloudflare/proxy-everything:1",` + labels + `}`, 201},
		{"POST", "/containers/" + name + "-proxy/start", "", 204},
		{"POST", "/containers/create?name=" + name, `{"Image":"debian","Cmd":["sleep","600"],` + labels + `,"HostConfig":{"NetworkMode":"container:` + name + `-proxy"}}`, 201},
		{"POST", "/containers/" + name + "/start", "", 204},
		{"POST", "/containers/" + name + "/exec", `{"Cmd":["true"]}`, 201},
		{"DELETE", "/containers/" + name + "?force=true", "", 204},
		{"DELETE", "/containers/" + name + "-proxy?force=true", "", 204},
		{"POST", "/containers/" + name + "-proxy/wait?condition=removed", "", 404},
	} {
		status, text, err := b.request(step.method, step.path, step.body)
		if err != nil {
			return err
		}
		if status != step.status {
			return fmt.Errorf("%s %s: status %d, want %d: %s", step.method, step.path, status, step.status, text)
		}
	}
	return nil
}

// wantNothing ends the server. It fails the test if the server knows of anything, or the
// daemon has a sandbox.
func (b *bed) wantNothing() {
	b.t.Helper()
	b.end() // what is in the background has ended then
	all, err := b.server.all(b.t.Context())
	if err != nil {
		b.t.Fatal(err)
	}
	b.server.names.mu.Lock()
	names := len(b.server.names.m)
	b.server.names.mu.Unlock()
	b.server.execs.mu.Lock()
	execs := len(b.server.execs.byID)
	b.server.execs.mu.Unlock()
	for what, n := range map[string]int{"containers": len(all), "lives": len(b.server.lives.ids()), "names": names, "exec instances": execs} {
		if n > 0 {
			b.t.Errorf("%d %s are left", n, what)
		}
	}
	client := sandbox.NewClient(sandbox.ClientOptions{URL: b.daemon, Token: sandboxtest.Default.TokenID})
	page, err := client.List(b.t.Context(), sandbox.ListParams{})
	if err != nil {
		b.t.Fatal(err)
	}
	if len(page.Items) > 0 {
		b.t.Errorf("%d sandboxes are left, the first is %s, %s", len(page.Items), page.Items[0].Name, page.Items[0].Status)
	}
}

// Containers that come and go leave nothing: leaktest looks for goroutines.
func TestChurn(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	for i := range seedtest.Rounds(t, 20) {
		if err := b.coldCall(fmt.Sprint("workerd-", i)); err != nil {
			t.Fatal(err)
		}
	}
	b.wantNothing()
}

// Twenty first calls at once get what they ask for, and leave nothing.
func TestChurn_atOnce(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	var calls sync.WaitGroup
	for i := range 20 {
		calls.Go(func() {
			if err := b.coldCall(fmt.Sprint("workerd-", i)); err != nil {
				t.Error(err)
			}
		})
	}
	calls.Wait()
	b.wantNothing()
}

// A name is given once, however many ask for it at once.
func TestCreate_sameName(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	var calls sync.WaitGroup
	answers := make(chan int, 20)
	for range cap(answers) {
		calls.Go(func() {
			status, _, err := b.request("POST", "/containers/create?name=one", `{"Image":"debian"}`)
			if err != nil {
				t.Error(err)
			}
			answers <- status
		})
	}
	calls.Wait()
	close(answers)
	count := map[int]int{}
	for status := range answers {
		count[status]++
	}
	if count[201] != 1 || count[409] != 19 {
		t.Errorf("the answers are %v, want one 201, and 409", count)
	}
	b.do("DELETE", "/containers/one", nil).want(204)
	b.wantNothing()
}
