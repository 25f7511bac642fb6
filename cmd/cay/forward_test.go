package main

import (
	"bufio"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/cayhq/cay"
	"github.com/cayhq/cay/internal/config"
	"github.com/cayhq/cay/sandbox"
)

func TestForward(t *testing.T) {
	t.Parallel()
	cfg := config.Default()
	cfg.Data, cfg.Listen = t.TempDir(), "127.0.0.1:0"
	b, err := startTestbed(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.stop(); err != nil {
			t.Error(err)
		}
	})
	c := sandbox.NewClient(sandbox.ClientOptions{URL: b.url, Token: b.token})
	if _, err := c.Create(t.Context(), sandbox.CreateParams{Name: "box"}); err != nil {
		t.Fatal(err)
	}

	// A sandbox of the fake runtime shares this host's network and ports.
	echo, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { echo.Close() })
	go func() {
		for {
			conn, err := echo.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_, _ = io.Copy(conn, conn) // seen by the other side
			}()
		}
	}()
	_, port, _ := net.SplitHostPort(echo.Addr().String())

	cmd := exec.CommandContext(t.Context(), "cay", "sandbox", "forward", "box", "0:"+port)
	cmd.Env = append(os.Environ(), "CAY_URL="+b.url, "CAY_TOKEN="+b.token, "CAY_DATA="+filepath.Join(cfg.Data, "none"))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	// The former order of ports is refused where it can be recognised: nothing
	// listens at port 1.
	old := exec.CommandContext(t.Context(), "cay", "sandbox", "forward", "box", port+":1")
	old.Env = cmd.Env
	if text, err := old.CombinedOutput(); err == nil || old.ProcessState.ExitCode() != 2 || !strings.Contains(string(text), "write 1:"+port) {
		t.Errorf("forward %s:1: %v, %s", port, err, text)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	address, rest, _ := strings.Cut(line, " ")
	if rest != "-> port "+port+" of box\n" {
		t.Fatalf("it said %q", line)
	}
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "hello"); err != nil {
		t.Fatal(err)
	}
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	// The echo ends only if it has received the end of our side.
	if got, err := io.ReadAll(conn); err != nil || string(got) != "hello" {
		t.Fatalf("got %q, %v", got, err)
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // the code says it all
	if code := cmd.ProcessState.ExitCode(); code != 130 {
		t.Fatalf("exit code %d, want 130", code)
	}
}

func TestParsePolicy(t *testing.T) {
	t.Parallel()
	n, err := parsePolicy([]string{"a.example:443", "a.example:8443", "b.example", "b.example:80", "203.0.113.0/24", "203.0.113.9"}, []string{"198.51.100.0/24"})
	if err != nil {
		t.Fatal(err)
	}
	if got := n.Allow; len(got) != 2 || len(got[0].Ports) != 2 || got[0].Ports[1] != 8443 || got[1].Ports != nil {
		t.Errorf("names are %+v", got)
	}
	if strings.Join(n.AllowCIDRs, " ") != "203.0.113.0/24 203.0.113.9" || strings.Join(n.DenyCIDRs, " ") != "198.51.100.0/24" {
		t.Errorf("ranges are %v and %v", n.AllowCIDRs, n.DenyCIDRs)
	}
	for _, bad := range []string{"a.example:", "a.example:0", "a.example:65536", "a.example:http"} {
		if _, err := parsePolicy([]string{bad}, nil); cay.CodeOf(err) != cay.Invalid {
			t.Errorf("%q: %v, want invalid", bad, err)
		}
	}
}

func TestParseForward(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][2]int{"3000": {3000, 3000}, "0:3000": {3000, 0}, "15432:5432": {5432, 15432}} {
		port, local, err := parseForward(text)
		if err != nil || [2]int{port, local} != want {
			t.Errorf("%q: got %d %d, %v; want %v", text, port, local, err, want)
		}
	}
	if _, _, err := parseForward("3000:0"); err == nil || !strings.Contains(err.Error(), "0:3000") {
		t.Errorf("3000:0: %v, want the new order in it", err)
	}
	for _, text := range []string{"", "0", "0:0", "65536", "-1", "1:-1", "-1:1", "1:65536", "65536:1", "a", "1:b", "1:2:3", strconv.Itoa(1 << 40)} {
		if _, _, err := parseForward(text); err == nil {
			t.Errorf("%q was taken", text)
		}
	}
}
