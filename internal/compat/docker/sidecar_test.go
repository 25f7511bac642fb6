package docker

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/cayhq/cay/internal/sandboxd/sandboxtest"
)

// The requests of workerd about one container, in its order.
func TestSidecar(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	port := sandboxtest.ServeEcho(t)
	image := "cloudflare/proxy-everything:3cb1195@sha256:" + strings.Repeat("0", 64)
	b.do("DELETE", "/containers/"+long+"-proxy?force=true", nil).want(404)
	b.do("POST", "/containers/create?name="+long+"-proxy", m{
		"Image": image, "Cmd": []string{"--http-egress-port", "1"}, "ExposedPorts": m{ingressPort: m{}}, "Labels": m{sessionLabel: "s"},
		"HostConfig": m{"PublishAllPorts": true, "CapAdd": []string{"NET_ADMIN"}, "ExtraHosts": []string{"host.docker.internal:host-gateway"}},
	}).want(201)
	b.start(long + "-proxy")
	b.do("POST", "/containers/"+long+"-proxy/start", nil).want(304)
	a := b.do("GET", "/containers/"+long+"-proxy/json", nil).want(200)
	addr := "127.0.0.1:" + a.at("NetworkSettings.Ports."+ingressPort+".0.HostPort")
	if a.at("State.Status") != "running" {
		t.Errorf("it is %s", a.body)
	}
	if bytes.Contains(a.body, []byte(`"StopTimeout":null`)) {
		t.Error("the stop timeout is null, which workerd takes for no number")
	}
	b.do("POST", "/containers/"+long+"-proxy/exec", m{"Cmd": []string{"sh"}}).want(409)

	ask := func(method, path, body string) (int, string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, "http://"+addr+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(text)
	}
	connect := func(port int) (net.Conn, int) {
		t.Helper()
		c, err := new(net.Dialer).DialContext(t.Context(), "tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(c, "CONNECT x HTTP/1.1\r\nHost: x\r\nX-Dst-Addr: 127.0.0.1:%d\r\n\r\n", port)
		r := bufio.NewReader(c)
		resp, err := http.ReadResponse(r, &http.Request{Method: http.MethodConnect})
		if err != nil {
			t.Fatal(err)
		}
		return c, resp.StatusCode
	}
	if c, status := connect(port); status != 400 { // there is no container yet
		t.Errorf("CONNECT without a container: %d", status)
	} else {
		c.Close()
	}
	if status, text := ask("PUT", "/egress", `{"port":0}`); status != 400 || !strings.Contains(text, "0") {
		t.Errorf("egress at no port: %d %s", status, text)
	}
	if status, _ := ask("PUT", "/egress", `{"port":1,"dns":{"allowHostnames":[]},"internet":{"enabled":false}}`); status != 204 {
		t.Errorf("egress: %d", status)
	}
	if status, text := ask("GET", "/ca", ""); status != 200 || !strings.HasPrefix(text, "-----BEGIN CERTIFICATE-----") {
		t.Errorf("ca: %d %s", status, text)
	}
	id := b.create(long, "sleep 60", m{"Labels": m{sessionLabel: "s"}, "HostConfig": m{"NetworkMode": "container:" + long + "-proxy", "PidMode": "host"}})
	b.start(id)
	mode := func() string {
		t.Helper()
		c, err := b.server.find(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		return string(c.box.Network.Mode)
	}
	if got := mode(); got != "deny-all" {
		t.Errorf("without the internet its network is %s", got)
	}
	if status, text := ask("PUT", "/egress", `{"port":1,"dns":{"allowHostnames":[]},"internet":{"enabled":true}}`); status != 204 || mode() != "allow-all" {
		t.Errorf("with the internet: %d %s, its network is %s", status, text, mode())
	}
	talk := func() {
		t.Helper()
		c, status := connect(port)
		if status != 200 {
			t.Fatalf("CONNECT: %d", status)
		}
		sandboxtest.Talk(t, c)
		c.Close()
	}
	talk()
	free, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := free.Addr().(*net.TCPAddr).Port
	free.Close()
	if c, status := connect(nobody); status != 400 {
		t.Errorf("CONNECT where nothing listens: %d", status)
	} else {
		c.Close()
	}
	b.serve(sandboxtest.Default.TokenID) // which serves the sidecar at the same port
	b.do("GET", "/_ping", nil).want(200) // once it has adopted all
	talk()
	b.do("DELETE", "/containers/"+long+"?force=true", nil).want(204)
	b.do("DELETE", "/containers/"+long+"-proxy?force=true", nil).want(204)
	b.do("POST", "/containers/"+long+"-proxy/wait?condition=removed", nil).want(404)
	// Somebody else may have the port by now.
	if resp, err := http.Get("http://" + addr + "/ca"); err == nil {
		text, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if strings.HasPrefix(string(text), "-----BEGIN CERTIFICATE-----") {
			t.Error("a sidecar that was removed answers")
		}
	}
}
