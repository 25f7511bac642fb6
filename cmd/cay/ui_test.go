package main

import (
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cayhq/cay/account"
)

// A daemon that is started on a terminal prints a link that logs a browser in,
// once.
func TestServe_LoginLink(t *testing.T) {
	c := startConsole(t, "serve", "--listen", "127.0.0.1:0", "--gateway-listen", "127.0.0.1:0")
	c.expect("cay listens on ")
	c.expect("good for one login within 10 minutes:\r\n  ")
	for !strings.Contains(c.seen.String(), "\r\n") {
		buf := make([]byte, 512)
		n, err := c.ptmx.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		c.seen.Write(buf[:n])
	}
	link, _, _ := strings.Cut(c.seen.String(), "\r\n")
	url, code, ok := strings.Cut(link, "/ui/login#")
	if !ok {
		t.Fatalf("the link is %q", link)
	}
	for _, want := range []int{http.StatusOK, http.StatusUnauthorized} {
		resp, err := http.Post(url+"/ui/login", "application/json", strings.NewReader(`{"code":"`+code+`"}`))
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != want {
			t.Errorf("logging in: %d %s, %v, want %d", resp.StatusCode, body, err, want)
		}
	}
	if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Wait(); err != nil {
		t.Errorf("it ended with %v", err)
	}
}

func TestLoginAddress(t *testing.T) {
	t.Parallel()
	link := &account.LoginLink{Code: "cay_link_x", ExpiresAt: time.Now()}
	for url, want := range map[string]string{
		"http://127.0.0.1:7070":         "http://127.0.0.1:7070/ui/login#cay_link_x",
		"https://cay.example.com/":      "https://cay.example.com/ui/login#cay_link_x",
		"https://cay.example.com:8443/": "https://cay.example.com:8443/ui/login#cay_link_x",
	} {
		if got := loginAddress(url, link); got != want {
			t.Errorf("of %s: %s, want %s", url, got, want)
		}
	}
}
