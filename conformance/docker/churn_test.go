package docker

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/cayhq/cay/internal/seedtest"
	"github.com/cayhq/cay/sandbox"
)

// Containers and sidecars are created and removed as workerd does it, 20 at a time. No
// sandbox is left, and no sidecar listens.
func TestChurn(t *testing.T) {
	env, vars := serve(t)
	path := ""
	for _, kv := range vars {
		if p, ok := strings.CutPrefix(kv, "DOCKER_HOST=unix://"); ok {
			path = p
		}
	}
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}}}
	defer client.CloseIdleConnections()
	ask := func(method, path, body string, status int) (string, error) {
		r, err := http.NewRequestWithContext(t.Context(), method, "http://localhost"+path, strings.NewReader(body))
		if err != nil {
			return "", err
		}
		resp, err := client.Do(r)
		if err != nil {
			return "", err
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err == nil && resp.StatusCode != status {
			err = fmt.Errorf("%s %s: status %d, want %d: %s", method, path, resp.StatusCode, status, text)
		}
		return string(text), err
	}
	const labels = `"Labels":{"dev.workerd.session":"s"}`
	cycle := func(name string) error {
		for _, step := range []struct {
			method, path, body string
			status             int
		}{
			{"POST", "/containers/create?name=" + name + "-proxy", `{"Image":"cloudflare/proxy-everything:1",` + labels + `}`, 201},
			{"POST", "/containers/" + name + "-proxy/start", "", 204},
			{"POST", "/containers/create?name=" + name, `{"Image":"debian","Cmd":["sleep","600"],` + labels + `,"HostConfig":{"NetworkMode":"container:` + name + `-proxy"}}`, 201},
			{"POST", "/containers/" + name + "/start", "", 204},
			{"DELETE", "/containers/" + name + "?force=true", "", 204},
			{"DELETE", "/containers/" + name + "-proxy?force=true", "", 204},
		} {
			if _, err := ask(step.method, step.path, step.body, step.status); err != nil {
				return err
			}
		}
		return nil
	}
	names := make(chan string)
	var workers sync.WaitGroup
	for range 20 {
		workers.Go(func() {
			for name := range names {
				if err := cycle(name); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for i := range seedtest.Rounds(t, 200) {
		names <- fmt.Sprint("workerd-", i)
	}
	close(names)
	workers.Wait()
	if left, err := ask("GET", "/containers/json?all=1", "", 200); err != nil || strings.TrimSpace(left) != "[]" {
		t.Errorf("containers are left: %s, %v", left, err)
	}
	page, err := env.Client.List(t.Context(), sandbox.ListParams{})
	if err != nil {
		t.Fatal(err)
	}
	if len(page.Items) > 0 {
		t.Errorf("%d sandboxes are left, the first is %s, %s", len(page.Items), page.Items[0].Name, page.Items[0].Status)
	}
}
